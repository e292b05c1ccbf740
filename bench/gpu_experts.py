"""Times products with many experts on the GPU backend and writes bench/results/gpu-experts-<date>.json.

    python bench/gpu_experts.py [--tokens 4 8 16 32 64 128 512 2048] [--weights gate-Q4_K ...]
        [--kernels experts_grouped] [--steps 1 512 2048] [--commit HASH] [-o FOLDER]

128 experts of which each token takes 8, with the widths of Qwen3 30B A3B, and 32 of which it takes 4, with those of
gpt-oss 20B. `rows` have products by each kernel that may be chosen for a number of tokens, with experts at random:
microseconds of each launch (what sorts pairs, what rounds rows, the product), the product's TFLOPS, and the GB/s of
reading the experts that have pairs once. `steps` are microseconds of a step of each number of tokens of one sequence,
captured, by a model of the former shape with 8 layers and random weights in Q4_K_M.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import results_file
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import q8_1, q8_1_bytes
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.experts import launch as experts
from octavo.backends.gpu.matmul.experts.expert_shapes import ExpertsGroupedShape, ExpertsHopperShape, ExpertsMmaShape
from octavo.backends.gpu.matmul.launch import product_by_id
from octavo.backends.gpu.matmul.product import Product
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.bench import gpu, machine, synthetic
from octavo.bench.profile import ready_engine, ready_step
from octavo.formats import by_name
from octavo.io.gguf import GGUFFile

SHAPE, LAYERS, DEPTH = "qwen3-30b-a3b", 8, 256
WEIGHTS = (
    ("gate", "Q4_K", 128, 8, 768, 2048), ("down", "Q4_K", 128, 8, 2048, 768), ("down", "Q6_K", 128, 8, 2048, 768),
    ("gate", "MXFP4", 32, 4, 2880, 2880),
)
"""Of each its name, format, experts, how many a token takes, and their rows and columns."""
FEW, GROUPED = 128, 512
"""The most tokens that kernels for a few are timed with, and those that read each expert once."""


def products(backend: GpuBackend, counts: list[int], wanted: list[str], kernels: str) -> list[dict[str, Any]]:
    """A row for each number of tokens, weight, and kernel whose name begins so."""
    rng, rows = np.random.default_rng(0), []
    for name, fmt, count, used, n, k in WEIGHTS:
        if f"{name}-{fmt}" not in wanted:
            continue
        w = backend.load(synthetic.random_matrix(name, by_name(fmt), (count, n, k), rng))
        assert isinstance(w, QuantWeight)
        for tokens in counts:
            ids = torch.from_numpy(np.argsort(rng.random((tokens, count)), 1)[:, :used].astype(np.int32)).cuda()
            read = len(torch.unique(ids)) * n * w.layout.row_bytes(w.kp)
            for kernel, shape in _shapes(w, tokens, used, backend.target.arch):
                if not kernel.startswith(kernels):
                    continue
                times = _launches(backend, w, shape, ids, used if name == "gate" else 1)
                rows.append({"tokens": tokens, "weights": name, "format": fmt, "kernel": kernel, "microseconds": times,
                             "tflops": 2e-6 * tokens * used * n * k / times[-1], "gb_per_s": 1e-3 * read / times[-1]})
                print(rows[-1], flush=True)
    return rows


def _shapes(w: QuantWeight, tokens: int, used: int, arch: str) -> Iterator[tuple[str, Any]]:
    """Kernels with their shapes; None is a matvec for each pair."""
    size = w.layout, w.n, w.kp, tokens * used / w.experts, arch
    p, average = Product(*size[:3], tokens, arch), tokens * used / w.experts
    if tokens <= FEW:
        yield "pairs", None
        for numbers in ExpertsMmaShape.space(p):
            yield "experts_mma " + " ".join(map(str, numbers)), ExpertsMmaShape.of(p, *numbers)
    portable = dispatch.portable_experts(*size)
    yield "experts", portable
    for numbers in ExpertsHopperShape.space(p):
        if (wide := ExpertsHopperShape.of(p, *numbers)) is not None:
            yield "experts_hopper " + " ".join(map(str, numbers)), wide
    if tokens <= GROUPED:
        for numbers in ExpertsGroupedShape.space(p):
            if (shape := ExpertsGroupedShape.of(p, *numbers)) is not None and shape.block_m <= 8 * max(1, average):
                yield "experts_grouped " + " ".join(map(str, numbers)), shape


def _launches(backend: GpuBackend, w: QuantWeight, shape: Any, ids: torch.Tensor, sharing: int) -> list[float]:
    """Microseconds of each launch of a product."""
    x = torch.randn((ids.numel() // sharing, w.k), device="cuda")
    out, c = torch.empty((*ids.shape, w.n), device="cuda"), Context(backend.target)
    taken = experts.Rows(x, Source(matrix(x)), "values", len(x))
    if shape is None:
        quantized = q8_1(torch.zeros(q8_1_bytes(len(x), w.kp, len(x)), dtype=torch.uint8, device="cuda"), len(x), w.kp,
                         len(x))
        calls = product_by_id(c, w, quantized, ids, out, sharing)
    else:
        calls = experts.product_in(c, shape, w, taken, ids, out, sharing)
    for call in calls:
        call()
    return [round(1e6 * statistics.median(gpu.seconds([call], 5)), 2) for call in calls]


def steps(counts: list[int]) -> list[dict[str, Any]]:
    """Microseconds of a step of this many tokens; of one token after DEPTH others."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path, shape = Path(folder) / "experts.gguf", replace(synthetic.SHAPES[SHAPE], n_layer=LAYERS)
        with patch.dict(synthetic.SHAPES, {"experts": shape}):
            synthetic.make("experts", "Q4_K_M", path)
        with GGUFFile.open(path) as file:
            for tokens in counts:
                depth = DEPTH if tokens == 1 else 0
                engine = ready_engine(file, "gpu", tokens, depth, "f16")
                with ready_step(engine, tokens, depth) as (plan, _):
                    times = gpu.node_times(plan)[0], *(gpu.node_times(plan)[0] for _ in range(5))
                rows.append({"tokens": tokens, "depth": depth, "microseconds": 1e6 * statistics.median(times[1:])})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128, 512, 2048])
    parser.add_argument("--weights", nargs="+", default=[f"{name}-{fmt}" for name, fmt, *_ in WEIGHTS])
    parser.add_argument("--kernels", default="")
    parser.add_argument("--steps", type=int, nargs="*", default=[1, 512, 2048])
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    backend = GpuBackend()
    described = results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit)
    rows = products(backend, options.tokens, options.weights, options.kernels)
    found = {"rows": rows, "steps": steps(options.steps)}
    results_file.write("gpu-experts", {**described, **found}, options.output)


if __name__ == "__main__":
    main()
