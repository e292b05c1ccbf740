"""Times decoding at a depth with types of the KV cache in turns on the CPU, to bench/results/cache-speed-<day>.json.

    python bench/cache_speed.py MODEL.gguf [--types f16,int8] [--depth N] [--turns N] [--steps N] [--threads N]

Each type has an engine of its own in this process. A turn is that many decode steps of each, one sequence, in the order
A B B A. No prompt of that length is run: the keys and values of a page are written to all others, each to memory of its
own (memory that nothing was written to is one page of zeros, which a cache holds). `ratio` is the median over turns of
the first type's time over the other's; `quartiles` those of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import results_file
from octavo.bench.profile import ready_engine
from octavo.graph.node import PAGE_SIZE
from octavo.io.gguf import GGUFFile
from octavo.runtime import Engine
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed


def ready(file: GGUFFile, kv: Any, depth: int, steps: int, threads: int | None) -> tuple[Engine, Sequence]:
    """An engine, and a sequence of `depth` tokens in it, which are those of a page again and again."""
    engine, sequence = ready_engine(file, "cpu", steps, depth, kv, threads), Sequence()
    engine.prefill(sequence, list(range(1, PAGE_SIZE + 1)))
    engine.pool.grow(sequence, depth)
    for page in sequence.pages[1:]:
        engine.load().copy_page(page, sequence.pages[0])
    sequence.tokens.extend([0] * (depth - PAGE_SIZE))
    return engine, sequence


def decode(engine: Engine, sequence: Sequence, steps: int) -> float:
    """Seconds a step, the sequence as it was afterwards."""
    depth, started = len(sequence), time.perf_counter()
    for token in range(steps):
        engine.step([Feed(sequence, [token + 1], 1)])
    found = (time.perf_counter() - started) / steps
    engine.pool.shrink(sequence, depth)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--types", default="f16,int8")
    parser.add_argument("--depth", type=int, default=16384)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    types = options.types.split(",")
    with GGUFFile.open(options.model) as file:
        made = {kv: ready(file, kv, options.depth, options.steps, options.threads) for kv in types}
        for engine, sequence in made.values():
            decode(engine, sequence, 2)
        times: dict[str, list[float]] = {kv: [] for kv in types}
        for turn in range(options.turns):
            for kv in types if turn % 2 == 0 else reversed(types):
                times[kv].append(decode(*made[kv], options.steps))
    first = times[types[0]]
    ratios = {kv: [a / b for a, b in zip(first, times[kv], strict=True)] for kv in types[1:]}
    result = {
        **results_file.described(), "model": Path(options.model).name, "depth": options.depth,
        "tokens_per_second": {kv: 1 / statistics.median(found) for kv, found in times.items()},
        "ratio": {kv: statistics.median(found) for kv, found in ratios.items()},
        "quartiles": {kv: statistics.quantiles(found, n=4)[::2] for kv, found in ratios.items()},
        "seconds": times,
    }
    results_file.write("cache-speed", result, options.output)


if __name__ == "__main__":
    main()
