"""Schedule: which backend runs each node, where it changes, and where in memory each value lies.

A node runs where its weights were placed, if that backend supports it, and else on the first that does; a node without
weights stays where the last of its inputs was made. Activations are quantized where they are read, since each backend
has a layout of its own for them. Runs of nodes on one backend are a split; values that cross a seam are copied. Values
that are never alive at the same time share memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from octavo.errors import GraphError
from octavo.graph.node import Graph, Node, Sizes, bind
from octavo.graph.ops import ALIASES, apply
from octavo.graph.protocol import Backend

log = logging.getLogger("octavo")

ALIGNMENT = 128
PLAIN = ("f32", "i32", "i64")
"""Types of values that are laid out alike everywhere, and so can be copied to another backend."""

Place = Callable[[Node], int]
"""The number of the backend that a weight is meant for."""


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


def schedule(
    graph: Graph, backends: Sequence[Backend], limits: Sizes, *, place: Place = lambda weight: 0, strict: bool = False,
    quiet: bool = False,
) -> Schedule:
    """Schedule `graph` for steps of at most `limits`. Raises GraphError for a node that no backend runs.

    With `strict`, a node that can't run where it was meant to is an error too; else it is a warning, unless `quiet`.
    """
    chosen, fallbacks = assign(graph, backends, place)
    graph, chosen = _insert_copies(graph, chosen)
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
    step = {id(n): i for i, n in enumerate(graph.nodes)}
    users = graph.users()
    for node in graph.nodes:
        if node.is_leaf or id(node) in chosen:
            continue
        readers = [] if node.dtype in PLAIN or node.op in ("set_rows", "after") else users[id(node)]
        together = (node, *readers, *_cache_writers(node))
        meant = _meant(readers[0] if readers else node, chosen, step, place)
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


def _meant(node: Node, chosen: dict[int, int], step: dict[int, int], place: Place) -> int:
    """Where a node belongs: with its weights, or where the last of its inputs was made."""
    weights = [place(i) for i in node.inputs if i.op == "weight" and not i.attrs.get("constant")]
    if weights:
        return weights[0]
    made = [i for i in node.inputs if not i.is_leaf]
    return chosen[id(max(made, key=lambda n: step[id(n)]))] if made else 0


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


def _insert_copies(graph: Graph, chosen: dict[int, int]) -> tuple[Graph, dict[int, int]]:
    """The graph with a copy before the first node of a backend that reads another's value, and where its nodes run."""
    new: dict[int, Node] = {}
    where: dict[int, int] = {}
    copies: dict[tuple[int, int], Node] = {}
    order: list[Node] = []
    for node in graph.nodes:
        if node.is_leaf:
            new[id(node)] = node
            order.append(node)
            continue
        backend = chosen[id(node)]
        inputs = []
        for source in (new[id(i)] for i in node.inputs):
            if where.get(id(source), backend) == backend:
                inputs.append(source)
                continue
            key = id(source), backend
            if key not in copies:
                copies[key] = apply("copy", source, label=source.name)
                where[id(copies[key])] = backend
                order.append(copies[key])
            inputs.append(copies[key])
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        new[id(node)] = node if same else Node(node.op, tuple(inputs), node.shape, node.dtype, node.attrs, node.name)
        where[id(new[id(node)])] = backend
        order.append(new[id(node)])
    return Graph(tuple(order), tuple(new[id(o)] for o in graph.outputs)), where


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
