"""Finds what each kernel of a layer takes of a decode step on a GPU and writes bench/results/gpu-layers-<date>.json.

    python bench/gpu_layers.py [FORMAT ...] [--shape llama3-8b] [--layers 6] [--commit HASH] [-o FOLDER]

Of each format a model of so few layers is made, all of whose matrices are of the format. A step of one sequence, with
256 tokens before it, is what the device takes by its own clock, the median of rounds. A kernel's microseconds are from
the end of the kernel before it to its own end, since kernels begin before the ones before them end: a layer's add up to
the layer. They are medians of steps, and means of the layers that are neither first nor last.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import gpu_steps
import results_file
from octavo.backends.gpu import GpuBackend
from octavo.bench import gpu, machine, synthetic
from octavo.bench.subject import tokens
from octavo.graph.plan import Plan
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence as Tokens
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig

FORMATS = ("Q4_K", "Q4_0", "Q8_0", "IQ4_XS", "IQ3_XXS", "IQ3_S")
DEPTH, STEPS = 256, 12


def layer_of(names: Sequence[str], layers: int) -> tuple[int, int]:
    """The first kernel of the first layer, and the number of kernels of a layer, in the names of a step's kernels.

    Raises ValueError where no pattern comes back so often.
    """
    for count in range(1, len(names) // layers + 1):
        for first in range(len(names) - count * layers + 1):
            of_layers = names[first : first + count * layers]
            if of_layers[count:] == of_layers[:-count] and len(set(of_layers)) > 1:
                return first, count
    raise ValueError(f"a step's {len(names)} kernels do not make {layers} equal layers")


def kernels_of(plan: Plan) -> tuple[list[str], list[float]]:
    """The names of a step's kernels, and the microseconds that each adds to it."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(STEPS):
            for step in plan.steps:
                step()
        torch.cuda.synchronize()
    events = [e for e in profiled.profiler.kineto_results.events() if e.device_type().name == "CUDA"]
    ends = sorted((e.start_ns() + e.duration_ns(), e.name()) for e in events)
    each = len(ends) // STEPS
    taken = [(end - before) / 1e3 for (before, _), (end, _) in pairwise(ends)]
    per_kernel = [taken[each - 1 + i :: each] for i in range(each)]  # without the first step
    return [name for _, name in ends[each : 2 * each]], [statistics.median(times) for times in per_kernel]


def measure(backend: GpuBackend, path: Path, layers: int) -> dict[str, Any]:
    """A step's microseconds, and those of a layer's kernels."""
    with GGUFFile.open(path) as file:
        config = EngineConfig(n_ctx=DEPTH + 64, max_sequences=1, n_outputs=1, strict=True)
        engine = Engine(read_model(file), [backend], config)
        prompt, sequence = tokens(DEPTH, engine.model.hparams.n_vocab, seed=0), Tokens()
        engine.prefill(sequence, prompt)
        plan = gpu_steps.plan_of(engine, [Feed(sequence, prompt[-1:])])
        step = 1e3 * gpu_steps.milliseconds_of(plan)
        names, times = kernels_of(plan)
    first, count = layer_of(names, layers)
    inner = range(first + count, first + count * (layers - 1))
    kernels = [
        {"kernel": names[first + i], "microseconds": round(statistics.mean(times[j] for j in inner[i::count]), 2)}
        for i in range(count)
    ]
    return {"step_microseconds": round(step, 1), "layer": kernels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", default=FORMATS, metavar="FORMAT")
    parser.add_argument("--shape", choices=sorted(synthetic.SHAPES), default="llama3-8b")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    if options.layers < 3:
        parser.error("--layers: 3 at least, as the first and the last are left out")
    synthetic.SHAPES["layers"] = replace(synthetic.SHAPES[options.shape], n_layer=options.layers)
    backend = GpuBackend()
    described = results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit)
    rows = []
    with TemporaryDirectory() as folder:
        for name in options.formats:
            path = Path(folder, f"{name}.gguf")
            synthetic.make("layers", name, path)
            rows.append({"format": name, **measure(backend, path, options.layers)})
            path.unlink()
            torch.cuda.empty_cache()
            layer = " ".join(f"{k['kernel'].removesuffix('_kernel')} {k['microseconds']}" for k in rows[-1]["layer"])
            print(f"{name}: {rows[-1]['step_microseconds']} us: {layer}", flush=True)
    result = {**described, "shape": options.shape, "layers": options.layers, "context": DEPTH, "rows": rows}
    results_file.write("gpu-layers", result, options.output)


if __name__ == "__main__":
    main()
