"""Measures what errors that make up for each other are worth; writes bench/results/compensation-kl-<date>.json.

    python bench/compensation_kl.py [--orders 8] [--presets Q4_0,...] [--methods gptq,qronos] [--chunks N]

The demo model in other orders of its channels, which change nothing but which weights share a block, is quantized by
the plain encoders, by those with an importance matrix, and by methods that compensate, with the types of the second
(Q4_0: of the first). Importance and Hessians are of questions that the model was trained on, divergence is of others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.evals import collect_imatrix, demo_text, divergence
from octavo.evals.compensation import Compensation
from octavo.evals.sensitivity import Measured
from octavo.evals.subject import open_subject
from octavo.quantizers import Target, quantize_file, quantize_to_size
from octavo.quantizers.imatrix import Imatrix
from quantizer_kl import CONTEXT, Orders

PRESETS = "Q4_0,Q4_K_M,IQ4_XS,Q3_K_M,Q2_K,4.5"
"""4.5 stands for --target-bpw 4.5."""


def importance(path: Path) -> Imatrix:
    with open_subject(path, CONTEXT, fuse=False) as model:
        return collect_imatrix(model, demo_text(model.tokenizer, "train").tokens, context=CONTEXT, chunks=32)


def make(source: Path, out: Path, preset: str, imatrix: Imatrix | None, method: Compensation | None) -> int:
    """Quantize, and give the bytes of all tensors."""
    if preset[0].isdigit():
        target, slopes = Target(float(preset)), Measured("demo", imatrix)
        return quantize_to_size(source, out, target, slopes=slopes, imatrix=imatrix, method=method).report.nbytes
    return quantize_file(source, out, preset, imatrix=imatrix, method=method).nbytes


def measure(source: Path, out: Path, preset: str, methods: list[str], chunks: int | None) -> dict[str, Any]:
    """Divergence from the source, bytes and seconds of each way to quantize it."""
    imatrix = importance(source)
    ways: dict[str, tuple[Imatrix | None, Compensation | None]] = {"plain": (None, None), "imatrix": (imatrix, None)}
    for kind in methods:
        ways[kind] = (None if preset == "Q4_0" else imatrix), Compensation("demo", kind)  # type: ignore[arg-type]
    found = {}
    for way, (weights, method) in ways.items():
        begun = time.perf_counter()
        nbytes = make(source, out, preset, weights, method)
        seconds = time.perf_counter() - begun
        with open_subject(out, CONTEXT) as model, open_subject(source, CONTEXT) as base:
            tokens = demo_text(base.tokenizer, "test").tokens
            kl = divergence(model, base, tokens, context=CONTEXT, chunks=chunks).kl
        found[way] = {"kl": [kl.value, kl.error], "bytes": nbytes, "seconds": seconds}
    return found


def ratio(orders: list[dict[str, Any]], way: str, base: str) -> list[float]:
    """The mean ratio of divergences over all orders, and what is added and taken for 95%."""
    logs = np.log([order[way]["kl"][0] / order[base]["kl"][0] for order in orders])
    spread = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return [float(np.exp(x)) for x in (logs.mean(), logs.mean() - spread, logs.mean() + spread)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=8)
    parser.add_argument("--presets", default=PRESETS)
    parser.add_argument("--methods", default="gptq,qronos")
    parser.add_argument("--chunks", type=int, default=None, help="windows of the held-out text (default: all)")
    options = parser.parse_args()
    methods, rows, orders = options.methods.split(","), [], Orders()
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source.gguf", Path(folder) / "out.gguf"
        for preset in options.presets.split(","):
            found = []
            for seed in range(options.orders):
                orders.write(source, seed)
                found.append(measure(source, out, preset, methods, options.chunks))
            ratios = {f"{way} over {base}": ratio(found, way, base) for way in methods for base in ("plain", "imatrix")}
            rows.append({"preset": preset, "ratios": ratios, "orders": found})
            print(preset, ratios, flush=True)
            described = results_file.described()
            results_file.write("compensation-kl", {**described, "chunks": options.chunks, "rows": rows})


if __name__ == "__main__":
    main()
