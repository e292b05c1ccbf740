"""Measures what methods of checkpoints are worth; writes bench/results/scheme-methods-MODEL-<date>.json.

    python bench/scheme_methods.py [MODEL.gguf ...] [--orders 1] [--first 0] [--tables w4a16,...] [--chunks 12]
                                   [--samples 16] [--jobs N] [--commit HASH] [-o FOLDER]

Models are GGUF files of floats that know the text (`texts.py`), or demo; results' names have single tables too.

w4a16     w4a16-g128 by each method
outliers  int8-w8a8 of the model with outliers, and rounded as it is: three channels of each norm are 100 times larger,
          and the columns that read them as much smaller, which changes nothing but what rounding does
w4a8      w4a8 and w4a8-g128: rounded to nearest, and by QQQ's way, with and without rotation
static    int8-w8a8 with a scale for each token, with one scale for all that a product is given, with RPTQ's clusters,
          and with these where they cost little and a scale for each token or e4m3 numbers elsewhere
spoiled   the same with static scales of the model with outliers
others    w4a8 with a scale for each token and with static ones; fp8 with both

Divergence is from the model as it is, on a text that methods do not see. With several orders each row is of the model
with its channels in one of them. MethodRun 12 minutes on two cores for one order. Tables are gone through in the order
given, each for all models and orders; files are written whenever a row is done.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import results_file
from jobs import results
from octavo.bench import machine
from octavo.calibrate.fold import find_folds, shuffle
from octavo.calibrate.fold.fold import ChangedFile, TensorChanges, scaled
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.evals import divergence
from octavo.evals.eval_model import open_subject
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.quantizers import quantize_checkpoint
from octavo.runtime import resolve
from quantizer_kl import CONTEXT
from texts import calibration, held_out

TABLES = "w4a16,outliers,w4a8,static,spoiled,others"
Activations = Literal["static", "mixed", "static-fp8", "dynamic"]
FACTOR, CHANNELS = 100.0, (3, 11, 17)
PLAIN = "rtn"
RPTQ: tuple[Activations, ...] = ("static", "mixed", "static-fp8")
WEIGHT_ONLY = (PLAIN, "gptq", "qronos", "awq", "auto")


@dataclass(frozen=True)
class Case:
    """A way to quantize a model.

    rotate       the model is turned before
    outliers     of the model with outliers
    activations  "static", "mixed", "static-fp8" or "dynamic"
    """

    scheme: str
    method: str
    rotate: bool = False
    outliers: bool = False
    activations: Activations = "dynamic"


def write_order(source: str, out: Path, seed: int) -> None:
    """A model of floats with its channels in an order drawn by `seed`, 16 bits a weight; as they are for 0."""
    with GGUFFile.open(source) as file:
        _write(file, shuffle(file, seed) if seed else file, out, np.float16)


def write_outliers(source: Path, out: Path) -> None:
    """The model with CHANNELS of each norm that layers read FACTOR times larger."""
    with GGUFFile.open(source) as file:
        changes = TensorChanges()
        for fold in find_folds(read_model(file)):
            if fold.name.endswith("norm") and fold.name.startswith("blk."):
                scales = np.ones(fold.size)
                scales[list(CHANNELS)] = 1 / FACTOR
                changes.add_fold(fold, partial(lambda s, part, values: scaled(part, s, values), scales))
        _write(file, ChangedFile(file, changes), out, np.float32)


def _write(file: GGUFFile, changed: GGUFFile, out: Path, matrices: type[np.floating[Any]]) -> None:
    tensors = {name: dequantize(changed.tensor(name)) for name in changed.tensors}
    keys = {key: file.metadata.typed(key) for key in file.metadata}
    stored = {name: x.astype(matrices) if x.ndim > 1 else x for name, x in tensors.items()}
    write_gguf(out, file.metadata["general.architecture"], keys, stored)


def cases(table: str) -> Iterator[Case]:
    """The rows of a table."""
    if table == "w4a16":
        yield from (Case("w4a16-g128", method) for method in WEIGHT_ONLY)
    elif table == "outliers":
        yield Case("int8-w8a8", PLAIN)
        yield from (Case("int8-w8a8", method, outliers=True) for method in (PLAIN, "smoothquant", "auto"))
    elif table in ("static", "spoiled"):
        outliers = table == "spoiled"
        if not outliers:
            yield Case("int8-w8a8", "gptq")
        yield Case("int8-w8a8", "gptq", outliers=outliers, activations="static")
        for activations in RPTQ:
            yield Case("int8-w8a8", "rptq", outliers=outliers, activations=activations)
    elif table == "others":
        yield Case("w4a8", "gptq")
        yield Case("w4a8", "rptq", activations="static")
        yield Case("fp8", PLAIN)
        yield Case("fp8", PLAIN, activations="static")
    else:
        for scheme in ("w4a8", "w4a8-g128"):
            yield from (Case(scheme, method) for method in (PLAIN, "gptq", "qqq"))
            yield Case(scheme, "qqq", rotate=True)


@dataclass(frozen=True)
class Setting:
    """What all rows have in common; `folder` is what files are made in, `texts` what models are calibrated with."""

    folder: Path
    texts: Mapping[str, str]
    chunks: int
    samples: int

    def base(self, model: str, seed: int) -> Path:
        return self.folder / f"{Path(model).stem}-{seed}.gguf"

    def spoiled(self, model: str, seed: int) -> Path:
        return self.folder / f"{Path(model).stem}-{seed}-outliers.gguf"


def prepare(setting: Setting, task: tuple[str, int]) -> None:
    """Write a model with its channels in an order, and with outliers."""
    base = setting.base(*task)
    write_order(resolve(task[0]), base, task[1])
    write_outliers(base, setting.spoiled(*task))


def measure(setting: Setting, task: tuple[str, str, Case, int]) -> dict[str, Any]:
    """A checkpoint's divergence from the model as it is, how large it is and how long it took."""
    _, model, case, seed = task
    base, method = setting.base(model, seed), None
    source = setting.spoiled(model, seed) if case.outliers else base
    if case != Case(case.scheme, PLAIN, outliers=case.outliers):
        method = SchemeMethod(
            setting.texts[model], case.method, case.rotate, samples=setting.samples, device="cpu",
            activations=case.activations,
        )
    with tempfile.TemporaryDirectory() as folder:
        made, begun = os.path.join(folder, "made"), time.perf_counter()
        report = quantize_checkpoint(source, made, case.scheme, method=method)
        seconds = time.perf_counter() - begun
        with open_subject(made, CONTEXT, device="cpu") as opened, open_subject(base, CONTEXT, device="cpu") as whole:
            kl = divergence(opened, whole, held_out(model), context=CONTEXT, chunks=setting.chunks).kl
    chosen: dict[str, int] = {}
    for how in [row.how for row in report.rows if row.how] + [f"scales: {row.how}" for row in report.scaled]:
        chosen[how] = chosen.get(how, 0) + 1
    dynamic = [name for found in report.inputs if not found.used for name in found.names]
    numbers = [name for found in report.inputs if found.scheme != case.scheme for name in found.names]
    return {
        "kl": [kl.value, kl.error], "bytes": report.nbytes, "seconds": seconds, "chosen": chosen, "dynamic": dynamic,
        "e4m3": numbers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["demo"])
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first order; 0 is as the channels are")
    parser.add_argument("--tables", default=TABLES)
    parser.add_argument("--chunks", type=int, default=12, help="windows of the held-out text")
    parser.add_argument("--samples", type=int, default=16, help="windows of the calibration text")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cores")
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {model: [] for model in options.models}
    seeds = range(options.first, options.first + options.orders)
    how = {"chunks": options.chunks, "samples": options.samples, "jobs": options.jobs, "factor": FACTOR}
    last = [options.tables.replace(",", "-")] * (options.tables != TABLES)
    with tempfile.TemporaryDirectory() as folder:
        texts = {model: calibration(model, Path(folder)) for model in rows}
        setting = Setting(Path(folder), texts, options.chunks, options.samples)
        list(results(partial(prepare, setting), [(model, seed) for model in rows for seed in seeds], options.jobs))
        tasks = [
            (table, model, case, seed)
            for table in options.tables.split(",") for model in rows for seed in seeds for case in cases(table)
        ]
        for (table, model, case, seed), found in results(partial(measure, setting), tasks, options.jobs):
            print(table, Path(model).stem, case, seed, found["kl"], f"{found['seconds']:.0f} s", flush=True)
            rows[model].append({"table": table, **asdict(case), "order": seed, **found})
            described = {**results_file.described(commit=options.commit), "model": Path(model).name, **how}
            name = "-".join(["scheme-methods", Path(model).stem, *last])
            results_file.write(name, {**described, "rows": rows[model]}, options.output)


if __name__ == "__main__":
    main()
