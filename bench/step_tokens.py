"""Times steps of a few tokens of one sequence, as drafts make them.

    python bench/step_tokens.py MODEL... [--device cpu|gpu] [--threads N] [--tokens 1,2,3,4,6,8] [--depth N] [-o FOLDER]

A step computes its tokens with logits at each, and finds the likeliest. Numbers of tokens take turns, forth and back;
`factor` is the median of a step's time over that of a step of one token in the same round, with the quartiles. The
result is bench/results/step-tokens-<model>-<date>.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import results_file
from octavo import load
from octavo.backends.cores import cores
from octavo.bench.machine import commit
from octavo.bench.subject import tokens
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.top_k import BEST

SECONDS = 0.2
"""About how long a turn takes."""


def timed(engine: Engine, sequence: Sequence, n: int, steps: int) -> float:
    """Seconds of a step of n tokens, which are not kept."""
    feed = Feed(sequence, tokens(n, engine.model.hparams.n_vocab, seed=n), n)
    with engine.lock:
        start = time.perf_counter()
        for _ in range(steps):
            engine.launch([feed], (BEST,), check=False).read()
        return (time.perf_counter() - start) / steps


def measured(engine: Engine, numbers: list[int], depth: int, rounds: int) -> list[dict[str, Any]]:
    """A case for each number of tokens."""
    sequence = Sequence()
    engine.prefill(sequence, tokens(depth, engine.model.hparams.n_vocab))
    once = {n: min(timed(engine, sequence, n, 1) for _ in range(3)) for n in numbers}
    found: dict[int, list[float]] = {n: [] for n in numbers}
    for turn in range(rounds):
        for n in numbers if turn % 2 == 0 else numbers[::-1]:
            found[n].append(timed(engine, sequence, n, max(1, round(SECONDS / once[n]))))
    engine.pool.release(sequence)
    cases = []
    for n, seconds in found.items():
        factors = [mine / one for mine, one in zip(seconds, found[numbers[0]], strict=True)]
        low, middle, high = statistics.quantiles(factors, n=4)
        cases.append({
            "tokens": n, "ms": round(1e3 * statistics.median(seconds), 3), "least_ms": round(1e3 * min(seconds), 3),
            "factor": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)],
            "least_factor": round(min(seconds) / min(found[numbers[0]]), 3),
        })
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--tokens", default="1,2,3,4,6,8")
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    numbers = [int(n) for n in asked.tokens.split(",")]
    for model in asked.models:
        with load(model, device=asked.device, threads=asked.threads, n_ctx=asked.depth + max(numbers)) as opened:
            cases = measured(opened.engine, numbers, asked.depth, asked.rounds)
        for case in cases:
            print(Path(model).name, case, flush=True)
        what = {"model": Path(model).name, "device": asked.device, "threads": asked.threads, "depth": asked.depth}
        described = results_file.described(commit=asked.commit)
        results_file.write(f"step-tokens-{Path(model).stem.lower()}", described | what | {"cases": cases}, asked.output)


if __name__ == "__main__":
    main()
