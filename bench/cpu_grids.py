"""Times products with grid and ternary formats next to Q4_K and writes
bench/results/cpu-grids-<level>-<date>.json, level being what the CPU has for dot products.

    python bench/cpu_grids.py [--threads T ...] [--tokens M ...] [--formats NAME ...] [--rounds R] [--commit HASH]
                              [-o FOLDER]

For each number of tokens and of threads all formats take turns, so that what else the machine does meets each alike.
With one token a matrix lies in as many copies as no cache holds, and a time is that of a product with one of them.
`speed` is the median of Q4_K's time over the median of the format's: 1 is as many weights a second. `gbps` is of the
weights as they lie in memory, `read_limit` what as many threads read of it at best. `error` is the mean squared error
of a product with a few rows over the mean square of that with the dequantized weights; activations are int8 in all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import results_file
from octavo.backends.cores import cores
from octavo.bench import machine
from octavo.bench.limits import read_limit
from octavo.bench.op_bench import COLD_BYTES
from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from octavo.formats.spec import AnyArray

BASE = "Q4_K"
FORMATS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0")
N, K = 4096, 14336
DRAWN, CHECKED, MOST_ERROR = 32, 20, 5e-4
"""Rows that are drawn, results that are checked, and the NMSE that they may have."""


class Matrix:
    """A packed matrix [N, K] of random rows, DRAWN of them again and again, in copies that take turns."""

    def __init__(self, name: str, threads: int) -> None:
        from octavo.backends.cpu.device.large_pages import Arena
        from octavo.backends.cpu.weights.pack import pack

        rng, fmt, arena = np.random.default_rng(0), by_name(name), Arena()
        drawn = quantize_reference(rng.standard_normal((DRAWN, K), dtype=np.float32) / np.float32(K**0.5), fmt)
        rows = drawn.data[np.arange(N) % DRAWN]
        self.name, self.values = name, dequantize(drawn)[:CHECKED].astype(np.float64)
        first: Any = pack(QTensor(fmt, (N, K), rows), threads, arena)
        self.copies = [first]
        while len(self.copies) * first.data.nbytes < COLD_BYTES:
            data = arena.take(first.data.nbytes).reshape(first.data.shape)
            data[:] = first.data
            self.copies.append(replace(first, data=data))

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        nbytes: int = self.copies[0].data.nbytes
        return nbytes

    def products(self, tokens: int, threads: int) -> tuple[Callable[[], float], float]:
        """What gives the seconds of one product with `tokens` tokens, and the product's error."""
        from octavo.backends.cpu.launch.calls import quantize_rows, tiles_of, x_stride
        from octavo.backends.cpu.launch.plan_memory import PlanMemory
        from octavo.backends.cpu.matmul.launch import product
        from octavo.jit.program import Program

        used = self.copies if tokens <= 16 else self.copies[:1]
        x = np.random.default_rng(1).standard_normal((tokens, K)).astype(np.float32)
        codes, y = np.empty((tokens, x_stride(used[0])), np.uint8), np.zeros((tokens, N), np.float32)
        Program([quantize_rows(x, codes, tiles_of(used[0])[0])], 1)()
        programs = [Program(product(w, codes, y, (), PlanMemory()), threads) for w in used]

        def seconds() -> float:
            start = time.perf_counter()
            for program in programs:
                program()
            return (time.perf_counter() - start) / len(programs)

        seconds()
        expected: AnyArray = x.astype(np.float64) @ self.values.T
        return seconds, float(((y[:, :CHECKED] - expected) ** 2).mean() / (expected**2).mean())


def rows_of(matrices: list[Matrix], tokens: int, threads: int, rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each matrix."""
    subjects = {m.name: m.products(tokens, threads) for m in matrices}
    times: dict[str, list[float]] = {m.name: [] for m in matrices}
    for _ in range(rounds):
        for name, (seconds, _error) in subjects.items():
            times[name].append(seconds())
    base = statistics.median(times[BASE])
    for m in matrices:
        median, error = statistics.median(times[m.name]), subjects[m.name][1]
        row = {
            "format": m.name, "tokens": tokens, "threads": threads, "microseconds": round(median * 1e6, 1),
            "weights_per_second": round(N * K / median), "speed": round(base / median, 3),
            "gbps": round(m.nbytes / median / 1e9, 2), "bits_per_weight": round(8 * m.nbytes / N / K, 3),
            "error": error, "passed": error < MOST_ERROR,
        }
        print(row, flush=True)
        yield row


def main() -> None:
    most = cores()
    counts = [t for t in (1, 2, 4, 8, 16, 32) if t <= most]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=counts)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    from octavo.jit import host_cpu
    from octavo.jit.prepare import prepare

    prepare()
    matrices = [Matrix(name, most) for name in (BASE, *options.formats)]
    result: dict[str, Any] = {
        **results_file.described(commit=options.commit), "level": host_cpu.level(), "n": N, "k": K,
        "rounds": options.rounds,
        "read_limit": {str(threads): round(read_limit(threads), 2) for threads in options.threads}, "products": [],
    }
    for tokens in options.tokens:
        for threads in options.threads if tokens <= 16 else options.threads[-1:]:
            result["products"] += rows_of(matrices, tokens, threads, options.rounds)
    results_file.write(f"cpu-grids-{host_cpu.level()}", result, options.output)


if __name__ == "__main__":
    main()
