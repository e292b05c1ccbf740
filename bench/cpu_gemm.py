"""Times products of 8-bit numbers on the CPU against float32 BLAS and writes bench/results/cpu-gemm-<date>.json.

    python bench/cpu_gemm.py [--schemes NAME ...] [--rounds R] [-o FOLDER]

Operands are Gaussian, quantized before; both products use all cores that the process may. In each round ours and the
library's are timed in turn, each for a while, and the medians of the rounds count, of the ratio too. With one token,
weights lie in as many copies as no cache holds, which take turns. `gbps` is of what a product reads and writes, and
`share_of_limit` of the time that reading it, or multiplying in the first cache, would take, measured in between.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

import results_file
from octavo.backends.cores import cores
from octavo.bench.gemm import gemm_limits, measure

PRODUCTS = ((512, 4096, 4096), (1, 4096, 4096), (1, 4096, 14336))
SCHEMES = ("int8", "w4a8", "w4a8-g128", "fp8")
SECONDS = 0.3


def measured(scheme: str, m: int, n: int, k: int, rounds: int) -> dict[str, Any]:
    """A row: times of both, their ratio, and errors."""
    x, w = measure.drawn(m, n, k)
    subject = measure.subject_of(scheme, x, w, "cpu")
    errors = measure.errors(subject, x, w)
    ours = subject.calls(measure.copies_of(m, subject.weight_bytes))
    ((name, library),) = measure.library_calls(scheme, x, w, subject.operands, "cpu").items()
    times, library_times = [], []
    for _ in range(rounds):
        times.append(measure.median_seconds(ours, "cpu"))
        library_times.append(measure.median_seconds(library, "cpu"))
    seconds, operations = statistics.median(times), 2 * m * n * k
    ratios = [theirs / own for own, theirs in zip(times, library_times, strict=True)]
    limit = gemm_limits.limit(operations, subject.bytes, cores(), scheme)
    row: dict[str, Any] = {
        "scheme": scheme, "m": m, "n": n, "k": k, "microseconds": seconds * 1e6, "gops": operations / seconds / 1e9,
        "gbps": subject.bytes / seconds / 1e9, **measure.share(limit, seconds), "library": name,
        "library_microseconds": statistics.median(library_times) * 1e6, "ratio": statistics.median(ratios),
        "ratios": ratios, **errors,
    }
    share = "" if limit is None else f", {row['share_of_limit']:.0%} of {row['limit']}"
    print(
        f"{scheme:10} {m:4} x {n} x {k}: {seconds * 1e6:9.1f} us {row['gops']:6.0f} GOPS {row['gbps']:5.1f} GB/s"
        f"{share}, {name} {row['library_microseconds']:9.1f} us, {row['ratio']:.2f}x",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", nargs="*", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    measure.SECONDS = SECONDS
    rows = [measured(scheme, *size, options.rounds) for size in PRODUCTS for scheme in options.schemes]
    blas: dict[str, Any] = next((info for info in threadpool_info() if info["user_api"] == "blas"), {})
    result: dict[str, Any] = {
        **results_file.described(blas=f"{blas.get('internal_api')} {blas.get('version')}"),
        "threads": {"ours": cores(), "blas": blas.get("num_threads")},
        "products": rows,
    }
    results_file.write("cpu-gemm", result, options.output)


if __name__ == "__main__":
    main()
