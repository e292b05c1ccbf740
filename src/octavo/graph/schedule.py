"""Schedule: which backend runs each node, where it changes, and where in memory each value lies.

A node runs where its weights were placed, if that backend supports it, and else on the first that does; a node without
weights stays where the last of its inputs was made, but on a device if one made as much of them as the host.
Activations are quantized where they are read, since each backend has a layout of its own for them. Runs of nodes on one
backend are a split; values that cross a seam are copied. Values that are never alive at the same time share memory.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from octavo.errors import GraphError
from octavo.graph.node import Graph, Node, Sizes, bind
from octavo.graph.ops import ALIASES, apply
from octavo.graph.protocol import AsyncBackend, Backend

log = logging.getLogger("octavo")

ALIGNMENT = 128
PARTS = ("reshape", "columns")
"""Views of one value, which cost nothing to make."""
PLAIN = ("f32", "i32", "i64")
"""Types of values that are laid out alike everywhere, and so can be copied to another backend."""

Place = Callable[[Node, Node], int]
"""The number of the backend that a weight is meant for where a node reads it."""


def on_first(weight: Node, reader: Node) -> int:
    """All weights on the first backend."""
    return 0


@dataclass(frozen=True)
class Buffer:
    """A place in a backend's memory."""

    backend: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Split:
    """Nodes that run one after the other on one backend; some of them may be copies from others."""

    backend: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Schedule:
    """`backends` by id(node) for all nodes that run; `buffers` by id(node) for those with memory of their own.

    `memory` is the bytes of values on each backend, `fallbacks` the reasons for nodes that run elsewhere than meant.
    """

    graph: Graph
    splits: tuple[Split, ...]
    backends: dict[int, int]
    buffers: dict[int, Buffer]
    memory: tuple[int, ...]
    fallbacks: tuple[str, ...]

    def on(self, backend: int) -> list[Node]:
        """The nodes that run on a backend."""
        return [n for n in self.graph.nodes if not n.is_leaf and self.backends[id(n)] == backend]


def schedule(
    graph: Graph, backends: Sequence[Backend], limits: Sizes, *, place: Place = on_first, strict: bool = False,
    quiet: bool = False,
) -> Schedule:
    """Schedule `graph` for steps of at most `limits`. Raises GraphError for a node that no backend runs.

    With `strict`, a node that can't run where it was meant to is an error too; else it is a warning, unless `quiet`.
    """
    chosen, fallbacks = assign(graph, backends, place)
    crossing = _Crossing(graph, chosen, backends)
    graph, chosen = crossing.graph, crossing.where
    buffers, memory = _allocate(graph, chosen, backends, limits)
    made = Schedule(graph, _split(graph, chosen), chosen, buffers, memory, tuple(fallbacks))
    return made if quiet else with_fallbacks_told(made, strict=strict)


def with_fallbacks_told(made: Schedule, *, strict: bool) -> Schedule:
    """The schedule, after a warning for each node that runs elsewhere than meant; GraphError if `strict`."""
    if made.fallbacks and strict:
        raise GraphError(f"{made.fallbacks[0]} (strict: no fallbacks)")
    for reason in made.fallbacks:
        log.warning("%s", reason)
    return made


def root(node: Node) -> Node:
    """The node in whose memory `node`'s value lies."""
    while node.op in ALIASES:
        node = node.inputs[0]
    return node


