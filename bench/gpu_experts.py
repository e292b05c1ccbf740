"""Times products with many experts on the GPU backend and writes bench/results/gpu-experts-<date>.json.

    python bench/gpu_experts.py [--tokens 128 256 512 2048] [--steps 1 512 2048] [--commit HASH] [-o FOLDER]

128 experts of which each token takes 8, with the widths of Qwen3 30B A3B. `rows` have products by the portable kernel
and, where there is one, by that for compute capability 9.0, with experts at random: microseconds of each launch (what
sorts pairs, what makes rows float16, the product), and the product's TFLOPS. `steps` are microseconds of a step of so
many tokens of one sequence, captured, by a model of that shape with 8 layers and random weights in Q4_K_M.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
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
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.experts import launch as experts
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.bench import gpu, machine, synthetic
from octavo.bench.profile import ready_engine, ready_step
from octavo.formats import by_name
from octavo.io.gguf import GGUFFile

SHAPE, LAYERS, DEPTH = "qwen3-30b-a3b", 8, 256
EXPERTS, USED = 128, 8
WEIGHTS = (("gate", "Q4_K", 768, 2048), ("down", "Q4_K", 2048, 768), ("down", "Q6_K", 2048, 768))


def products(backend: GpuBackend, counts: list[int]) -> list[dict[str, Any]]:
    """A row for each number of tokens, weight and kernel."""
    rng, rows = np.random.default_rng(0), []
    for name, fmt, n, k in WEIGHTS:
        w = backend.load(synthetic.random_matrix(name, by_name(fmt), (EXPERTS, n, k), rng))
        assert isinstance(w, QuantWeight)
        for tokens in counts:
            size = w.layout, n, w.kp, tokens * USED / EXPERTS, backend.target.arch
            shapes = dict.fromkeys((dispatch.portable_experts(*size), dispatch.experts(*size)))
            for shape in shapes:
                with patch.object(dispatch, "experts", return_value=shape):
                    times = _launches(backend, w, tokens, USED if name == "gate" else 1, rng)
                flops = 2e-6 * tokens * USED * n * k / times[-1]
                rows.append({"tokens": tokens, "weights": name, "format": fmt, "kernel": shape.name,
                             "microseconds": times, "tflops": flops})
                print(rows[-1], flush=True)
    return rows


def _launches(backend: GpuBackend, w: QuantWeight, tokens: int, sharing: int, rng: np.random.Generator) -> list[float]:
    """Microseconds of each launch of a product."""
    ids = torch.from_numpy(np.argsort(rng.random((tokens, EXPERTS)), 1)[:, :USED].astype(np.int32)).cuda()
    x = torch.randn((tokens * USED // sharing, w.k), device="cuda")
    out = torch.empty((tokens, USED, w.n), device="cuda")
    taken = experts.Rows(x, Source(matrix(x)), "values", len(x))
    calls = experts.sorted_product(Context(backend.target), w, taken, ids, out, sharing)
    for call in calls:
        call()
    return [1e6 * statistics.median(gpu.seconds([call], 5)) for call in calls]


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
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 256, 512, 2048])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 512, 2048])
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    backend = GpuBackend()
    described = results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit)
    found = {"rows": products(backend, options.tokens), "steps": steps(options.steps)}
    results_file.write("gpu-experts", {**described, **found}, options.output)


if __name__ == "__main__":
    main()
