"""Measures what methods of checkpoints are worth on the demo model; writes bench/results/scheme-methods-<date>.json.

    python bench/scheme_methods.py [--orders 1] [--tables w4a16,outliers,w4a8] [--chunks 12] [--samples 16]

w4a16     w4a16-g128 by each method
outliers  int8-w8a8 of the model with outliers, and rounded as it is: three channels of each norm are 100 times larger,
          and the columns that read them as much smaller, which changes nothing but what rounding does
w4a8      w4a8 and w4a8-g128: rounded to nearest, and by QQQ's way, with and without rotation

Divergence is from the model as it is, on questions that it was not trained on; methods see others. With several orders
each row is of the model with its channels in as many orders. About 8 minutes on two cores for one order.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.evals import demo_text, divergence
from octavo.evals.schemes import SchemeMethod
from octavo.evals.subject import open_subject
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.quantizers import quantize_checkpoint
from octavo.quantizers.fold import ChangedFile, Changes, find_folds, scaled
from quantizer_kl import CONTEXT, Orders

FACTOR, CHANNELS = 100.0, (3, 11, 17)
PLAIN = "rtn"
WEIGHT_ONLY = (PLAIN, "gptq", "qronos", "awq", "auto")


def write_outliers(source: Path, out: Path) -> None:
    """The model with CHANNELS of each norm that layers read FACTOR times larger."""
    with GGUFFile.open(source) as file:
        changes = Changes()
        for fold in find_folds(read_model(file)):
            if fold.name.endswith("norm") and fold.name.startswith("blk."):
                scales = np.ones(fold.size)
                scales[list(CHANNELS)] = 1 / FACTOR
                changes.add_fold(fold, partial(lambda s, part, values: scaled(part, s, values), scales))
        changed = ChangedFile(file, changes)
        tensors = {name: dequantize(changed.tensor(name)) for name in changed.tensors}
        keys = {key: file.metadata.typed(key) for key in file.metadata}
        write_gguf(out, file.metadata["general.architecture"], keys, tensors)


def cases(table: str) -> Iterator[tuple[str, str, bool, bool]]:
    """Scheme, method, whether the model is turned, and whether it has outliers."""
    if table == "w4a16":
        yield from (("w4a16-g128", method, False, False) for method in WEIGHT_ONLY)
    elif table == "outliers":
        yield "int8-w8a8", PLAIN, False, False
        yield from (("int8-w8a8", method, False, True) for method in (PLAIN, "smoothquant", "auto"))
    else:
        for scheme in ("w4a8", "w4a8-g128"):
            yield from ((scheme, method, False, False) for method in (PLAIN, "gptq", "qqq"))
            yield scheme, "qqq", True, False


def measure(
    source: Path, base: Path, scheme: str, kind: str, *, turned: bool, options: argparse.Namespace
) -> dict[str, Any]:
    """Divergence of a checkpoint from `base`, how large it is and how long it took."""
    method = None
    if (kind, turned) != (PLAIN, False):
        method = SchemeMethod("demo", kind, turned, samples=options.samples, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        made, begun = os.path.join(folder, "made"), time.perf_counter()
        report = quantize_checkpoint(source, made, scheme, method=method)
        seconds = time.perf_counter() - begun
        with open_subject(made, CONTEXT, device="cpu") as model, open_subject(base, CONTEXT, device="cpu") as whole:
            tokens = demo_text(whole.tokenizer, "test").tokens
            kl = divergence(model, whole, tokens, context=CONTEXT, chunks=options.chunks).kl
    chosen: dict[str, int] = {}
    for how in [row.how for row in report.rows if row.how] + [f"scales: {row.how}" for row in report.scaled]:
        chosen[how] = chosen.get(how, 0) + 1
    return {"kl": [kl.value, kl.error], "bytes": report.nbytes, "seconds": seconds, "chosen": chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--tables", default="w4a16,outliers,w4a8")
    parser.add_argument("--chunks", type=int, default=12, help="windows of the held-out text")
    parser.add_argument("--samples", type=int, default=16, help="windows of the calibration text")
    options = parser.parse_args()
    rows, orders = [], Orders()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.orders):
            base, spoiled = Path(folder) / f"{seed}.gguf", Path(folder) / f"{seed}-outliers.gguf"
            orders.write(base, seed)
            write_outliers(base, spoiled)
            for table in options.tables.split(","):
                for scheme, kind, turned, outliers in cases(table):
                    found = measure(spoiled if outliers else base, base, scheme, kind, turned=turned, options=options)
                    row = {"table": table, "scheme": scheme, "method": kind, "rotate": turned, "outliers": outliers}
                    rows.append({**row, "order": seed, **found})
                    print({key: value for key, value in rows[-1].items() if key != "table"}, flush=True)
                    how = {"chunks": options.chunks, "samples": options.samples, "factor": FACTOR}
                    results_file.write("scheme-methods", {**results_file.described(), **how, "rows": rows})


if __name__ == "__main__":
    main()
