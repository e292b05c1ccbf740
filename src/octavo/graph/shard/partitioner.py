"""The pass: a graph of plain ops as one of several ranks computes it, with its part of the weights and of the caches.

It goes over the graph three times. Forward, it finds where each value may be cut, and what is gained by it. Backward,
it says which parts of which values a rank needs, or that it needs all. Forward again, it makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import lcm

from octavo.errors import GraphError
from octavo.formats import QTensor
from octavo.formats.part import Cut, column_multiple
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from octavo.graph.pointwise import POINTWISE
from octavo.graph.shard import state_rules  # noqa: F401  (registers its rules)
from octavo.graph.shard.cuts import WHOLE, Grid, divide
from octavo.graph.shard.leaves import Leaves
from octavo.graph.shard.rules import RULES, Context, Part, Wanted, bytes_of, is_product, size, slice_of

WORD = 32
"""Rows of a vocabulary that are divided together: masks have a bit for each, in words of as many."""
SMALL = 4 << 20
"""Bytes of weights that each rank has rather than waits for what others made of their parts (a router's, say): about
what a card reads in the time that a collective takes."""


@dataclass(frozen=True)
class Pending:
    """A value that is the sum of all ranks' `partial`, not added yet, and of `added`, which all ranks have."""

    partial: Node
    added: tuple[Node, ...] = ()


Value = Node | Pending
Parts = tuple[Cut, ...]


def shard(graph: Graph, rank: int, ranks: int, *, small: int = SMALL) -> Graph:
    """The graph of rank `rank` of `ranks`; of one rank, the graph itself.

    small  bytes of weights that are not divided where their products have to be gathered

    Raises GraphError for a larger weight that can't be divided so often.
    """
    if ranks == 1:
        return graph
    divided = _Pass(graph, rank, ranks, small).graph()
    for node in divided.leaves("weight"):
        if "part" not in node.attrs and len(node.shape) > 1 and bytes_of(node) > SMALL:
            shape = list(node.shape)
            raise GraphError(f"tensor {node.name} {shape} can't be divided among {ranks} ranks: use fewer")
    return divided


class _Pass:
    def __init__(self, graph: Graph, rank: int, ranks: int, small: int) -> None:
        self._graph, self.rank, self.ranks, self._small = graph, rank, ranks, small
        self._grids: dict[tuple[int, int], Grid] = {}
        self._context = Context(self._grid, Leaves(), ranks)
        self._rows: dict[int, Parts] = {}
        """Products that give partial sums, by the id of the node: the part of K of each rank."""
        self._gathered: dict[int, tuple[int, Parts]] = {}
        """Values that are gathered of parts: the axis, and the part of each rank."""
        self._tables: dict[int, Parts] = {}
        """Rows that are looked up in a table that is divided: the rows of each rank."""
        self._experts: dict[int, tuple[Node, Parts]] = {}
        """Sums over experts of which each rank has some whole: the ids of experts, and those of each rank."""
        self._plans: dict[tuple[int, Wanted], Part] = {}
        self._parts: dict[tuple[int, Wanted], Node] = {}
        self._values: dict[int, Value] = {}

    def graph(self) -> Graph:
        for node in self._graph.nodes:
            self._look(node)
        wanted = self._demands()
        for node in self._graph.nodes:
            self._make(node, wanted.get(id(node), {}))
        return Graph.of(*(self._whole(node) for node in self._graph.outputs))

    # Forward: where values may be cut.

    def _grid(self, node: Node, axis: int) -> Grid:
        return self._grids.get((id(node), axis), WHOLE)

    def _look(self, node: Node) -> None:
        """Find the grids of a value, and whether it is a sum of all ranks, or gathered."""
        if node.is_leaf:
            return
        if is_product(node):
            self._look_at_product(node)
        if node.op in RULES and id(node) not in self._rows:
            grid, _ = RULES[node.op]
            for axis in range(1, len(node.shape)):
                if isinstance(node.shape[axis], int) and (found := grid(self._context, node, axis)).gain:
                    self._grids[id(node), axis] = found
        if node.op == "get_rows" and node.inputs[0].op == "weight":
            parts = divide(size(node.inputs[0], 0), self.ranks, multiple=WORD)
            if parts is not None:
                self._tables[id(node)] = parts
        if node.op == "weighted_sum" and self._look_at_experts(node):
            return
        if node.op != "set_rows":  # a cache is never gathered
            self._look_for_gather(node)

    def _look_at_product(self, node: Node) -> None:
        """Whether a product's input is cut along K, so that each rank has a sum over its part."""
        weight, x = node.inputs[:2]
        axis = len(x.shape) - 1
        grid = self._grid(x, axis)
        if grid.gain and (parts := divide(size(x, axis), self.ranks, grid, _multiple(weight.tensor))) is not None:
            self._rows[id(node)] = parts

    def _look_at_experts(self, node: Node) -> bool:
        """Whether experts themselves are divided, as their last products have too few blocks along K to be."""
        products = [n for n in _above(node.inputs[0]) if n.op == "mul_mat_id" and n.inputs[0].op == "weight"]
        ids = {id(n.inputs[2]): n.inputs[2] for n in products}
        counts = {size(n.inputs[0], 0) for n in products}
        if len(ids) != 1 or len(counts) != 1 or any(id(n) in self._rows for n in products):
            return False
        (chosen,), (count,) = ids.values(), counts
        blocked = any(self._grid(n.inputs[1], 2).gain for n in products if len(n.inputs[1].shape) == 3)
        parts = divide(count, self.ranks) if blocked and chosen.op != "numbers" else None
        if parts is None:
            return False
        self._experts[id(node)] = chosen, parts
        for axis in range(1, len(node.shape)):
            self._grids.pop((id(node), axis), None)
        return True

    def _look_for_gather(self, node: Node) -> None:
        """How a value is gathered where all of it is wanted, if more is gained by that than it costs."""
        for axis in range(1, len(node.shape)):
            grid = self._grid(node, axis)
            least, multiple = (0, WORD) if node in self._graph.outputs else (self._small, 1)
            if grid.gain > least and (parts := divide(size(node, axis), self.ranks, grid, multiple)) is not None:
                self._gathered[id(node)] = axis, parts
                return

    # Backward: what is wanted of each value.

    def _demands(self) -> dict[int, dict[Wanted | None, None]]:
        """What is wanted of each value by its id, parts or (None) all, in an order that is the same on all ranks."""
        wanted: dict[int, dict[Wanted | None, None]] = {id(o): {None: None} for o in self._graph.outputs}

        def want(node: Node, part: Wanted | None) -> None:
            wanted.setdefault(id(node), {})[part] = None

        for node in reversed(self._graph.nodes):
            here = wanted.get(id(node), {})
            if node.is_leaf or not here:
                continue
            if self._sliced(node, here):
                here[None] = None
            if None in here:
                self._want_whole(node, want)
            for part in self._cut(node, here):
                plan = RULES[node.op][1](self._context, node, *part)
                self._plans[id(node), part] = plan
                for source, one in zip(node.inputs, plan.wanted, strict=True):
                    want(source, one)
        return wanted

    def _cut(self, node: Node, wanted: Iterable[Wanted | None]) -> list[Wanted]:
        """The wanted parts of a value that are made of parts of its inputs."""
        return [p for p in wanted if p is not None and self._fits(node, *p)]

    def _sliced(self, node: Node, wanted: Iterable[Wanted | None]) -> list[Wanted]:
        """The wanted parts of a value that are taken of all of it."""
        return [p for p in wanted if p is not None and not self._fits(node, *p)]

    def _fits(self, node: Node, axis: int, cut: Cut) -> bool:
        """Whether there is something in making this part by itself, and it can be."""
        return bool((grid := self._grid(node, axis)).gain) and grid.allows(cut, size(node, axis))

    def _want_whole(self, node: Node, want: Callable[[Node, Wanted | None], None]) -> None:
        if id(node) in self._rows:
            _, x, *ids = node.inputs
            want(x, (len(x.shape) - 1, self._rows[id(node)][self.rank]))
            for source in ids:
                want(source, None)
        elif id(node) in self._gathered:
            axis, parts = self._gathered[id(node)]
            want(node, (axis, parts[self.rank]))
        elif id(node) in self._experts:
            inside = {id(n) for n in (node, *_above(node.inputs[0]))}
            for source in (i for n in (node, *_above(node.inputs[0])) for i in n.inputs if id(i) not in inside):
                want(source, None)
        else:
            for source in node.inputs:
                want(source, None)

    # Forward again: the nodes.

    def _make(self, node: Node, wanted: dict[Wanted | None, None]) -> None:
        for part in self._cut(node, wanted):
            plan = self._plans[id(node), part]
            self._parts[id(node), part] = plan.make([
                self._whole(n) if one is None else self._parts[id(n), one]
                for n, one in zip(node.inputs, plan.wanted, strict=True)
            ])
        if None in wanted:
            self._values[id(node)] = self._made(node)
        for part in self._sliced(node, wanted):
            self._parts[id(node), part] = self._slice(node, *part)

    def _slice(self, node: Node, axis: int, cut: Cut) -> Node:
        if node.op == "weight":
            return self._context.leaves.vector(node, cut)
        return slice_of(self._whole(node), axis, cut)

    def _made(self, node: Node) -> Value:
        if node.is_leaf:
            return node
        if id(node) in self._rows:
            return self._partial_product(node)
        if id(node) in self._gathered:
            axis, parts = self._gathered[id(node)]
            part = self._parts[id(node), (axis, parts[self.rank])]
            return apply("all_gather", part, axis=axis, rank=self.rank, parts=parts, label=node.name)
        if id(node) in self._tables:
            return self._partial_rows(node)
        if id(node) in self._experts:
            return self._sum_of_own_experts(node)
        values = [self._values.get(id(n), n) for n in node.inputs]
        if any(isinstance(v, Pending) for v in values) and (found := self._through(node, values)) is not None:
            return found
        inputs = [self._whole(n) for n in node.inputs]
        if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            return node
        return Node(node.op, tuple(inputs), node.shape, node.dtype, node.attrs, node.name)

    def _whole(self, node: Node) -> Node:
        """A value, added up if it is still to be."""
        value = self._values.get(id(node), node)
        if isinstance(value, Pending):
            value = self._values[id(node)] = apply("all_reduce", value.partial, *value.added, label=node.name)
        return value

    def _partial_product(self, node: Node) -> Pending:
        weight, x, *ids = node.inputs
        cut = self._rows[id(node)][self.rank]
        own = self._context.leaves.weight(weight, columns=cut, agreed=weight.tensor.format.per_row)
        part = self._parts[id(x), (len(x.shape) - 1, cut)]
        return Pending(apply(node.op, own, part, *map(self._whole, ids), label=node.name))

    def _partial_rows(self, node: Node) -> Pending:
        """Rows of a table, those that other ranks have being 0: their sum is each row as it is.

        Columns of it would be half as much to exchange, but a table that is the output too would be there twice; and
        this is one of many sums in a step.
        """
        table, ids = node.inputs
        (first, stop), = self._tables[id(node)][self.rank]
        own = self._context.leaves.weight(table, rows=((first, stop),))
        ids, local = self._whole(ids), {"first": first, "count": stop - first}
        found = apply("get_rows", own, POINTWISE["local_ids"](ids, **local), label=node.name)
        column = apply("reshape", ids, shape=(*ids.shape, 1), label=ids.name)
        return Pending(POINTWISE["keep_local"](found, column, **local))

    def _sum_of_own_experts(self, node: Node) -> Pending:
        """A sum over experts, those of others times 0."""
        ids, parts = self._experts[id(node)]
        ((first, stop),) = parts[self.rank]
        local = {"first": first, "count": stop - first}
        own_ids = POINTWISE["local_ids"](self._whole(ids), **local)
        inside, made = {id(n) for n in _above(node.inputs[0])}, dict[int, Node]()

        def own(x: Node) -> Node:
            if id(x) not in inside:
                return self._whole(x)
            if id(x) not in made:
                inputs = [own(i) for i in x.inputs]
                if x.op == "mul_mat_id":
                    inputs[0], inputs[2] = self._context.leaves.weight(x.inputs[0], experts=((first, stop),)), own_ids
                made[id(x)] = apply(x.op, *inputs, label=x.name, **x.attrs)
            return made[id(x)]

        shares = POINTWISE["keep_local"](self._whole(node.inputs[1]), self._whole(ids), **local)
        return Pending(apply(node.op, own(node.inputs[0]), shares, label=node.name))

    def _through(self, node: Node, values: Sequence[Value]) -> Value | None:
        """An op on a value that is still to be added up, done before that; None where it can't be."""
        first, *others = values
        if node.op == "add":
            return self._added(node, *values)
        if not isinstance(first, Pending) or any(isinstance(v, Pending) for v in others):
            return None
        if node.op == "add_rows" and not first.added:  # biases of experts: once, not by each rank
            biases = [self._whole(n) for n in node.inputs[1:]]
            partial = first.partial
            return Pending(apply(node.op, partial, *biases, label=node.name) if self.rank == 0 else partial)
        if node.op not in LINEAR or (node.op != "get_rows" and first.added):
            return None
        wholes = [self._whole(n) for n in node.inputs[1:]]

        def after(value: Node) -> Node:
            return apply(node.op, value, *wholes, label=node.name, **node.attrs)

        return Pending(after(first.partial), tuple(map(after, first.added)))

    def _added(self, node: Node, a: Value, b: Value) -> Value | None:
        if isinstance(a, Pending) and isinstance(b, Pending):
            return Pending(apply("add", a.partial, b.partial, label=node.name), (*a.added, *b.added))
        pending, other = (a, b) if isinstance(a, Pending) else (b, a)
        assert isinstance(pending, Pending)
        assert isinstance(other, Node)
        if other.is_leaf and not pending.added:  # a bias: once, not by each rank
            partial = pending.partial
            return Pending(apply("add", partial, other, label=node.name) if self.rank == 0 else partial)
        if other.shape != pending.partial.shape:
            return None
        return Pending(pending.partial, (*pending.added, other))


def _above(node: Node) -> list[Node]:
    """What experts give of a token, [T, k, N], back to their first products, users before what they read."""
    found, left = dict[int, Node](), [node]
    while left:
        one = left.pop()
        if id(one) in found or one.is_leaf or not _leads_to_product(one):
            continue
        found[id(one)] = one
        left += one.inputs[1:2] if one.op == "mul_mat_id" else one.inputs
    return list(found.values())


def _leads_to_product(node: Node) -> bool:
    """Whether a value of several experts is made by their products."""
    if node.op == "mul_mat_id":
        return True
    values = [i for i in node.inputs if not i.is_leaf]
    return len(node.shape) == 3 and node.op in RULES and any(map(_leads_to_product, values))


LINEAR = frozenset({"mul", "get_rows", "weighted_sum", "reshape"})
"""Ops that give of a sum, their first input, what the sum of their results is."""


def _multiple(tensor: QTensor) -> int:
    """What columns of a weight may be cut at: blocks, and of quantized ones the 32 values whose activations share a
    scale."""
    multiple = column_multiple(tensor.format)
    return multiple if tensor.format.is_float or tensor.format.per_row else lcm(multiple, 32)
