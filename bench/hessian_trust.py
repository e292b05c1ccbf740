"""What GPTQ's codes lose on other text, by what of the text's correlations they go by; writes
bench/results/hessian-trust-<date>.json.

    python bench/hessian_trust.py MODEL.gguf TEXT.txt SAME-KIND [--other TEXT] [--layers 1,4] [--formats Q4_K,Q2_K]
                                  [--samples 32] [--rows 96] [-o FOLDER]

Weights of some layers, by a Hessian of windows of TEXT of which a share of what is beside the diagonal is kept: the
share that methods keep ("kept", `ProductInput.hessian`), and others. Errors are sums of squares of what products of
some rows give in the format less what they give, over those that the encoder with an importance matrix leaves, on
windows of two texts that codes were not made by: one of the same kinds (bench/calibration_text.py), and another, that
which comes with Octavo.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.backends import select
from octavo.bench import machine
from octavo.calibrate import gptq
from octavo.calibrate.gguf.gguf_method import GgufMethod
from octavo.calibrate.methods.gptq.gptq_quantize import encoded, values_of_planes
from octavo.calibrate.runner import Layerwise, Samples
from octavo.calibrate.runner.open_stage import ProductInput
from octavo.evals.judge.judged_text import SHIPPED, read_judged
from octavo.formats import by_name
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.text import Tokenizer

CONTEXT, JUDGES = 512, 12
SHARES = (1.0, 0.8, 0.65, 0.5, 0.3)
KINDS = ("attn_q", "attn_output", "ffn_gate", "ffn_down")


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each weight and format."""
    wanted = {f"blk.{layer}.{kind}.weight" for layer in options.layers.split(",") for kind in KINDS}
    with GGUFFile.open(options.model) as file:
        spec, tokenizer = read_model(file), Tokenizer.from_gguf(file)
        seen = GgufMethod(options.text, samples=options.samples)._samples(spec, tokenizer).tokens
        judges = [read_judged(name, tokenizer).tokens for name in (options.same, options.other)]
        windows = [tokens[i * CONTEXT : (i + 1) * CONTEXT] for tokens in judges for i in range(JUDGES)]
        for stage in Layerwise(spec, select("cpu"), Samples([*seen, *windows])).run():
            for given in stage.inputs:
                for name in wanted & set(given.names):
                    wanted.remove(name)
                    step = max(1, len(stage.weight(name)) // options.rows)
                    weight = stage.weight(name)[::step][: options.rows].copy()
                    vectors = np.concatenate(list(given.batches()))
                    yield from rows_of_weight(name, weight, vectors, options)
            if not wanted:
                return


def rows_of_weight(name: str, weight: F32, vectors: F32, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Of vectors the last windows are those to judge by, half of them of each text."""
    first = len(vectors) - 2 * JUDGES * CONTEXT
    judges = np.split(vectors[first:], 2)
    hessian = ProductInput((name,), weight.shape[1], 0, vectors[:first], None).hessian()
    squares, kept = hessian.diagonal().astype(np.float32), hessian.kept
    for format_name in options.formats.split(","):
        fmt, over = by_name(format_name), dict[str, list[float]]()

        def wrong(planes: Any, fmt: Any = fmt) -> Any:
            off = values_of_planes(planes, fmt) - weight
            return np.array([np.square(x @ off.T, dtype=np.float64).sum() for x in judges])

        least = wrong(encoded(weight, fmt, squares, None))
        for share in ("kept", *SHARES):
            hessian.kept = kept if share == "kept" else float(share)
            made = gptq(weight, hessian.matrix(), fmt, importance=squares).planes
            over[str(share)] = (wrong(made) / least).round(4).tolist()
        yield {"weight": name, "format": format_name, "kept": round(kept, 4), "over imatrix": over}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("same")
    parser.add_argument("--other", default=SHIPPED)
    parser.add_argument("--layers", default="1,4")
    parser.add_argument("--formats", default="Q4_K,Q2_K")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    rows = []
    for row in rows_of(options):
        rows.append(row)
        print(row, flush=True)
    described = results_file.described(commit=machine.commit())
    results_file.write("hessian-trust", {**described, "model": Path(options.model).stem, "rows": rows}, options.output)


if __name__ == "__main__":
    main()
