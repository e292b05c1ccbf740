"""What each op lets through: which channels of its result change with which of its inputs, and which must stay.

There are three kinds of change. SCALES multiplies each channel by a number of its own, ORDERS puts channels in another
place, ROTATIONS mixes them. What is linear lets all of them through.
"""

from __future__ import annotations

import numpy as np

from octavo.calibrate.fold.region import ChannelPlace, Region, Rule
from octavo.formats import dequantize
from octavo.graph.node import Node
from octavo.graph.pointwise import POINTWISE
from octavo.graph.pointwise.expression import Fold


def _spread(r: Region, big: ChannelPlace, small: ChannelPlace, sign: int = 1) -> None:
    """Each channel of `small` goes with every one of `big` that it is read for."""
    if big.size % small.size:
        r.fix(big)
        r.fix(small)
    else:
        r.link(big, small, at_b=np.arange(big.size) % small.size, sign=sign)


def _source(r: Region, node: Node) -> ChannelPlace:
    """A vector of weights, or a value."""
    return r.flow.vector(node) if node.op == "weight" else r.flow.value(node)


def _keep(r: Region, n: Node) -> None:
    """Nothing that goes in or comes out may change."""
    for node in (n, *n.inputs):
        r.fix(r.flow.value(node))


def _through(r: Region, n: Node) -> None:
    """The result changes as the first input does."""
    r.link(r.flow.value(n), r.flow.value(n.inputs[0]))


def _mul_mat(r: Region, n: Node) -> None:
    weight, x = n.inputs[:2]
    r.link(r.flow.value(n), r.flow.rows(weight))
    columns = r.flow.columns(weight)
    if r.flow.value(x).size not in (columns.size, weight.shape[-1]):
        r.fix(columns)
        r.fix(r.flow.value(x))
    else:
        _spread(r, columns, r.flow.value(x), r.flow.inverse)


