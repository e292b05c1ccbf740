"""Ops that ranks run together: calls of the communicator, on the stream between kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.ops.registry import binds
from octavo.formats.part import places, size_of
from octavo.graph.node import Node
from octavo.graph.protocol import Call


@binds("all_reduce")
def _all_reduce(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, *terms = inputs
    calls: list[Call] = c.communicator.sum_calls(c, x, terms, out)
    return calls


@binds("all_max")
def _all_max(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    return [partial(out.copy_, x), partial(c.communicator.all_reduce, out, "max")]


@binds("all_gather")
def _all_gather(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    """Rows of all tokens and of the axes before the one that is gathered; those of smaller parts are filled up."""
    (x,), axis, parts = inputs, node.attrs["axis"], node.attrs["parts"]
    rows, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    widths = [size_of(cut) * inner for cut in parts]
    most, own = max(widths), x.shape[axis] * inner
    found = c.shared("gathered", len(parts) * rows * most, x.dtype).view(len(parts), rows, most)
    sent = x.view(rows, own) if own == most else c.shared("part to gather", rows * most, x.dtype).view(rows, most)
    whole = out.view(rows, prod(out.shape[axis:]))  # there may be no rows
    copies = [(whole[:, there], found[rank, :, here]) for rank, there, here in places(parts, inner)]

    def gather() -> None:
        if own != most:
            sent[:, :own].copy_(x.view(rows, own))
        c.communicator.all_gather(sent, found)
        for target, source in copies:
            target.copy_(source)

    return [gather]
