"""Rules of ops that keep states: by channels, or by heads, as attention is."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from octavo.formats.part import Cut
from octavo.graph.node import Node
from octavo.graph.ops import apply
from octavo.graph.shard.cuts import WHOLE, Grid
from octavo.graph.shard.rules import KV_GAIN, Context, Part, Wanted, head_grid, joined_grid, rule, shared_heads, size

LANES = 16
"""Channels that kernels take together."""


def _of_channels(grid: Grid, channels: int) -> Grid:
    unit = lcm(grid.unit, LANES) if channels % LANES == 0 else grid.unit
    return Grid(unit, grid.wall, grid.period, grid.gain) if grid.gain else WHOLE


def _times(cut: Cut, n: int) -> Cut:
    """Places of an axis, each of which is n of another one."""
    return tuple((a * n, b * n) for a, b in cut)


def _made(node: Node, wanted: Sequence[Wanted | None], own: dict[int, Node]) -> Part:
    """A part of a node whose inputs are wanted parts, but for leaves of its own, by their number."""
    def make(inputs: Sequence[Node]) -> Node:
        given = [own.get(i, x) for i, x in enumerate(inputs)]
        return apply(node.op, *given, label=node.name, **node.attrs)

    return Part(tuple(None if i in own else one for i, one in enumerate(wanted)), make)


def _taps(node: Node) -> tuple[int, int]:
    """Values of a channel that a convolution sees, and filters of each channel."""
    seen = size(node.inputs[2], 1) + 1
    return seen, size(node.inputs[1], 0) // (seen * size(node.inputs[0], 1))


def _convolution_grid(c: Context, node: Node, axis: int) -> Grid:
    return _of_channels(c.grid(node.inputs[0], 1), size(node, 1)) if _taps(node)[1] == 1 else WHOLE


@rule("causal_conv", _convolution_grid)
def _convolution(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    x, taps, state, *where = node.inputs
    own = {1: c.leaves.vector(taps, cut, (_taps(node)[0], size(x, 1))), 2: c.leaves.state(state, 2, cut)}
    return _made(node, [(1, cut), None, None, *(None,) * 3, *[(0, cut) for _ in where[3:]]], own)


def _channel_grid(c: Context, node: Node, axis: int) -> Grid:
    grid = _of_channels(joined_grid(c, node, [1, None, None, 1, *(None,) * 6]), size(node, 1))
    return Grid(grid.unit, grid.wall, grid.period, KV_GAIN) if grid.gain else WHOLE


@rule("channel_scan", _channel_grid)
def _channel_scan(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    ssm_a, state = node.inputs[4], node.inputs[6]
    own = {4: c.leaves.vector(ssm_a, cut, (size(state, 1), size(state, 2))), 6: c.leaves.state(state, 2, cut)}
    return _made(node, [(1, cut), None, None, (1, cut), None, (0, cut), None, None, None, None], own)


def _scan_grid(c: Context, node: Node, axis: int) -> Grid:
    x, b, after, steps = node.inputs[:4]
    of_x = _with_unit(c.grid(x, 1), c.grid(steps, 1))
    if not of_x.gain:
        return WHOLE
    grid = head_grid(c, size(x, 1), size(b, 1), of_x, c.grid(b, 1), c.grid(after, 1))
    return Grid(grid.unit, grid.wall, gain=KV_GAIN).times(size(x, 2)) if grid.gain else WHOLE


@rule("selective_scan", _scan_grid)
def _scan(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    x, b, state = node.inputs[0], node.inputs[1], node.inputs[7]
    heads = tuple((a // size(x, 2), z // size(x, 2)) for a, z in cut)
    groups = shared_heads(heads, size(x, 1) // size(b, 1))
    wanted: list[Wanted | None] = [(1, heads), (1, groups), (1, groups), (1, heads), *[(0, heads)] * 3, *[None] * 4]
    return _made(node, wanted, {7: c.leaves.state(state, 1, heads)})


def _with_unit(grid: Grid, *others: Grid) -> Grid:
    """A grid of heads that others, which have a number for each, can follow."""
    return Grid(lcm(grid.unit, *(g.unit for g in others if g.gain)), grid.wall, grid.period, grid.gain)


def _delta_grid(c: Context, node: Node, axis: int) -> Grid:
    """Value heads that share a key head stay together; where they are every n-th, each n of them are cut alike."""
    q, k, v, alpha, beta = node.inputs[:5]
    heads, keys, decays = size(v, 1), size(k, 1), c.grid(alpha, 1).of_units(size(alpha, 1) // size(v, 1))
    of_v = _with_unit(c.grid(v, 1), decays, c.grid(beta, 1))
    if not of_v.gain or of_v.wall or of_v.period:
        return WHOLE
    if not node.attrs["tiled"] or heads == keys:
        grid = head_grid(c, heads, keys, of_v, c.grid(q, 1), c.grid(k, 1))
    elif any(c.grid(x, 1).wall or c.grid(x, 1).period for x in (q, k)):
        return WHOLE
    else:
        grid = Grid(lcm(of_v.unit, c.grid(q, 1).unit, c.grid(k, 1).unit), period=keys, gain=1)
    return Grid(grid.unit, grid.wall, grid.period, KV_GAIN).times(size(v, 2)) if grid.gain else WHOLE


@rule("gated_delta_rule", _delta_grid)
def _delta(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    _, k, v, alpha, _, _, _, state, *_ = node.inputs
    heads = tuple((a // size(v, 2), b // size(v, 2)) for a, b in cut)
    if node.attrs["tiled"] and size(v, 1) != size(k, 1):
        keys: Cut = heads[:1]  # of the first period, which begins with key head 0
    else:
        keys = shared_heads(heads, size(v, 1) // size(k, 1))
    decays = _times(heads, size(alpha, 1) // size(v, 1))
    wanted: list[Wanted | None] = [
        (1, keys), (1, keys), (1, heads), (1, decays), (1, heads), (0, heads), (0, decays), *[None] * 4
    ]
    return _made(node, wanted, {7: c.leaves.state(state, 1, heads)})


def _mixing_state(node: Node) -> int:
    """The number of the input with the states of RWKV's time mixing."""
    return next(i for i, x in enumerate(node.inputs) if x.op == "state")


def _mixing_grid(c: Context, node: Node, axis: int) -> Grid:
    at = _mixing_state(node)
    values = (*node.inputs[: at - 1], *node.inputs[at + 4 :])
    grids = [g for x in values if (g := c.grid(x, 1)).gain]
    if not grids or any(g.wall or g.period for g in grids):
        return WHOLE
    return Grid(lcm(size(node.inputs[at], 2), *(g.unit for g in grids)), gain=KV_GAIN)


def _mixing(c: Context, node: Node, axis: int, cut: Cut) -> Part:
    at = _mixing_state(node)
    state, vectors = node.inputs[at], node.inputs[at - 1]
    n, width = size(state, 2), size(node, 1)
    heads = tuple((a // n, b // n) for a, b in cut)
    own = {
        at - 1: c.leaves.vector(vectors, cut, (size(vectors, 0) // width, width)), at: c.leaves.state(state, 1, heads)
    }
    wanted: list[Wanted | None] = [(1, cut)] * (at - 1)
    return _made(node, [*wanted, None, None, *[None] * 3, *[(1, cut) for _ in node.inputs[at + 4 :]]], own)


for _name in ("wkv7", "wkv6"):
    rule(_name, _mixing_grid)(_mixing)
