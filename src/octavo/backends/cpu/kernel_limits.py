"""What the CPU's kernels can't run of an op that they have, and what they can."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octavo.formats.cache_formats import CACHE_FORMATS, CacheFormat
from octavo.formats.rotation import block_of
from octavo.graph.node import PAGE_SIZE, Node, bind, is_static
from octavo.graph.schedule import root

LANES = 16
"""Values of a vector."""


def problem(node: Node) -> str:
    """Why there is no kernel for an op of these sizes; "" where there is one."""
    check = _CHECKS.get(node.op)
    return "" if check is None else check(node)


def _attention(node: Node) -> str:
    dim, page_size = node.inputs[0].shape[2], node.attrs["page_size"]
    kept = CACHE_FORMATS[node.inputs[1].dtype]
    if node.inputs[1] is node.inputs[2] and (unshared := _unshared(node, kept)):
        return f"keys that are values too {unshared}"
    multiple = kept.group or LANES
    if not isinstance(dim, int) or dim % multiple or page_size != PAGE_SIZE:
        return f"heads of {dim} in pages of {page_size} (allowed: multiples of {multiple}, {PAGE_SIZE})"
    return ""


def _unshared(node: Node, kept: CacheFormat) -> str:
    """Why keys that are values too can't lie in such a cache, "" if they can."""
    if is_static(root(node.inputs[1])):
        return "with static scales (allowed: dynamic scales)"
    dim, values = node.inputs[0].shape[2], node.attrs.get("value_dim", 0)
    if kept.rotated and isinstance(dim, int) and values % block_of(dim):
        return f"of which {values} are values, in a cache of {kept.name} (allowed: multiples of {block_of(dim)})"
    return ""


def _channels(state: int, node: Node) -> str:
    """Of an op whose input number `state` is [slots, ..., channels]."""
    (channels,) = bind(node.inputs[state].shape[2:], {})
    return f"{channels} channels (allowed: multiples of {LANES})" if channels % LANES else ""


def _matrix_state(state: int, node: Node) -> str:
    """Of an op whose input number `state` is [slots, heads, rows, columns]."""
    matrix = bind(node.inputs[state].shape[2:], {})
    return f"a state of {list(matrix)} a head (allowed: multiples of {LANES})" if any(n % LANES for n in matrix) else ""


def _mul_mat_add(node: Node) -> str:
    terms = len(node.inputs) - 2
    return f"{terms} terms added to a product (allowed: 2)" if terms > 2 else ""


_CHECKS: dict[str, Callable[[Node], str]] = {
    "attention": _attention,
    "causal_conv": partial(_channels, 2),
    "channel_scan": partial(_channels, 6),
    "gated_delta_rule": partial(_matrix_state, 7),
    "selective_scan": partial(_matrix_state, 7),
    "wkv7": partial(_matrix_state, 6),
    "mul_mat_add": _mul_mat_add,
}
