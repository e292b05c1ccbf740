"""Rules: what a part of an op's result needs of its inputs, and where the result may be cut.

An op without a rule is computed by all ranks, of whole inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

from octavo.formats.part import Cut, size_of
from octavo.graph.node import Node
from octavo.graph.ops import apply
from octavo.graph.pointwise import POINTWISE
from octavo.graph.shard.cuts import WHOLE, Grid, joined
from octavo.graph.shard.leaves import Leaves

Wanted = tuple[int, Cut]
"""A part of a value: the axis that is cut, and where."""


@dataclass(frozen=True)
class Part:
    """How a part of a node's result is made.

    wanted  of each input: a part, or None for all of it
    make    the node, of these
    """

    wanted: tuple[Wanted | None, ...]
    make: Callable[[Sequence[Node]], Node]


Grids = Callable[[Node, int], Grid]
"""The grid of an axis of a value that is known already."""


@dataclass(frozen=True)
class Context:
    """What rules need to know: the grids of inputs, the parts of leaves, and among how many ranks all is divided."""

    grid: Grids
    leaves: Leaves
    ranks: int


GridRule = Callable[[Context, Node, int], Grid]
PartRule = Callable[[Context, Node, int, Cut], Part]

RULES: dict[str, tuple[GridRule, PartRule]] = {}


def rule(name: str, grid: GridRule) -> Callable[[PartRule], PartRule]:
    """Registers how a part of op `name` is made; `grid` says where it may be cut."""

    def register(part: PartRule) -> PartRule:
        RULES[name] = grid, part
        return part

    return register


def size(node: Node, axis: int) -> int:
    """Values of an axis that is a number."""
    n = node.shape[axis]
    assert isinstance(n, int)
    return n


def bytes_of(weight: Node) -> int:
    """Bytes of a stored weight."""
    tensor = weight.tensor
    return prod(tensor.shape[:-1]) * tensor.format.row_bytes(tensor.shape[-1])


def is_product(node: Node) -> bool:
    """Whether a node multiplies with a stored weight."""
    return node.op in ("mul_mat", "mul_mat_id") and node.inputs[0].op == "weight"


def of_heads(node: Node) -> bool:
    """Whether a product has an expert for each of its input's heads, as latent attention's do."""
    return node.op == "mul_mat_id" and node.inputs[2].op == "numbers" and len(node.inputs[1].shape) == 3


# Products: rows of the weight.


def _product_grid(c: Context, node: Node, axis: int) -> Grid:
    weight, x = node.inputs[:2]
    if weight.op != "weight":
        return WHOLE
    if of_heads(node) and axis == 1:
        inner = c.grid(x, 1)
        return Grid(inner.unit, inner.wall, inner.period, inner.gain + bytes_of(weight)) if inner.gain else WHOLE
    return Grid(gain=bytes_of(weight)) if axis == len(node.shape) - 1 else WHOLE


def _product_part(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    weight, _, *ids = node.inputs
    if of_heads(node) and axis == 1:
        own = c.leaves.weight(weight, experts=cut)

        def make(inputs: Sequence[Node]) -> Node:
            numbers = apply("numbers", *ids[0].inputs, count=size_of(cut), label=ids[0].name)
            return apply(node.op, own, inputs[1], numbers, label=node.name)

        return Part((None, (1, cut), None), make)
    own = c.leaves.weight(weight, rows=cut)
    return Part((None,) * len(node.inputs), lambda inputs: apply(node.op, own, *inputs[1:], label=node.name))


for _name in ("mul_mat", "mul_mat_id"):
    rule(_name, _product_grid)(_product_part)


# Ops on each value by itself, and on each head by itself.


def _spread(node: Node, axis: int) -> list[int | None]:
    """Which axis of each input is cut with an axis of the result; None: the input is read whole."""
    found = list[int | None]()
    for x in node.inputs:
        if len(x.shape) == len(node.shape):
            found.append(axis if x.shape[axis] == node.shape[axis] else None)
        else:
            found.append(0 if axis == len(node.shape) - 1 else None)
    return found


def joined_grid(c: Context, node: Node, axes: Sequence[int | None]) -> Grid:
    pairs = zip(node.inputs, axes, strict=True)
    return joined(*(c.grid(x, axis) for x, axis in pairs if axis is not None and not x.is_leaf))


def _pointwise_part(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    wanted = tuple(None if at is None else (at, cut) for at in _spread(node, axis))
    return Part(wanted, lambda inputs: apply(node.op, *inputs, label=node.name, **node.attrs))


def find_pointwise() -> None:
    """Register the ops on each value by itself, all of which follow one rule."""
    for name in POINTWISE:
        rule(name, lambda c, node, axis: joined_grid(c, node, _spread(node, axis)))(_pointwise_part)


find_pointwise()


def _first_grid(c: Context, node: Node, axis: int) -> Grid:
    """The grid of the first input, of all axes but the last."""
    return c.grid(node.inputs[0], axis) if axis < len(node.shape) - 1 else WHOLE


def _each_head(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    """An op on heads, whose other inputs are the same for all."""
    wanted = ((axis, cut), *(None,) * (len(node.inputs) - 1))
    return Part(wanted, lambda inputs: apply(node.op, *inputs, label=node.name, **node.attrs))


for _name in ("rope", "rms_norm", "layer_norm", "keep_largest"):
    rule(_name, _first_grid)(_each_head)


def _slice_grid(c: Context, node: Node, axis: int) -> Grid:
    """Of heads, or of halves of what each expert of a token gives."""
    grid = c.grid(node.inputs[0], axis)
    return grid if axis == 1 else WHOLE if node.attrs["start"] % grid.unit or grid.wall or grid.period else grid


@rule("slice_heads", _slice_grid)
def _slice_heads(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    if axis == 1:
        return _each_head(c, node, axis, cut)
    start = node.attrs["start"]
    return Part(((axis, tuple((start + a, start + b) for a, b in cut)),), lambda inputs: inputs[0])


@rule("join_heads", lambda c, node, axis: joined_grid(c, node, [axis, axis]) if axis == 1 else WHOLE)
def _join_heads(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    return Part(((axis, cut),) * 2, lambda inputs: apply(node.op, *inputs, label=node.name))


# Views.


def _reshaped_axis(node: Node, axis: int) -> tuple[int, int, int] | None:
    """The axis of a reshape's input that an axis of its result begins in, and the values behind each of the two."""
    x = node.inputs[0]
    before, found = prod(size(node, i) for i in range(1, axis)), 1
    at = None
    for i in range(1, len(x.shape)):
        if found == before:
            at = i
        found *= size(x, i)
    if at is None:
        return None
    inner, outer = (prod(size(n, i) for i in range(a + 1, len(n.shape))) for n, a in ((x, at), (node, axis)))
    return at, inner, outer