def assign(graph: Graph, backends: Sequence[Backend], place: Place) -> tuple[dict[int, int], list[str]]:
    """The backend of each node by its id, and the reasons for nodes that run elsewhere than meant.

    A layer that reads the cache of another attends where that one does. Raises GraphError for a node that no backend
    runs.
    """
    chosen: dict[int, int] = {}
    read: dict[int, int] = {}  # caches with something written to them, and where attention reads them
    fallbacks: dict[str, None] = {}
    step, of_inputs = {id(n): i for i, n in enumerate(graph.nodes)}, _of_inputs(graph)
    users = graph.users()
    devices = {i for i, backend in enumerate(backends) if isinstance(backend, AsyncBackend)}

    def meant_for(node: Node) -> int:
        """Where a node belongs: with its weights, or where the last of its inputs was made that is not of inputs."""
        weights = [place(i, node) for i in node.inputs if i.op == "weight" and not i.attrs.get("constant")]
        if weights:
            return weights[0]
        made = [(i, s) for i, s in ((i, _whole(i)) for i in node.inputs) if not s.is_leaf and id(s) not in of_inputs]
        if not made:
            return 0
        here = {chosen[id(s)] for _, s in made}
        if here <= devices or not here & devices:
            return chosen[id(max((s for _, s in made), key=lambda n: step[id(n)]))]
        values = [0] * len(backends)
        for i, s in made:
            values[chosen[id(s)]] += math.prod(size for size in i.shape if isinstance(size, int))
        return max(range(len(backends)), key=lambda b: (values[b], b in devices))

    for node in graph.nodes:
        if node.is_leaf or id(node) in chosen:
            continue
        readers = [] if node.dtype in PLAIN or node.op in ("set_rows", "after") else users[id(node)]
        together = (node, *readers, *_cache_writers(node))
        meant = meant_for(readers[0] if readers else node)
        if node.op == "attention":
            meant = read.get(id(node.inputs[1]), meant)
        reasons = {}
        for candidate in sorted(range(len(backends)), key=lambda b: b != meant):
            refused = _refused(backends[candidate], together)
            if refused is None:
                chosen |= dict.fromkeys(map(id, together), candidate)
                if node.op == "attention":
                    read.setdefault(id(node.inputs[1]), candidate)
                break
            reasons[candidate] = refused
        else:
            details = "; ".join(f"{backends[b].name}: {reason}" for b, (_, reason) in reasons.items())
            raise GraphError(f"no backend runs {node.title} ({node.name}): {details}")
        if chosen[id(node)] != meant:
            op, reason = reasons[meant]
            runs = backends[chosen[id(node)]].name
            fallbacks[f"{op} runs on {runs}, not on {backends[meant].name}: {reason}"] = None
    return chosen, list(fallbacks)


def _whole(node: Node) -> Node:
    """What a node shows a part of, or in another shape."""
    while node.op in PARTS:
        node = node.inputs[0]
    return node


def _refused(backend: Backend, nodes: Sequence[Node]) -> tuple[str, str] | None:
    """Op and reason of the first node that a backend does not run."""
    for node in nodes:
        ok, reason = backend.supports(node)
        if not ok:
            return node.title, reason
    return None


def _cache_writers(node: Node) -> list[Node]:
    """What runs where `node` runs: a cache is written where attention reads it."""
    if node.op != "attention":
        return []
    caches = [i for i in node.inputs[1:3] if not i.is_leaf]
    return [*caches, *(cache.inputs[1] for cache in caches if cache.op == "after")]


class _Crossing:
    """The graph with a copy of each value on each other backend that reads it, and `where` its nodes run.

    Values that only need inputs, and views of others, are made where they are read instead. A copy is made as soon as
    its source's backend has done its run of nodes, and is of the latest copy on a backend of that kind: so a stage of a
    pipeline waits for no other than the one before it, and is free for the next step then.
    """

    def __init__(self, graph: Graph, chosen: dict[int, int], backends: Sequence[Backend]) -> None:
        self._chosen, self._backends, self._of_inputs = chosen, backends, _of_inputs(graph)
        self.where: dict[int, int] = {}
        self._new: dict[int, Node] = {}
        self._there: dict[tuple[int, int], Node] = {}
        self._latest: dict[tuple[int, type], Node] = {}
        self._order: list[Node] = []
        for node in graph.nodes:
            if node.is_leaf:
                self._new[id(node)] = node
                self._order.append(node)
            else:
                self._new[id(node)] = self._made(node, chosen[id(node)])
        outputs = tuple(self._new[id(o)] for o in graph.outputs)
        self.graph = Graph(tuple(self._at_seams(_needed(self._order, outputs))), outputs)

    def _made(self, node: Node, backend: int) -> Node:
        """A node on a backend, with what it reads there."""
        inputs = [self._on(i, backend) for i in node.inputs]
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True)) and backend == self._chosen[id(node)]
        made = node if same else Node(node.op, tuple(inputs), node.shape, node.dtype, node.attrs, node.name)
        return self._placed(made, backend)

    def _on(self, node: Node, backend: int) -> Node:
        """The value of a node on a backend."""
        if node.is_leaf or self._chosen[id(node)] == backend:
            return self._new[id(node)]
        key = id(node), backend
        if key not in self._there:
            again = node.op in PARTS or id(node) in self._of_inputs
            if again and self._backends[backend].supports(node)[0]:
                self._there[key] = self._made(node, backend)
            else:
                source = self._latest.get((id(node), type(self._backends[backend])), self._new[id(node)])
                self._there[key] = self._placed(apply("copy", source, label=node.name), backend)
                self._latest[id(node), type(self._backends[backend])] = self._there[key]
        return self._there[key]

    def _placed(self, made: Node, backend: int) -> Node:
        self.where[id(made)] = backend
        self._order.append(made)
        return made

    def _at_seams(self, order: Sequence[Node]) -> Iterator[Node]:
        copies: dict[int, list[Node]] = {}
        for copy in (n for n in order if n.op == "copy"):
            copies.setdefault(id(copy.inputs[0]), []).append(copy)
        waiting: list[Node] = []
        for node in (n for n in order if n.op != "copy"):
            if not node.is_leaf:
                here = self.where[id(node)]
                now = [c for c in waiting if self.where[id(c.inputs[0])] != here]
                again = [c for copy in now for c in copies.get(id(copy), ())]
                waiting = [c for c in waiting if self.where[id(c.inputs[0])] == here] + again
                yield from now
            yield node
            waiting += copies.get(id(node), ())


