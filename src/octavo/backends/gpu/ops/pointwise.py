"""Ops that compute each value, or each row, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton import next_power_of_2

from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.sizes import warps_of
from octavo.backends.gpu.ops.quantize import bind_quantize
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.pointwise import kernel as pointwise
from octavo.backends.gpu.pointwise.launch import launch_pointwise
from octavo.graph.node import Node
from octavo.graph.protocol import Call


@binds("rms_norm")
def _rms_norm(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    if node.quantizes:
        return bind_quantize(c, node, inputs, out)
    x, weight = inputs
    heads, k = (x.shape[1], x.shape[2]) if x.ndim == 3 else (1, x.shape[1])
    block = next_power_of_2(k)
    return [c.launch(pointwise.rms_norm_kernel, (len(x) * heads,), x, weight, out, x.stride(0), out.stride(0), heads,
                     k, node.attrs["eps"], B=block, warps=warps_of(block))]


@binds("layer_norm")
def _layer_norm(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, weight, *bias = inputs
    block = next_power_of_2(x.shape[1])
    return [c.launch(pointwise.layer_norm_kernel, (len(x),), x, weight, bias[0] if bias else None, out, x.stride(0),
                     out.stride(0), x.shape[1], node.attrs["eps"], B=block, warps=warps_of(block))]


@binds("pointwise")
def _pointwise(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    if node.quantizes:
        return bind_quantize(c, node, inputs, out)
    return [launch_pointwise(c, node.op, inputs, out, node.attrs)]


@binds("soft_max", "normalize", "keep_largest")
def _row(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,), k = inputs, out.shape[1]
    block = next_power_of_2(k)
    return [c.launch(pointwise.row_kernel, (len(x),), x, out, x.stride(0), out.stride(0), k,
                     float(node.attrs.get("spread", 0.0)), OP=node.op, B=block, warps=warps_of(block))]


@binds("largest_magnitude")
def _largest_magnitude(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x = inputs[0].view(-1, inputs[0].shape[-1])
    block = next_power_of_2(x.shape[1])
    return [c.launch(pointwise.largest_magnitude_kernel, (len(x),), x, out, x.stride(0), x.shape[1], B=block,
                     warps=warps_of(block))]


@binds("as_large_as")
def _as_large_as(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x, like), (tokens, count, k) = inputs, out.shape
    block = next_power_of_2(k)
    return [c.launch(pointwise.as_large_as_kernel, (tokens,), x, like, out, x.stride(0), like.stride(0), out.stride(0),
                     k, float(node.attrs["least"]), S=count, B=block, warps=warps_of(block))]
