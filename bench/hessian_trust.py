"""What GPTQ's codes lose on other text, by tokens of calibration; writes bench/results/hessian-trust-<date>.json.

    python bench/hessian_trust.py MODEL.gguf TEXT.txt [--weights blk.4.ffn_down.weight,...] [--format Q4_0] [--rows 96]
                                  [-o FOLDER]

Windows of 512 tokens in a random order: the last eight judge. The error is the sum of squares of what products of some
rows give in the format less what they give, over the sum of squares of what they give: by the encoder with an
importance matrix, by GPTQ with the mean of x x^T, and with the Hessian that methods use (`ProductInput.hessian`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.backends import select
from octavo.bench import machine
from octavo.calibrate import gptq
from octavo.calibrate.hessian import Hessian
from octavo.calibrate.methods.gptq.gptq_quantize import encoded, values_of_planes
from octavo.calibrate.runner import Layerwise, Samples
from octavo.calibrate.runner.open_stage import ProductInput
from octavo.calibrate.texts import text_samples
from octavo.formats import by_name
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile
from octavo.models import read_model

CONTEXT, JUDGES, WINDOWS = 512, 8, (8, 16, 32, 64)


def vectors(model: str, text: str, weights: list[str]) -> dict[str, tuple[F32, F32]]:
    """Of each weight what it is given by all windows, [T, K], and its values."""
    with GGUFFile.open(model) as file:
        samples = text_samples(text, file, JUDGES + max(WINDOWS), CONTEXT, 0).samples
        order = np.random.default_rng(0).permutation(len(samples))
        run, found = Layerwise(read_model(file), select("cpu"), Samples([samples[i] for i in order])), {}
        for stage in run.run():
            for given in stage.inputs:
                for name in set(given.names) & set(weights):
                    found[name] = np.concatenate(list(given.batches())), stage.weight(name).copy()
            if len(found) == len(weights):
                break
    return found


def errors(name: str, x: F32, weight: F32, format_name: str) -> list[dict[str, Any]]:
    """A row for each number of windows."""
    fmt, judges = by_name(format_name), x[-JUDGES * CONTEXT :]
    outputs, rows = judges @ weight.T, []

    def wrong(planes: Any) -> float:
        return float(np.square(judges @ values_of_planes(planes, fmt).T - outputs).sum() / np.square(outputs).sum())

    for windows in WINDOWS:
        seen, plain = x[: windows * CONTEXT], Hessian(x.shape[1])
        plain.add(seen)
        squares = plain.diagonal().astype(np.float32)
        trusted = ProductInput((name,), x.shape[1], 0, seen, None).hessian()
        by_gptq, ours = (gptq(weight, h.matrix(), fmt, importance=squares).planes for h in (plain, trusted))
        rows.append({
            "weight": name, "format": format_name, "windows": windows, "kept": round(trusted.kept, 4),
            "imatrix": wrong(encoded(weight, fmt, squares, None)), "gptq without": wrong(by_gptq), "gptq": wrong(ours),
        })
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--weights", default="blk.4.ffn_down.weight,blk.4.attn_q.weight")
    parser.add_argument("--format", default="Q4_0")
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    found = vectors(options.model, options.text, options.weights.split(","))
    rows = [row for name, (x, w) in found.items() for row in errors(name, x, w[: options.rows], options.format)]
    described = results_file.described(commit=machine.commit())
    results_file.write("hessian-trust", {**described, "model": Path(options.model).stem, "rows": rows}, options.output)


if __name__ == "__main__":
    main()