def _of_inputs(graph: Graph) -> set[int]:
    """The ids of nodes that need nothing but inputs of the step."""
    found = set[int]()
    for node in graph.nodes:
        if not node.is_leaf and all(i.op == "input" or id(i) in found for i in node.inputs):
            found.add(id(node))
    return found


def _needed(order: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    """The nodes that outputs need."""
    wanted = set(map(id, outputs))
    for node in reversed(order):
        if id(node) in wanted:
            wanted |= set(map(id, node.inputs))
    return [n for n in order if id(n) in wanted]


def _split(graph: Graph, chosen: dict[int, int]) -> tuple[Split, ...]:
    runs = groupby((node for node in graph.nodes if not node.is_leaf), key=lambda node: chosen[id(node)])
    return tuple(Split(backend, tuple(nodes)) for backend, nodes in runs)


def _allocate(
    graph: Graph, chosen: dict[int, int], backends: Sequence[Backend], limits: Sizes
) -> tuple[dict[int, Buffer], tuple[int, ...]]:
    last_use = {id(root(o)): len(graph.nodes) for o in graph.outputs}
    for step, node in enumerate(graph.nodes):
        for source in (*node.inputs, node):
            last_use[id(root(source))] = max(last_use.get(id(root(source)), 0), step)
    dying: dict[int, list[Node]] = {}
    buffers: dict[int, Buffer] = {}
    memories = [_Memory() for _ in backends]
    for step, node in enumerate(graph.nodes):
        if not node.is_leaf and node.op not in ALIASES:
            backend = chosen[id(node)]
            nbytes = backends[backend].nbytes(bind(node.shape, limits), node.dtype)
            nbytes = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
            term = root(node.inputs[-1])
            if last_use[id(term)] == step and _takes_over(node, term) and backends[backend].adds_in_place(node):
                buffers[id(node)] = buffers[id(term)]
                dying[step].remove(term)
            else:
                buffers[id(node)] = Buffer(backend, memories[backend].take(nbytes), nbytes)
            dying.setdefault(last_use[id(node)], []).append(node)
        for dead in dying.pop(step, []):
            buffer = buffers[id(dead)]
            memories[buffer.backend].give(buffer.offset, buffer.nbytes)
    return buffers, tuple(m.size for m in memories)


def _takes_over(node: Node, term: Node) -> bool:
    """Whether the result of a product fits the memory of what is added to it last, a whole value of this step."""
    added = node.op == "mul_mat_add" and not term.is_leaf and node.inputs[-1] is term
    return added and (term.shape, term.dtype) == (node.shape, node.dtype)


class _Memory:
    """Offsets by first fit; `size` is the most that was taken."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        for i, (offset, free) in enumerate(self._free):
            if free >= nbytes:
                self._free[i : i + 1] = [(offset + nbytes, free - nbytes)] if free > nbytes else []
                return offset
        offset = self.size
        if self._free and sum(self._free[-1]) == self.size:
            offset = self._free.pop()[0]
        self.size = offset + nbytes
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, size in sorted([*self._free, (offset, nbytes)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = merged[-1][0], merged[-1][1] + size
            else:
                merged.append((start, size))
        self._free = merged
