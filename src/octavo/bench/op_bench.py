"""Single ops against the clock, weights read from memory as in a model, not from a cache."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from octavo.bench.cases import Built, OpCase, executor
from octavo.bench.cost import Cost, OpLoad, total
from octavo.bench.others import LoadWatch
from octavo.graph.node import Node
from octavo.graph.plan import Plan
from octavo.graph.protocol import Backend

COLD_BYTES = 256 << 20
"""Weights of all copies that take turns: more than caches hold."""
MOST_COPIES = 32
ENOUGH_ROUNDS, ENOUGH_SECONDS = 200, 0.5


def time_cases(
    cases: Sequence[OpCase], backends: Sequence[Backend], *, limit: Callable[[], float] | None = None,
    seconds: float = ENOUGH_SECONDS,
) -> Iterator[dict[str, Any]]:
    """A row for each case: name, op, formats, tokens, seconds (median), rounds, gbps, gops, share_of_read_limit,
    others_cpu (the share of the CPU that other programs took, or None).

    gbps is of the weights as the file stores them, and of the KV cache. `limit` measures the read limit, GB/s, before
    and after each case; the most counts. Weights of up to 16 tokens lie in as many copies as no cache holds, which take
    turns. On a GPU its own events are the clock. Raises GraphError for a case that the first backend can't run.
    """
    most = limit() if limit and cases else 0.0
    for case in cases:
        watch = LoadWatch([os.getpid()])
        times, does = _time(case, backends, seconds)
        most, others = max(most, limit()) if limit else 0.0, watch.others()
        median = statistics.median(times)
        gbps = (does.weights + does.cache) / median / 1e9
        yield {
            "name": case.name, "op": case.op, "formats": list(case.formats), "tokens": case.tokens,
            "seconds": median, "rounds": len(times), "gbps": gbps, "gops": does.operations / median / 1e9,
            "share_of_read_limit": gbps / most if most else None, "others_cpu": others,
        }


def _time(case: OpCase, backends: Sequence[Backend], seconds: float) -> tuple[list[float], Cost]:
    if backends[0].name == "gpu":
        from octavo.bench import gpu

        if gpu.has_events(backends[0]):
            return _time_on_gpu(case)
    built = case.build()
    plans, does = plans_of(case, built, backends)
    times: list[float] = []
    end = time.perf_counter() + seconds
    for plan in itertools.cycle(plans):
        start = time.perf_counter()
        for step in plan.steps:
            step()
        for backend in backends:
            backend.synchronize()
        times.append(time.perf_counter() - start)
        if len(times) >= ENOUGH_ROUNDS or time.perf_counter() > end:
            break
    return times, does


def plans_of(case: OpCase, built: Built, backends: Sequence[Backend]) -> tuple[list[Plan], Cost]:
    """The plans of the case's last step, all of which have run, over weights of their own each."""
    ready = executor(built, backends)
    does = _cost(case, built, ready.schedule.graph.nodes)
    copies = 1
    if case.tokens <= 16 and does.weights:
        copies = min(MOST_COPIES, -(-COLD_BYTES // does.weights))
    executors = [ready, *(executor(built, backends) for _ in range(copies - 1))]
    for each in executors:
        for inputs, sizes in built.steps:
            each.run(inputs, sizes)
    return [each.plan(built.steps[-1][1]) for each in executors], does


def _time_on_gpu(case: OpCase) -> tuple[list[float], Cost]:
    """By the GPU's events; activations are quantized before, since in a model that is a launch of its own."""
    from octavo.bench import gpu

    plans, does = plans_of(case, case.build(), [gpu.Copying()])
    return gpu.seconds([gpu.calls_of(plan) for plan in plans]), does


def _cost(case: OpCase, built: Built, nodes: Sequence[Node]) -> Cost:
    """Of the case's last step."""
    past, new = case.sequences
    load = OpLoad({**built.limits, **built.steps[-1][1]}, past, new)
    return total((n for n in nodes if not n.is_leaf), load)
