"""Executor: runs a schedule. It owns what lasts between steps, and keeps a plan for each size of step.

Loaded weights, caches, states and the memory of values last.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from octavo.formats import QTensor
from octavo.formats.qtensor import TimesQTensor
from octavo.formats.spec import U8, AnyArray
from octavo.garbage import no_collection
from octavo.graph.factors import LowRank
from octavo.graph.node import Dim, Graph, Node, Sizes, bind
from octavo.graph.ops import IN_PLACE, VIEWS
from octavo.graph.plan import Fed, Packed, Plan, StepHandle, Steps, Watch
from octavo.graph.protocol import AsyncBackend, Backend, Call, Saved
from octavo.graph.read_ahead import ReadAhead
from octavo.graph.schedule import Schedule
from octavo.progress import tell
from octavo.sizes import size

PLANS_KEPT, CAPTURED_KEPT = 32, 192
"""Plans for different sizes of steps that an executor keeps, and where a backend is an AsyncBackend."""
INPUT_ALIGNMENT = 64
INPUT_TYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64}


LeafKey = tuple[int, str, tuple[Dim, ...], Any, bool]
"""A leaf on a backend: its name, its shape, and which part of what has this name it is."""


class _Leaves(NamedTuple):
    """The leaves of a plan: the value of each by backend and id, and `inputs`, `packed` and `host` of `Plan`."""

    values: dict[tuple[int, int], Any]
    inputs: dict[str, list[tuple[Backend, Any]]]
    packed: Packed
    host: dict[str, list[AnyArray]]


class Executor:
    """Runs a schedule. `limits` are the sizes that the schedule was made for; `rows` of the caches is fixed by them.

    `outputs` are the numbers of the graph's outputs that a step makes unless others are asked for; by default all.
    Weights, caches and states that `shares`, on the same backends, has by the same names are taken from it, or of these
    names those in `shared`. `fed` are inputs that `values` is given, and nothing else, where they lie already.
    """

    def __init__(
        self, schedule: Schedule, backends: Sequence[Backend], limits: Sizes, outputs: Sequence[int] | None = None,
        shares: Executor | None = None, fed: Collection[str] = (), shared: Collection[str] | None = None,
    ) -> None:
        self.schedule, self.backends, self.limits, self._fed = schedule, tuple(backends), dict(limits), frozenset(fed)
        self._outputs = tuple(range(len(schedule.graph.outputs)) if outputs is None else outputs)
        self._memory = [b.allocate(n) for b, n in zip(backends, schedule.memory, strict=True)]
        self._leaves: dict[tuple[int, int], Any] = {}
        self._caches: dict[tuple[int, int], tuple[Dim, Any]] = {}
        self._states: dict[tuple[int, int], Any] = {}
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        # Asked once: isinstance of a protocol takes longer than a read.
        self._waits = {id(b) for b in backends if isinstance(b, AsyncBackend)}
        self._kept = CAPTURED_KEPT if self._waits else PLANS_KEPT
        self._graphs: dict[tuple[int, ...], Graph] = {}
        self.n_launched = 0
        """Steps launched so far."""
        known = {} if shares is None else shares._by_name()
        if shared is not None:
            known = {key: value for key, value in known.items() if key[1] in shared}
        uses = self._leaf_uses()
        weights = {id(leaf.tensor): leaf.tensor for leaf, b in uses
                   if leaf.op == "weight" and id(self.backends[b]) in self._waits and _key(leaf, b) not in known}
        with ReadAhead(weights.values()) as ahead:
            needed = self._load_leaves(uses, known, ahead)
        self._inputs = [b.allocate(max(n, INPUT_ALIGNMENT)) for b, n in zip(self.backends, needed, strict=True)]

    def _load_leaves(
        self, uses: Sequence[tuple[Node, int]], loaded: Mapping[LeafKey, Any], ahead: ReadAhead
    ) -> list[int]:
        """Load each leaf on each backend that reads it, if it is not `loaded`; bytes of a step's inputs by backend."""
        input_bytes = [0] * len(self.backends)
        by_tensor: dict[tuple[int, int], Any] = {}
        done, total = 0, sum({(w, id(leaf.tensor)): _stored(leaf) for leaf, w in uses if leaf.op == "weight"}.values())
        for leaf, where in uses:
            key = where, id(leaf)
            if key in self._leaves:
                continue
            backend, name = self.backends[where], _key(leaf, where)
            if name in loaded and leaf.op != "input" and not leaf.attrs.get("constant"):
                self._leaves[key] = loaded[name]
            elif leaf.op == "weight":
                tensor = where, id(leaf.tensor)
                if tensor not in by_tensor:
                    tell(f"reading and packing weights: {size(done)} of {size(total)}", done, total)
                    done += _stored(leaf)
                    waits = id(backend) in self._waits
                    by_tensor[tensor] = backend.load(ahead.take(leaf.tensor) if waits else leaf.tensor)
                self._leaves[key] = by_tensor[tensor]
            elif leaf.op == "cache":
                shape = bind(leaf.shape, self.limits)
                self._leaves[key] = cache = backend.cache(shape, leaf.dtype, leaf.attrs.get("static"))
                self._caches[key] = leaf.shape[0], cache
            elif leaf.op == "adapters":
                self._leaves[key] = backend.adapters(bind(leaf.shape, self.limits))
            elif leaf.op == "state":
                self._leaves[key] = self._states[key] = backend.states(bind(leaf.shape, self.limits))
            else:
                self._leaves[key] = None  # where it lies is up to each plan
                input_bytes[where] += self._input_bytes(leaf, where, self.limits)
        return input_bytes

    def _by_name(self) -> dict[LeafKey, Any]:
        """Weights, caches and states by backend, name, shape and part."""
        return {_key(leaf, where): self._leaves[where, id(leaf)] for leaf, where in self._leaf_uses()}

    def _leaf_uses(self, graph: Graph | None = None) -> list[tuple[Node, int]]:
        """Each leaf with each backend that reads it, once a reader."""
        where, nodes = self.schedule.backends, (graph or self.schedule.graph).nodes
        return [(i, where[id(n)]) for n in nodes if not n.is_leaf for i in n.inputs if i.is_leaf]

    def _input_bytes(self, leaf: Node, where: int, sizes: Sizes) -> int:
        nbytes = self.backends[where].nbytes(bind(leaf.shape, sizes), leaf.dtype)
        return -(-max(nbytes, 1) // INPUT_ALIGNMENT) * INPUT_ALIGNMENT

    def plan(self, sizes: Sizes, wanted: tuple[int, ...] | None = None) -> Plan:
        """The plan for steps of these sizes that make the `wanted` outputs of the graph; the last few are kept."""
        wanted = self._outputs if wanted is None else wanted
        key = wanted, tuple(sorted(sizes.items()))
        plan = self._plans.pop(key, None)  # another thread may close the engine, and with it forget all plans
        if plan is None:
            with no_collection():
                plan = self._bind(self._needed(wanted), {**self.limits, **sizes})
        self._plans[key] = plan
        if len(self._plans) > self._kept:
            self._plans.popitem(last=False)
        return plan

    def _needed(self, wanted: tuple[int, ...]) -> Graph:
        """The part of the graph that some of its outputs need, its nodes in the order of the schedule."""
        if wanted not in self._graphs:
            graph = self.schedule.graph
            outputs = tuple(graph.outputs[i] for i in wanted)
            needed = {id(n) for n in Graph.of(*outputs).nodes}
            self._graphs[wanted] = Graph(tuple(n for n in graph.nodes if id(n) in needed), outputs)
        return self._graphs[wanted]

    def run(self, inputs: Mapping[str, AnyArray], sizes: Sizes) -> list[AnyArray]:
        """Run a step: fill the inputs, make the calls, read the outputs."""
        plan = self._fill(inputs, sizes)
        for step in plan.steps:
            step()
        return [backend.read(value) for backend, value in plan.outputs]

    def values(self, inputs: Mapping[str, AnyArray], sizes: Sizes, fed: Mapping[str, Any]) -> list[tuple[Backend, Any]]:
        """Run a step, inputs `fed` from values of its AsyncBackend; the outputs are left where they are made."""
        plan = self._fill(inputs, sizes)
        for name, source in fed.items():
            for backend, value in plan.inputs.get(name, ()):
                if id(backend) in self._waits:
                    cast(AsyncBackend, backend).copy(value, source)
                else:
                    backend.write(value, np.asarray(source))
        for step in plan.steps:
            step()
        return list(plan.outputs)

    def launch(
        self,
        inputs: Mapping[str, AnyArray],
        sizes: Sizes,
        wanted: tuple[int, ...],
        fed: Mapping[str, Fed] | None = None,
    ) -> StepHandle:
        """Launch a step that makes the `wanted` outputs; where these are not on an AsyncBackend, it is done.

        `fed` are tokens of a step before, by the name of the input, on AsyncBackends.
        """
        plan = self._fill(inputs, sizes, wanted)
        if fed:
            for name, (step_before, rows) in fed.items():
                tokens, first = step_before.values[0][:, 1], list(rows) == list(range(len(rows)))
                source, places = (tokens[: len(rows)], None) if first else (tokens, rows)
                for backend, value in plan.inputs[name]:
                    cast(AsyncBackend, backend).copy(value, source, places)
        for step in plan.steps:
            step()
        waits = [self._begin_read(backend, value) for backend, value in plan.outputs]

        def row(output: int, number: int) -> AnyArray:
            backend, value = plan.made[output]
            return backend.read(value[number : number + 1])

        return StepHandle(tuple(value for _, value in plan.outputs), lambda: [wait() for wait in waits], row)

    def watch(self, inputs: Mapping[str, AnyArray], sizes: Sizes, watch: Watch) -> list[AnyArray]:
        """Run a step as `run` does, but call by call, `watch` being asked before each."""
        plan = self._fill(inputs, sizes)
        for (node, call), (backend, values) in zip(plan.calls, plan.arguments, strict=True):
            watch(node, partial(_read, backend, values))
            call()
        return [backend.read(value) for backend, value in plan.outputs]

    def copy_page(self, target: int, source: int, rows: str = "rows") -> None:
        """Copy a page of all caches that have this many `rows` over another one."""
        for (where, _), (count, cache) in self._caches.items():
            if count == rows:
                self.backends[where].copy_page(cache, target, source)

    def host_caches(self, rows: str = "rows") -> list[AnyArray]:
        """The caches that have this many `rows` and lie in the host's memory."""
        return [c for size, c in self._caches.values() if size == rows and isinstance(c, np.ndarray)]

    def copy_state(self, target: int, source: int) -> None:
        """Copy the slot of a sequence over another one, in the states of all layers."""
        for (where, _), states in self._states.items():
            self.backends[where].copy_state(states, target, source)

    def save(self, place: str, number: int) -> list[Saved]:
        """A page of the caches that have as many rows as `place` says, or a slot of "states", by backend."""
        return [self.backends[b].save(values) for b, values in self._parts(place, number).items()]

    def restore(self, place: str, number: int, data: U8 | Sequence[Saved]) -> None:
        """Fill a page, or a slot, from what another one was."""
        at = 0
        for i, (b, values) in enumerate(self._parts(place, number).items()):
            nbytes = sum(value.nbytes for value in values)
            self.backends[b].restore(values, data[at : at + nbytes] if isinstance(data, np.ndarray) else data[i])
            at += nbytes

    def saved_bytes(self, place: str) -> int:
        """Bytes of a page, or of a slot."""
        return sum(value.nbytes for values in self._parts(place, 0).values() for value in values)

    def _parts(self, place: str, number: int) -> dict[int, list[Any]]:
        """The values of a page or of a slot, by backend."""
        found: dict[int, list[Any]] = {}
        for (where, _), (rows, cache) in self._caches.items():
            if rows == place:
                found.setdefault(where, []).extend(self.backends[where].page_parts(cache, number))
        for (where, _), states in self._states.items() if place == "states" else ():
            found.setdefault(where, []).append(states[number])
        return found

    def put_adapter(self, slot: int, added: Mapping[str, LowRank]) -> None:
        """Have an adapter in a slot of all tables: what it adds to weights, by their names; nothing for none."""
        tables = {(where, id(leaf)): leaf for leaf, where in self._leaf_uses() if leaf.op == "adapters"}
        for key, leaf in tables.items():
            self._leaves[key].put(slot, [added.get(name) for name in leaf.attrs["names"]])

    def replace(self, tensor: QTensor) -> None:
        """Compute with `tensor` from now on where the weight of its name was, which is of its format and shape."""
        for leaf, where in self._leaf_uses():
            if leaf.op == "weight" and leaf.tensor.name == tensor.name:
                assert (leaf.tensor.format, leaf.tensor.shape) == (tensor.format, tensor.shape)
                old = leaf.tensor
                new = TimesQTensor(tensor, old.factors) if isinstance(old, TimesQTensor) else tensor
                self._leaves[where, id(leaf)] = self.backends[where].load(new)
        self.rebind()

    def rebind(self) -> None:
        """Bind the calls of all sizes of steps anew, when they are next asked for."""
        plans = list(self._plans.values())
        self._plans.clear()
        for plan in plans:
            plan.release()

    def _begin_read(self, backend: Backend, value: Any) -> Callable[[], AnyArray]:
        """A read of a value that is made when this step is done; what comes of it waits for it."""
        if id(backend) in self._waits:
            return cast(AsyncBackend, backend).begin_read(value)
        return partial(backend.read, value)

    def _fill(self, inputs: Mapping[str, AnyArray], sizes: Sizes, wanted: tuple[int, ...] | None = None) -> Plan:
        self.n_launched += 1
        plan = self.plan(sizes, wanted)
        for name, parts in plan.host.items():
            for part in parts:
                part[...] = inputs[name]
        for backend, value, array in plan.packed:
            backend.write(value, array)
        return plan

    def _bind(self, graph: Graph, sizes: Sizes) -> Plan:
        where = self.schedule.backends
        leaves = self._bind_leaves(graph, sizes)
        values: dict[tuple[int, int], Any] = leaves.values
        calls: list[tuple[Node, Call]] = []
        read: list[tuple[Backend, Sequence[Any]]] = []
        steps = Steps([b.begin_plan(graph) for b in self.backends])
        for node in graph.nodes:
            if node.is_leaf:
                continue
            b = where[id(node)]
            backend = self.backends[b]
            source = where[id(node.inputs[0])] if node.op == "copy" else b
            arguments = [values[source, id(i)] for i in node.inputs]
            if node.op in VIEWS:
                values[b, id(node)] = backend.alias(node, arguments[0], bind(node.shape, sizes))
                continue
            out = arguments[0] if node.op in IN_PLACE else self._place(node, sizes)
            if node.op == "copy":
                call = steps.add(_copy(self.backends[source], arguments[0], backend, out))
            else:
                call = steps.bind(b, node, arguments, out)
            calls.append((node, call))
            read.append((self.backends[source], arguments))
            values[b, id(node)] = out
        outputs = {}
        for i, output in enumerate(self.schedule.graph.outputs):
            for o in (output, *(output.inputs if output.op == "all_gather" else ())):
                if i not in outputs and (where[id(o)], id(o)) in values:
                    outputs[i] = self.backends[where[id(o)]], values[where[id(o)], id(o)]
        wanted = tuple((self.backends[where[id(o)]], values[where[id(o)], id(o)]) for o in graph.outputs)
        return Plan(
            tuple(calls), tuple(read), steps.finish(), leaves.inputs, leaves.packed, leaves.host, wanted, outputs
        )

    def _bind_leaves(self, graph: Graph, sizes: Sizes) -> _Leaves:
        """Where each leaf lies in a step of these sizes; inputs one after the other, those that are `fed` last."""
        found = _Leaves({}, {}, (), {})
        places: list[tuple[Node, int, int]] = []
        ends, written = [0] * len(self.backends), [0] * len(self.backends)
        for leaf, b in sorted(self._leaf_uses(graph), key=lambda use: use[0].name in self._fed):
            if (b, id(leaf)) in found.values:
                continue
            value = self._leaves[b, id(leaf)]
            if leaf.op == "input":
                value = self.backends[b].view(self._inputs[b], ends[b], bind(leaf.shape, sizes), leaf.dtype)
                found.inputs.setdefault(leaf.name, []).append((self.backends[b], value))
                start, ends[b] = ends[b], ends[b] + self._input_bytes(leaf, b, sizes)
                if leaf.name not in self._fed:
                    places.append((leaf, b, start))
                    written[b] = ends[b]
            found.values[b, id(leaf)] = value
        packed, host = self._packed(places, written, sizes)
        return found._replace(packed=packed, host=host)

    def _packed(
        self, places: Sequence[tuple[Node, int, int]], ends: Sequence[int], sizes: Sizes
    ) -> tuple[Packed, dict[str, list[AnyArray]]]:
        """Each backend's inputs as one value and an array like it, and by name the parts of these arrays."""
        arrays = [np.zeros(end // 4, np.int32) for end in ends]
        host: dict[str, list[AnyArray]] = {}
        for leaf, b, start in places:
            shape, number = bind(leaf.shape, sizes), np.dtype(INPUT_TYPES[leaf.dtype])
            raw = arrays[b].view(np.uint8)[start : start + math.prod(shape) * number.itemsize]
            host.setdefault(leaf.name, []).append(raw.view(number).reshape(shape))
        packed = tuple(
            (backend, backend.view(memory, 0, array.shape, "i32"), array)
            for backend, memory, array in zip(self.backends, self._inputs, arrays, strict=True)
            if len(array)
        )
        return packed, host

    def _place(self, node: Node, sizes: Sizes) -> Any:
        buffer = self.schedule.buffers[id(node)]
        backend = self.backends[buffer.backend]
        return backend.view(self._memory[buffer.backend], buffer.offset, bind(node.shape, sizes), node.dtype)


def _key(leaf: Node, where: int) -> LeafKey:
    times = leaf.op == "weight" and isinstance(leaf.tensor, TimesQTensor)
    return where, leaf.name, leaf.shape, leaf.attrs.get("part"), times


def _stored(weight: Node) -> int:
    """Bytes of a weight in its file."""
    tensor = weight.tensor
    return math.prod(tensor.shape[:-1]) * tensor.format.row_bytes(tensor.shape[-1])


def _read(backend: Backend, values: Sequence[Any], i: int) -> AnyArray:
    backend.synchronize()
    return backend.read(values[i])


def _copy(source: Backend, value: Any, target: Backend, out: Any) -> Call:
    """A copy between backends: beside the host where both are devices of one kind, else over it."""
    if isinstance(target, AsyncBackend) and type(source) is type(target):
        return partial(target.copy, out, value)

    def call() -> None:
        source.synchronize()
        target.write(out, source.read(value))

    return call