def _mul_mat_id(r: Region, n: Node) -> None:
    _mul_mat(r, n)
    experts = n.inputs[0].shape[0]
    assert isinstance(experts, int)
    for place in (r.flow.rows(n.inputs[0]), r.flow.columns(n.inputs[0])):
        r.separate(place, np.repeat(np.arange(experts), place.size // experts))


def _add(r: Region, n: Node) -> None:
    """A sum of its inputs, each times numbers of a row, which stay."""
    _through(r, n)
    for other in n.inputs[1:]:
        if _of_rows(other, n):
            r.fix(_source(r, other))
        else:
            _spread(r, r.flow.value(n), _source(r, other))


def _of_rows(x: Node, n: Node) -> bool:
    """Whether x has a number for each row of n."""
    return x.op != "weight" and x.shape[-1:] == (1,) != n.shape[-1:]


def _mul(r: Region, n: Node) -> None:
    """By a constant, or by a number for each row."""
    a, b = n.inputs
    constant = b.op == "weight" and b.attrs.get("constant")
    if _of_rows(b, a) or (constant and (r.flow.inverse < 0 or np.ptp(dequantize(b.tensor)) == 0)):
        _through(r, n)
    else:
        _keep(r, n)
    r.fix(_source(r, b))


def _gated(r: Region, n: Node) -> None:
    """act(gate) * up: linear in up only."""
    gate, up = n.inputs
    r.fix(r.flow.value(gate))
    r.link(r.flow.value(n), r.flow.value(up))


def _elementwise(r: Region, n: Node) -> None:
    for x in n.inputs:
        r.link(r.flow.value(n), r.flow.value(x))


def _norm(r: Region, n: Node) -> None:
    """Its weights take up scales; what it norms stays."""
    r.fix(r.flow.value(n.inputs[0]))
    _norm_weights(r, n)


def _whole_norm(r: Region, n: Node) -> None:
    """A sum of squares is the same in any order. Weights go along, unless they are one number for all."""
    _through(r, n)
    weight = n.inputs[1]
    if len(n.inputs) > 2 or not (weight.attrs.get("constant") and np.ptp(dequantize(weight.tensor)) == 0):
        _norm_weights(r, n)


def _norm_weights(r: Region, n: Node) -> None:
    _, weight, *bias = n.inputs
    for place in (r.flow.norm(weight), *map(r.flow.vector, bias)):
        _spread(r, r.flow.value(n), place)


def _get_rows(r: Region, n: Node) -> None:
    table = n.inputs[0]
    r.link(r.flow.value(n), r.flow.columns(table) if table.op == "weight" else r.flow.value(table))


def _set_rows(r: Region, n: Node) -> None:
    r.link(r.flow.value(n), r.flow.value(n.inputs[1]))


def _weighted_sum(r: Region, n: Node) -> None:
    x, weights = n.inputs
    for place in (r.flow.value(x), r.flow.value(n)):
        at = np.arange(place.size)
        r.link(place, r.flow.value(x), at, at % _heads(x)[1])
    r.fix(r.flow.value(weights))


def _mul_in_order(r: Region, n: Node) -> None:
    """Also by a vector of weights, whose values go along."""
    b = n.inputs[1]
    if b.op == "weight" and not b.attrs.get("constant"):
        _add(r, n)
    else:
        _mul(r, n)


def _add_rows(r: Region, n: Node) -> None:
    _through(r, n)
    r.link(r.flow.value(n), r.flow.vector(n.inputs[1]))


def _reshape(r: Region, n: Node) -> None:
    """A result that is smaller is of one expert a token, whichever it is."""
    x = n.inputs[0]
    if r.flow.value(x).size == r.flow.value(n).size or x.shape[1] == 1:
        _spread(r, r.flow.value(x), r.flow.value(n))
    else:
        _keep(r, n)


def _columns(r: Region, n: Node) -> None:
    start, size = n.attrs["start"], n.attrs["size"]
    r.link(r.flow.value(n), r.flow.value(n.inputs[0]), at_b=np.arange(start, start + size))


def _slice_heads(r: Region, n: Node) -> None:
    heads, dim = _heads(n.inputs[0])
    at = np.arange(heads * dim).reshape(heads, dim)[:, n.attrs["start"] :][:, : n.attrs["size"]]
    r.link(r.flow.value(n), r.flow.value(n.inputs[0]), at_b=at.ravel())


def _join_heads(r: Region, n: Node) -> None:
    a, b = n.inputs
    heads, dim = _heads(n)
    at, first = np.arange(heads * dim).reshape(heads, dim), _heads(a)[1]
    r.link(r.flow.value(n), r.flow.value(a), at_a=at[:, :first].ravel())
    r.link(r.flow.value(n), r.flow.value(b), at_a=at[:, first:].ravel())


def _take_columns(r: Region, n: Node) -> None:
    order = dequantize(n.inputs[1].tensor).astype(np.int64)
    r.link(r.flow.value(n), r.flow.value(n.inputs[0]), at_b=order)


def _rope(r: Region, n: Node) -> None:
    """The two values of a pair change alike."""
    _through(r, n)
    first, second = _pairs(n)
    x = r.flow.value(n)
    r.link(x, x, first, second)


def _unturned(r: Region, n: Node) -> None:
    """What is turned stays in its place."""
    _through(r, n)
    for part in _pairs(n):
        r.fix(r.flow.value(n), part)


def _attention(r: Region, n: Node) -> None:
    """Scores are products of q and k; sums of v are linear in it. Channels belong to one head."""
    q, k, v = n.inputs[:3]
    heads, dim = _heads(q)
    kv_heads, _ = _heads(k)
    at = (np.arange(heads) // (heads // kv_heads))[:, None] * dim + np.arange(dim)
    r.link(r.flow.value(q), r.flow.value(k), at_b=at.ravel(), sign=r.flow.inverse)
    r.link(r.flow.value(n), r.flow.value(v), at_b=at[:, : n.attrs.get("value_dim", 0) or dim].ravel())
    for cached in (k, v):
        r.separate(r.flow.value(cached), np.repeat(np.arange(kv_heads), dim))


def _mixed_values(r: Region, n: Node) -> None:
    """q and k stay, and so do keys that are values too."""
    for x in n.inputs[:2]:
        r.fix(r.flow.value(x))
    _attention(r, n)


def _heads(x: Node) -> tuple[int, int]:
    heads, dim = x.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(dim, int)
    return heads, dim


def _pairs(n: Node) -> tuple[np.ndarray, np.ndarray]:
    """Places of the first and of the second value of each pair that rope turns."""
    heads, dim = _heads(n)
    half = n.inputs[2].shape[0]
    assert isinstance(half, int)
    turned = np.arange(half)
    first = 2 * turned if n.attrs["interleaved"] else turned
    second = first + (1 if n.attrs["interleaved"] else half)
    base = np.arange(heads)[:, None] * dim
    return (base + first).ravel(), (base + second).ravel()


_LINEAR: dict[str, Rule] = {
    "mul_mat": _mul_mat, "mul_mat_id": _mul_mat_id, "get_rows": _get_rows, "set_rows": _set_rows,
    "weighted_sum": _weighted_sum, "add_rows": _add_rows, "reshape": _reshape, "columns": _columns,
    "slice_heads": _slice_heads, "join_heads": _join_heads, "take_columns": _take_columns,
    "take_columns_id": _take_columns,
    **dict.fromkeys(("soft_max", "top_k", "keep_groups", "numbers", "gather", "normalize", "sparse_shares",
                     "keep_largest", "as_large_as", "causal_conv", "gated_delta_rule", "selective_scan",
                     "channel_scan", "wkv6", "wkv7"), _keep),
}

_POINTWISE: dict[Fold, tuple[Rule, Rule, Rule]] = {
    "keep": (_keep, _keep, _keep), "through": (_through, _through, _through),
    "elementwise": (_keep, _elementwise, _keep), "gated": (_gated, _elementwise, _keep),
    "add": (_add, _add, _add), "mul": (_mul, _mul_in_order, _mul),
}
"""By what a pointwise op lets through: its rules for SCALES, ORDERS and ROTATIONS."""


def _of_pointwise(change: int) -> dict[str, Rule]:
    return {name: _POINTWISE[op.fold][change] for name, op in POINTWISE.items()}


SCALES: dict[str, Rule] = _LINEAR | _of_pointwise(0) | {
    "rms_norm": _norm, "layer_norm": _norm, "rope": _rope, "attention": _attention,
}
"""Each channel times a number of its own, of any sign but not 0."""

ORDERS: dict[str, Rule] = _LINEAR | _of_pointwise(1) | {
    "rms_norm": _whole_norm, "layer_norm": _whole_norm, "rope": _unturned, "attention": _attention,
    "as_large_as": _add, "keep_largest": _elementwise,
}
"""Channels in another order, among those of one block."""

ROTATIONS: dict[str, Rule] = _LINEAR | _of_pointwise(2) | {
    "rms_norm": _whole_norm, "layer_norm": _whole_norm, "rope": _unturned, "attention": _mixed_values,
    "as_large_as": _add,
}
"""Channels of a block times an orthogonal matrix; norms' weights must be 1, and a layer norm's mean must stay."""
