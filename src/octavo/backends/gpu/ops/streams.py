"""Ops on several streams of a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton import next_power_of_2

from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.sizes import block_of, warps_of
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.pointwise import streams_kernel as altup
from octavo.graph.node import Node
from octavo.graph.protocol import Call


@binds("predict_streams", "correct_streams", "add_to_others")
def _by_parts(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    tokens, count, k = out.shape
    block, kernel = block_of(k), getattr(altup, f"{node.op}_kernel")
    strides = (x.stride(0) for x in (*inputs, out))
    return [c.launch(kernel, (tokens, -(-k // block)), *inputs, out, *strides, k, S=count, B=block)]


@binds("as_large_as")
def _as_large_as(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x, like), (tokens, count, k) = inputs, out.shape
    block = next_power_of_2(k)
    return [c.launch(altup.as_large_as_kernel, (tokens,), x, like, out, x.stride(0), like.stride(0), out.stride(0), k,
                     float(node.attrs["least"]), S=count, B=block, warps=warps_of(block))]
