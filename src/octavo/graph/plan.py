"""Plan: a schedule with its arguments bound, a list of calls to make for a step.

An `Executor` owns what lasts between steps (loaded weights, caches, memory) and keeps a plan for each size of step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from octavo.formats import QTensor
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node, Sizes, bind
from octavo.graph.ops import VIEWS
from octavo.graph.protocol import Backend, Call
from octavo.graph.schedule import Schedule

PLANS_KEPT = 32

Watch = Callable[[Node, Callable[[int], AnyArray]], None]
"""Is given a node before its call is made, and a function that reads its i-th input to the host."""


@dataclass(frozen=True)
class Plan:
    """What a step of one size runs.

    calls      a node and its call each, in order
    arguments  for each call the values that it reads, and the backend that they are of
    steps      the calls, joined by each backend to as few as it can
    inputs     the values to fill, by name, a pair (backend, value) each
    """

    calls: tuple[tuple[Node, Call], ...]
    arguments: tuple[tuple[Backend, Sequence[Any]], ...]
    steps: tuple[Call, ...]
    inputs: Mapping[str, list[tuple[Backend, Any]]]
    outputs: tuple[tuple[Backend, Any], ...]


class Executor:
    """Runs a schedule. `limits` are the sizes that the schedule was made for; `rows` of the caches is fixed by them."""

    def __init__(self, schedule: Schedule, backends: Sequence[Backend], limits: Sizes) -> None:
        self.schedule, self.backends, self.limits = schedule, tuple(backends), dict(limits)
        self._memory = [b.allocate(n) for b, n in zip(backends, schedule.memory, strict=True)]
        self._leaves: dict[tuple[int, int], Any] = {}
        self._plans: OrderedDict[tuple[tuple[str, int], ...], Plan] = OrderedDict()
        by_tensor: dict[tuple[int, int], Any] = {}
        for leaf, where in self._leaf_uses():
            key = where, id(leaf)
            if key in self._leaves:
                continue
            backend = self.backends[where]
            if leaf.op == "weight":
                tensor = where, id(leaf.tensor)
                if tensor not in by_tensor:
                    by_tensor[tensor] = backend.load(leaf.tensor)
                self._leaves[key] = by_tensor[tensor]
            elif leaf.op == "cache":
                self._leaves[key] = backend.cache(bind(leaf.shape, limits), leaf.dtype)
            else:
                shape = bind(leaf.shape, limits)
                nbytes = backend.nbytes(shape, leaf.dtype)
                self._leaves[key] = backend.allocate(-(-max(nbytes, 1) // 64) * 64)

    def _leaf_uses(self) -> list[tuple[Node, int]]:
        """Each leaf with each backend that reads it, once a reader."""
        where = self.schedule.backends
        return [(i, where[id(n)]) for n in self.schedule.graph.nodes if not n.is_leaf for i in n.inputs if i.is_leaf]

    def plan(self, sizes: Sizes) -> Plan:
        """The plan for steps of these sizes; made once, the last few are kept."""
        key = tuple(sorted(sizes.items()))
        if key not in self._plans:
            self._plans[key] = self._bind({**self.limits, **sizes})
            if len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return self._plans[key]

    def run(self, inputs: Mapping[str, AnyArray], sizes: Sizes) -> list[AnyArray]:
        """Run a step: fill the inputs, make the calls, read the outputs."""
        plan = self._fill(inputs, sizes)
        for step in plan.steps:
            step()
        return [backend.read(value) for backend, value in plan.outputs]

    def watch(self, inputs: Mapping[str, AnyArray], sizes: Sizes, watch: Watch) -> list[AnyArray]:
        """Run a step as `run` does, but call by call, `watch` being asked before each."""
        plan = self._fill(inputs, sizes)
        for (node, call), (backend, values) in zip(plan.calls, plan.arguments, strict=True):
            watch(node, partial(_read, backend, values))
            call()
        return [backend.read(value) for backend, value in plan.outputs]

    def replace(self, tensor: QTensor) -> None:
        """Compute with `tensor` from now on where the weight of its name was, which is of its format and shape."""
        for leaf, where in self._leaf_uses():
            if leaf.op == "weight" and leaf.tensor.name == tensor.name:
                assert (leaf.tensor.format, leaf.tensor.shape) == (tensor.format, tensor.shape)
                self._leaves[where, id(leaf)] = self.backends[where].load(tensor)
        self._plans.clear()

    def _fill(self, inputs: Mapping[str, AnyArray], sizes: Sizes) -> Plan:
        plan = self.plan(sizes)
        for name, values in plan.inputs.items():
            for backend, value in values:
                backend.write(value, inputs[name])
        return plan

    def _bind(self, sizes: Sizes) -> Plan:
        where = self.schedule.backends
        values: dict[tuple[int, int], Any] = {}
        inputs: dict[str, list[tuple[Backend, Any]]] = {}
        for leaf, b in self._leaf_uses():
            if (b, id(leaf)) in values:
                continue
            value = self._leaves[b, id(leaf)]
            if leaf.op == "input":
                value = self.backends[b].view(value, 0, bind(leaf.shape, sizes), leaf.dtype)
                inputs.setdefault(leaf.name, []).append((self.backends[b], value))
            values[b, id(leaf)] = value
        calls: list[tuple[Node, Call]] = []
        read: list[tuple[Backend, Sequence[Any]]] = []
        for node in self.schedule.graph.nodes:
            if node.is_leaf:
                continue
            b = where[id(node)]
            backend, shape = self.backends[b], bind(node.shape, sizes)
            if node.op == "copy":
                source = where[id(node.inputs[0])]
                value, out = values[source, id(node.inputs[0])], self._place(node, sizes)
                calls.append((node, _copy(self.backends[source], value, backend, out)))
                read.append((self.backends[source], [value]))
                values[b, id(node)] = out
                continue
            arguments = [values[b, id(i)] for i in node.inputs]
            if node.op in VIEWS:
                values[b, id(node)] = backend.alias(node, arguments[0], shape)
                continue
            out = arguments[0] if node.op == "set_rows" else self._place(node, sizes)
            calls.append((node, backend.bind(node, arguments, out)))
            read.append((backend, arguments))
            values[b, id(node)] = out
        outputs = tuple((self.backends[where[id(o)]], values[where[id(o)], id(o)]) for o in self.schedule.graph.outputs)
        return Plan(tuple(calls), tuple(read), self._join(calls), inputs, outputs)

    def _join(self, calls: Sequence[tuple[Node, Call]]) -> tuple[Call, ...]:
        """Runs of calls on one backend, each joined by it; copies between backends stay as they are."""
        steps: list[Call] = []
        where = self.schedule.backends
        for backend, run in groupby(calls, key=lambda c: -1 if c[0].op == "copy" else where[id(c[0])]):
            bound = [call for _, call in run]
            steps += bound if backend < 0 else self.backends[backend].join(bound)
        return tuple(steps)

    def _place(self, node: Node, sizes: Sizes) -> Any:
        buffer = self.schedule.buffers[id(node)]
        backend = self.backends[buffer.backend]
        return backend.view(self._memory[buffer.backend], buffer.offset, bind(node.shape, sizes), node.dtype)


def _read(backend: Backend, values: Sequence[Any], i: int) -> AnyArray:
    backend.synchronize()
    return backend.read(values[i])


def _copy(source: Backend, value: Any, target: Backend, out: Any) -> Call:
    def call() -> None:
        source.synchronize()
        target.write(out, source.read(value))

    return call
