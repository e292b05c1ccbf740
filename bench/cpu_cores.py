"""Measures how a model uses many cores, and writes bench/results/cpu-cores-<date>.json.

    python bench/cpu_cores.py MODEL... [--threads 16 8 4 2 1] [--prompts]

For each model and number of threads: tokens a second of one sequence after 64 tokens, the bytes of weights that a token
reads and their share of the read limit, which is measured before and after; with `--prompts` a prompt of 512 tokens.
For the largest number of threads also where a step is: for each kernel milliseconds of a step, of which a thread works
and waits, mean of all threads, and gigabytes of weights a second. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from typing import Any

import numpy as np

import octavo
import results_file
from octavo.backends.cores import cores
from octavo.bench.cost import total
from octavo.bench.limits import read_limit
from octavo.bench.profile import ready_step
from octavo.bench.subject import EngineSubject
from octavo.jit.program import Program, timed
from octavo.runtime.engine.engine import Engine

DEPTH, STEPS, ROUNDS = 64, 8, 7


def measure(path: str, threads: int, prompts: bool, calls: bool) -> dict[str, Any]:
    """A model with one number of threads."""
    with octavo.load(path, device="cpu", threads=threads, n_ctx=1024) as model:
        subject = EngineSubject(model.engine)
        with ready_step(model.engine, 1, DEPTH) as (plan, load):
            nbytes = total((node for node, _ in plan.calls), load).weights
        found: dict[str, Any] = {"file": os.path.basename(path), "threads": threads, "bytes": nbytes}
        if prompts:
            subject.prefill(512)
            found["prompt_512"] = 512 / min(subject.prefill(512) for _ in range(3))
        subject.prepare(DEPTH, 1)
        subject.decode(2)
        before = read_limit(threads)
        seconds = [subject.decode(STEPS) / STEPS for _ in range(ROUNDS)]
        found["read_limits"] = [before, read_limit(threads)]
        found["seconds"] = {"median": statistics.median(seconds), "rounds": seconds}
        found["gbps"] = nbytes / statistics.median(seconds) / 1e9
        found["share"] = found["gbps"] / max(found["read_limits"])
        if calls:
            found["calls"] = by_kernel(model.engine)
        return found


def by_kernel(engine: Engine, new: int = 1, depth: int = DEPTH, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Where a step of `new` tokens after others is, the longest first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 5)
    with ready_step(engine, new, depth) as (plan, _):
        for program in plan.steps:
            assert isinstance(program, Program)
            program()
            with timed(program) as times:
                for _ in range(rounds):
                    start = time.perf_counter()
                    program()
                    seconds = time.perf_counter() - start
                    add(sums, program, times, seconds)
    names = "calls", "ms", "work_ms", "wait_ms", "gb"
    rows: list[dict[str, Any]] = []
    for kernel, found in sums.items():
        row: dict[str, Any] = {"kernel": kernel, **dict(zip(names, (x / rounds for x in found), strict=True))}
        row["gbps"] = row.pop("gb") / max(row["ms"], 1e-9) * 1e3
        rows.append(row)
    return sorted(rows, key=lambda row: -row["ms"])


def add(sums: dict[str, list[float]], program: Program, times: Any, seconds: float) -> None:
    """Add a run to the sums of its kernels. Its ticks span as many seconds, but for waking the threads."""
    to_ms = seconds * 1e3 / float(times.max() - times.min())
    last = float(times.min())
    for call, of_call in zip(program.calls, times.transpose(0, 2, 1), strict=True):
        end = max(last, float(of_call[2].min()))  # the first thread goes on when all is done, or taken
        began, worked = np.clip(of_call[:2], last, end)
        numbers = 1.0, (end - last) * to_ms, (worked - began).mean() * to_ms, (end - worked).mean() * to_ms
        row = sums[f"{call.kernel.factory.__name__} {call.kernel.constants} {call.tasks} tasks"]
        for i, number in enumerate((*numbers, call.reads[1] * call.tasks / 1e9)):
            row[i] += float(number)
        last = end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[cores()])
    parser.add_argument("--prompts", action="store_true")
    options = parser.parse_args()
    most = max(options.threads)
    rows = [measure(path, n, options.prompts, n == most) for path in options.models for n in options.threads]
    for row in rows:
        print(f"{row['file']}, {row['threads']} threads: {row['gbps']:.1f} GB/s, {row['share']:.1%}")
    results_file.write("cpu-cores", {**results_file.described(), "models": rows})


if __name__ == "__main__":
    main()
