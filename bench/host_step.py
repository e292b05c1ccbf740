"""Measures what a step costs the host beside its kernels; writes bench/results/host-step-<date>.json.

    python bench/host_step.py [--rows 1,8,32,128] [--rounds N] [-o FOLDER]

The engine is that of the demo model on a backend whose kernels do nothing, but whose results say a token. So what is
left of a step is the host's: the scheduler, a step's arrays, the choice of tokens, what a server is told. On a
"device" steps run ahead as they do on a GPU, "host" reads each result as on a CPU. A round is 64 steps, in which each
reply fills a page; of many rounds the least counts, in the thread's own time. `calls` are those of functions in Python
and C in a step, which other programs do not change. What a GPU's driver takes to copy and to launch is in neither.

    greedy     replies of the likeliest tokens
    sampled    drawn among 40 candidates
    penalties  drawn, after a penalty for what a reply has
    mixed      greedy ones, beside a prompt of 128 tokens in each step, which then ends
    told       greedy ones, with the message that the engine's process sends for each step
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from cProfile import Profile
from itertools import count, pairwise
from pathlib import Path
from pstats import Stats
from typing import Any

import numpy as np

import results_file
from octavo.backends.reference import ReferenceBackend
from octavo.formats import QTensor
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.graph.protocol import Call
from octavo.io.model_path import resolve
from octavo.runtime import EngineConfig
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.loading import open_model
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from octavo.server.engine.engine_protocol import Add, Quit, StepOutputs, ToFront, encode
from octavo.server.worker import EngineLoop

STEPS = 64
CONTEXT, PROMPT = 1024, 128
TOKEN = 300
SAMPLED = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1)
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SAMPLED,
    "penalties": SamplingParams(temperature=0.8, top_k=40, repeat_penalty=1.1, seed=1),
    "mixed": SamplingParams(temperature=0.0),
    "told": SamplingParams(temperature=0.0),
}


class Nothing(ReferenceBackend):
    """Kernels that do nothing; what finds tokens gives one."""

    chooses = True

    def load(self, tensor: QTensor) -> Any:
        return None

    def alias(self, node: Node, value: Any, shape: tuple[int, ...]) -> Any:
        return value if node.op not in ("columns", "reshape") else super().alias(node, value, shape)

    def begin_plan(self, graph: Any) -> Any:
        return Calls()


class Device(Nothing):
    """The same, as a device beside the host."""

    def begin_read(self, value: AnyArray) -> Callable[[], AnyArray]:
        return value.copy

    def copy(self, target: AnyArray, source: AnyArray, places: Sequence[int] | None = None) -> None:
        found = source if places is None else source[list(places)]
        target.reshape(-1)[: found.size] = found.reshape(-1)


class Calls:
    """The one call of a plan, which fills its results."""

    def __init__(self) -> None:
        self._found: list[AnyArray] = []

    def bind(self, node: Node, inputs: Sequence[Any], out: AnyArray) -> Call:
        if node.op in ("top_candidates", "draw"):
            self._found.append(out)
        return self.fill

    def fill(self) -> None:
        for found in self._found:
            found[:, 0] = 0
            found[:, 1] = TOKEN
            found[:, 2:] = 0

    def finish(self) -> list[Call]:
        return [self.fill]


def model_on(device: bool, rows: int) -> Model:
    """The demo on a backend that computes nothing, for this many replies and a prompt beside them."""
    config = EngineConfig(n_ctx=CONTEXT, max_sequences=rows + 1, n_batch=512)
    return open_model(resolve("demo"), [Device() if device else Nothing()], config)


def prompts() -> Iterator[list[int]]:
    """Prompts that have no beginning in common."""
    rng = np.random.default_rng(0)
    for n in count():
        yield [3 + n % 1000, *rng.integers(3, 1000, PROMPT - 1).tolist()]


def stepping(kind: str, core: EngineCore, rows: int) -> Callable[[], object]:
    """Begin replies, and give what makes a step of theirs."""
    left, params = prompts(), KINDS[kind]
    for _ in range(rows):
        core.add(Request(next(left), make_sampler(params)))
    if kind != "mixed":
        return core.step

    def step() -> None:
        core.add(Request(next(left), make_sampler(params), 1))
        core.step()

    return step


def times(step: Callable[[], object], rounds: int) -> Iterator[float]:
    """The thread's time before the first round and after each."""
    for _ in range(rounds + 1):
        yield time.thread_time()
        for _ in range(STEPS):
            step()
    yield time.thread_time()


def times_told(model: Model, rows: int, rounds: int) -> list[float]:
    """The same, in the loop of an engine's process, which sends a message for each step."""
    sent, found, left = count(), list[float](), prompts()

    def send(message: ToFront) -> None:
        encode(message)
        if isinstance(message, StepOutputs) and next(sent) % STEPS == 0:
            found.append(time.thread_time())
            if len(found) == rounds + 2:
                loop.inbox.put(Quit())

    loop = EngineLoop(model, send, itl_target=0.0, embeddings=False)
    for one in range(rows):
        loop.inbox.put(Add([one], next(left), KINDS["told"], 0))
    loop.run()
    return found


def cost(where: str, kind: str, rows: int, rounds: int) -> tuple[float, int | None]:
    """Of a step, in the quickest of some rounds, the first of which does not count; and calls, but of kind "told"."""
    with model_on(where == "device", rows) as model:
        if kind == "told":
            found, calls = times_told(model, rows, rounds), None
        else:
            step = stepping(kind, EngineCore(model.engine, n_known=model.tokenizer.n_vocab), rows)
            found = list(times(step, rounds))
            with Profile() as profile:
                for _ in range(STEPS):
                    step()
            calls = Stats(profile).total_calls // STEPS  # type: ignore[attr-defined]
    return round(1e6 * min(b - a for a, b in pairwise(found[1:])) / STEPS, 1), calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,32,128")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    cases = []
    for where in ("device", "host"):
        for kind in KINDS:
            found = {rows: cost(where, kind, int(rows), asked.rounds) for rows in asked.rows.split(",")}
            each = {
                "microseconds": {n: us for n, (us, _) in found.items()},
                "calls": {n: c for n, (_, c) in found.items()},
            }
            cases.append({"where": where, "kind": kind, **each})
            print(cases[-1], flush=True)
    results_file.write("host-step", {**results_file.described(), "cases": cases}, asked.output)


if __name__ == "__main__":
    main()
