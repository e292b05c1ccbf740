"""The kernels of a model, known from its graph and its formats, and compiled at once before any weight is read.

The steps that are bound on stand-ins of the backends are one of a token, and prompts of as many tokens as make tiles of
every size. What else a step may take, a batch of a length that makes yet another kernel, is compiled when it is met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.graph.executor import Executor
from octavo.graph.node import Node, Sizes
from octavo.graph.protocol import Backend, ForecastingBackend, StandIn
from octavo.graph.schedule import Schedule
from octavo.runtime.sampling.top_k import BEST, CANDIDATES, CHANGED, LOGITS

PROMPTS = (31, 6, 5, 4, 3, 2)
"""Tokens of prompts: whole tiles of each size, and each number of tokens that may be left, whatever the tiles are."""


def compile_ahead(schedule: Schedule, backends: Sequence[Backend], limits: Sizes) -> bool:
    """Compile the kernels of a schedule, if all backends that it runs on know theirs; whether they do."""
    used = {split.backend for split in schedule.splits}
    stand_ins: list[Backend] = list(backends)
    missing: list[StandIn] = []
    plans = _described(schedule, limits)
    for b in used:
        backend = backends[b]
        if not isinstance(backend, ForecastingBackend):
            return False
        if (found := backend.stand_in(plans)) is not None:
            stand_ins[b] = found
            missing.append(found)
    if len(missing) == len(used):
        executor = Executor(schedule, stand_ins, limits)
        for sizes in _steps(limits):
            for wanted in _outputs(schedule):
                executor.plan(sizes, wanted)
        for stand_in in missing:
            stand_in.compile()
    return True


def _steps(limits: Sizes) -> Iterator[Sizes]:
    one = {"outputs": 1, "sequences": 1, "boundaries": 2}
    for tokens in dict.fromkeys((1, *PROMPTS, limits["tokens"])):
        yield {"tokens": min(tokens, limits["tokens"]), **one}


def _outputs(schedule: Schedule) -> Iterator[tuple[int, ...]]:
    """What steps of one sequence are asked for: all logits, or the likeliest tokens."""
    yield (LOGITS,)
    if len(schedule.graph.outputs) > CHANGED:
        yield (BEST,)
        yield (CANDIDATES,)


def _described(schedule: Schedule, limits: Sizes) -> str:
    """A text that is the same for schedules whose steps run the same kernels."""
    return repr((sorted(limits.items()), sorted({_node(n) for n in schedule.graph.nodes if not n.is_leaf})))


def _node(node: Node) -> str:
    return repr((_value(node), sorted(node.attrs.items()), [_value(i) for i in node.inputs]))


def _value(node: Node) -> tuple[object, ...]:
    return node.op, node.shape, node.dtype, node.tensor.format.name if node.op == "weight" else sorted(node.attrs)
