"""Times products with grid and ternary formats next to Q4_K on a GPU and writes bench/results/gpu-grids-<date>.json.

    python bench/gpu_grids.py [--tokens M ...] [--formats NAME ...] [--rounds R] [--models FOLDER] [--commit HASH]
                              [-o FOLDER]

All formats of a shape take turns, in copies that no cache holds, as in `gpu_ops.py`. `speed` is the median of Q4_K's
time over the median of the format's: 1 is as many weights a second. `bits_per_weight` is of weights as they lie on the
device, `of_file` how many times that of the file; `gbps` of what the product reads of them.

With a FOLDER models of Llama 3 8B's shape are made there one after the other, all of whose matrices are of one format,
and `steps` has what a step of one sequence takes of each, with 256 tokens before it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import gpu_ops
import gpu_steps
import results_file
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.launch import product
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.bench import gpu, machine, random_products
from octavo.bench.synthetic import make
from octavo.formats.group import row_named

BASE = "Q4_K"
FORMATS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0")
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))
MODEL, DEPTH = "llama3-8b", 256


def timer(context: Context, copies: Sequence[QuantWeight], tokens: int) -> Callable[[], float]:
    """What gives the seconds of one product with `tokens` tokens."""
    n, k = copies[0].n, copies[0].k
    x, y = random_products.activations(context, tokens, k), torch.empty(tokens, n, device="cuda")
    used = copies if tokens <= 32 else copies[:4]
    calls = [gpu_ops.together(product(context, w, x, y, ())) for w in used]
    return lambda: gpu_ops.seconds(calls)


def rows_of(
    backend: GpuBackend, shape: tuple[int, int], formats: Sequence[str], tokens: Sequence[int], rounds: int
) -> Iterator[dict[str, Any]]:
    """A row for each number of tokens and format, of matrices of a shape."""
    (n, k), context = shape, Context(backend.target)
    made = {name: random_products.matrix(backend, row_named(name), n, k) for name in (BASE, *formats)}
    copies = {name: random_products.copies(weight, nbytes) for name, (weight, nbytes) in made.items()}
    for count in tokens:
        timers = {name: timer(context, of, count) for name, of in copies.items()}
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds):
            for name, measure in timers.items():
                times[name].append(measure())
        base = statistics.median(times[BASE])
        for name, (weight, nbytes) in made.items():
            median = statistics.median(times[name])
            row = {
                "format": name, "n": n, "k": k, "tokens": count, "microseconds": round(median * 1e6, 3),
                "weights_per_second": round(n * k / median), "speed": round(base / median, 3),
                "bits_per_weight": round(8 * weight.nbytes / n / k, 3), "of_file": round(weight.nbytes / nbytes, 3),
                "gbps": round(weight.nbytes / median / 1e9),
            }
            print(row, flush=True)
            yield row


def steps(backend: GpuBackend, folder: Path, formats: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each format: the step of a model of it."""
    rows: list[dict[str, Any]] = []
    for name in (BASE, *formats):
        path = folder / f"{MODEL}-{name.lower()}.gguf"
        make(MODEL, name, path)
        nbytes = path.stat().st_size
        milliseconds = gpu_steps.measure(path, backend, [1], DEPTH)[0]["milliseconds"]
        path.unlink()
        torch.cuda.empty_cache()
        speed = round(rows[0]["milliseconds"] / milliseconds, 3) if rows else 1.0
        rows.append(
            {"model": MODEL, "format": name, "bytes": nbytes, "milliseconds": round(milliseconds, 4), "speed": speed}
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 32, 512])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", type=Path, help="a folder with room for a model of 5 GB")
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    backend = GpuBackend()
    result: dict[str, Any] = {
        **results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit),
        "rounds": options.rounds, "read_limit_gbps": round(gpu.read_limit()), "products": [],
    }
    for shape in SHAPES:
        result["products"] += rows_of(backend, shape, options.formats, options.tokens, options.rounds)
        torch.cuda.empty_cache()
    if options.models is not None:
        result["steps"] = steps(backend, options.models, options.formats)
    results_file.write("gpu-grids", result, options.output)


if __name__ == "__main__":
    main()