def _reshape_grid(c: Context, node: Node, axis: int) -> Grid:
    found = _reshaped_axis(node, axis)
    if found is None or node.inputs[0].op == "input":
        return WHOLE
    at, inner, outer = found
    grid = c.grid(node.inputs[0], at)
    fits = all((place * inner) % outer == 0 for place in (grid.wall, grid.period))
    return grid.times(inner).of_units(outer) if fits else WHOLE


@rule("reshape", _reshape_grid)
def _reshape(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    found = _reshaped_axis(node, axis)
    assert found is not None
    at, inner, outer = found
    shape = (*node.shape[:axis], size_of(cut), *node.shape[axis + 1 :])
    source = tuple((a * outer // inner, b * outer // inner) for a, b in cut)
    return Part(((at, source),), lambda inputs: apply("reshape", *inputs, shape=shape, label=node.name))


def _columns_grid(c: Context, node: Node, axis: int) -> Grid:
    grid, start = c.grid(node.inputs[0], 1), node.attrs["start"]
    return WHOLE if start % grid.unit or grid.wall or grid.period else grid


@rule("columns", _columns_grid)
def _columns(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    start = node.attrs["start"]
    moved = tuple((start + a, start + b) for a, b in cut)
    return Part(((1, moved),), lambda inputs: inputs[0])


# Attention.


def head_grid(c: Context, heads: int, kv_heads: int, q: Grid, *kv: Grid) -> Grid:
    """The grid of query heads of which several share a head of keys: these stay together if there are enough."""
    group, unit = heads // kv_heads, lcm(*(g.unit for g in kv if g.gain), 1)
    if any(g.wall or g.period for g in (q, *kv)):
        return WHOLE
    if kv_heads >= c.ranks:
        return Grid(lcm(group * unit, q.unit), gain=1)
    return Grid(q.unit, wall=heads // kv_heads, gain=1) if unit == 1 else WHOLE


def shared_heads(cut: Cut, group: int) -> Cut:
    """The heads of keys that query heads read."""
    return tuple((a // group, -(-b // group)) for a, b in cut)


def _value_size(node: Node) -> int:
    return size(node, 1) // size(node.inputs[0], 1)


def _written(node: Node) -> Node:
    """What is written to a cache."""
    return node.inputs[1] if node.op == "set_rows" else node


def _attention_grid(c: Context, node: Node, axis: int) -> Grid:
    q, k, v = node.inputs[:3]
    if node.attrs.get("alibi"):
        return WHOLE  # slopes are those of a head's number
    grid = head_grid(c, size(q, 1), size(k, 1), c.grid(q, 1), c.grid(_written(k), 1), c.grid(_written(v), 1))
    gain = KV_GAIN if grid.gain else 0
    return Grid(grid.unit, grid.wall, gain=gain).times(_value_size(node))


KV_GAIN = 1 << 40
"""What a divided cache counts as: more than any weight that is not divided for it."""


@rule("attention", _attention_grid)
def _attention(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    q, k, _, *where = node.inputs
    n, group = _value_size(node), size(q, 1) // size(k, 1)
    heads = tuple((a // n, b // n) for a, b in cut)
    shared = shared_heads(heads, group)
    sinks = [(0, heads) for _ in where[3:]]
    wanted = ((1, heads), (1, shared), (1, shared), None, None, None, *sinks)
    return Part(wanted, lambda inputs: apply("attention", *inputs, label=node.name, **node.attrs))


@rule("set_rows", lambda c, node, axis: Grid(c.grid(node.inputs[1], 1).unit, gain=KV_GAIN) if axis == 1 else WHOLE)
def _set_rows(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    cache = c.leaves.cache(node.inputs[0], cut)
    return Part((None, (1, cut), None), lambda inputs: apply("set_rows", cache, *inputs[1:], label=node.name))


# Experts.


def _by_expert(c: Context, node: Node, axis: int) -> Grid:
    """A row of a vector for each expert: along the row, or where heads are experts along these."""
    heads = axis == 1 and node.inputs[-1].op == "numbers"
    return c.grid(node.inputs[0], axis) if heads or axis == len(node.shape) - 1 else WHOLE


@rule("add_rows", _by_expert)
def _add_rows(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    x, rows, ids = node.inputs
    width = size(x, 2)
    experts = size(rows, 0) // width
    if axis == 1:
        own = c.leaves.vector(rows, tuple((a * width, b * width) for a, b in cut))
        return Part(((1, cut), None, None), lambda inputs: apply(
            node.op, inputs[0], own, apply("numbers", *ids.inputs, count=size_of(cut), label=ids.name),
            label=node.name))
    own = c.leaves.vector(rows, cut, (experts, width))
    return Part(((2, cut), None, None), lambda inputs: apply(node.op, inputs[0], own, inputs[2], label=node.name))


@rule("weighted_sum", lambda c, node, axis: c.grid(node.inputs[0], 2) if axis == len(node.shape) - 1 else WHOLE)
def _weighted_sum(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    return Part(((2, cut), None), lambda inputs: apply(node.op, *inputs, label=node.name))


def slice_of(node: Node, axis: int, cut: Cut) -> Node:
    """Of a whole value [T, ...], the places of an axis that a cut takes."""
    last = len(node.shape) - 1
    if last == 2 and axis == 2:
        return _side_by_side([apply("slice_heads", node, start=a, size=b - a, label=node.name) for a, b in cut])
    inner = prod(size(node, i) for i in range(axis + 1, last + 1))
    row: Any = (node.shape[0], inner * size(node, axis))
    flat = node if last == 1 else apply("reshape", node, shape=row, label=node.name)
    parts = [apply("columns", flat, start=a * inner, size=(b - a) * inner, label=node.name) for a, b in cut]
    shape: Any = (node.shape[0], size_of(cut), *node.shape[axis + 1 :])
    if len(parts) > 1:
        rows = [apply("reshape", p, shape=(p.shape[0], 1, p.shape[1]), label=p.name) for p in parts]
        return apply("reshape", _side_by_side(rows), shape=shape, label=node.name)
    return parts[0] if last == 1 else apply("reshape", parts[0], shape=shape, label=node.name)


def _side_by_side(parts: Sequence[Node]) -> Node:
    first, *rest = parts
    for part in rest:
        first = apply("join_heads", first, part, label=first.name)
    return first
