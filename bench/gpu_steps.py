"""Times decode steps of many sequences on the GPU backend and writes bench/results/gpu-steps-<date>.json.

    python bench/gpu_steps.py MODEL.gguf [--sequences 1 8 ...] [--context 256] [--commit HASH] [-o FOLDER]

Each sequence has as many tokens behind it, and its next one is the likeliest. A step is what the device takes by its
own clock, the choice of tokens included, in milliseconds: the median of rounds of steps, one after the other.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

import results_file
from octavo.backends.gpu import GpuBackend
from octavo.bench import gpu, machine
from octavo.bench.subject import tokens
from octavo.graph.plan import Plan
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.greedy import greedy
from octavo.runtime.sampling.top_k import BEST

SEQUENCES = (1, 8, 12, 16, 32, 64, 128, 256)
ROUNDS, STEPS = 7, 16


def measure(path: Path, backend: GpuBackend, counts: list[int], context: int) -> list[dict[str, Any]]:
    """A row for each number of sequences: milliseconds of a step, and tokens a second."""
    with GGUFFile.open(path) as file:
        most = max(counts)
        config = EngineConfig(n_ctx=context + 64, max_sequences=most, n_outputs=most, strict=True)
        engine = Engine(read_model(file), [backend], config)
        sequences, last = [Sequence() for _ in range(most)], []
        for i, sequence in enumerate(sequences):
            prompt = tokens(context, engine.model.hparams.n_vocab, seed=i)
            engine.prefill(sequence, prompt)
            last.append(prompt[-1:])
        rows = []
        for count in counts:
            feeds = [Feed(s, token) for s, token in zip(sequences[:count], last, strict=False)]
            milliseconds = milliseconds_of(plan_of(engine, feeds))
            rows.append(
                {"sequences": count, "milliseconds": milliseconds, "tokens_per_second": 1e3 * count / milliseconds}
            )
            print(rows[-1], flush=True)
        return rows


def plan_of(engine: Engine, feeds: list[Feed]) -> Plan:
    """The plan of a step, which has run."""
    with closing(greedy(engine, feeds)) as chosen:
        for _ in range(3):
            next(chosen)
    count = len(feeds)
    sizes = {"tokens": count, "outputs": count, "sequences": count, "boundaries": count + 1}
    return engine.load().plan(sizes, (BEST,))


def milliseconds_of(plan: Plan) -> float:
    """The device's milliseconds of a step."""
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)
        start.record()
        for _ in range(STEPS):
            for step in plan.steps:
                step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / STEPS)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sequences", type=int, nargs="+", default=SEQUENCES)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    backend = GpuBackend()
    described = results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit)
    rows = measure(options.model, backend, sorted(options.sequences), options.context)
    result = {**described, "model": options.model.name, "context": options.context, "steps": rows}
    results_file.write("gpu-steps", result, options.output)


if __name__ == "__main__":
    main()
