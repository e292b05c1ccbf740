"""Ops that compute each value, or each row, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton import next_power_of_2

from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.ops.quantize import bind_quantize
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.ops.sizes import block_of, warps_of
from octavo.backends.gpu.pointwise import kernel as pointwise
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


@binds("add", "mul", "swiglu", "geglu")
def _binary(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    if node.quantizes:
        return bind_quantize(c, node, inputs, out)
    a, b = inputs
    by_row = a.ndim == 3 and b.ndim == 2  # [T, k, N] times [T, k]
    rows = a.shape[0] * a.shape[1] if by_row else len(a)
    a, out = a.view(rows, -1), out.view(rows, -1)
    b = b.view(-1) if by_row or b.ndim == 1 else b.view(rows, -1)
    b_stride = 1 if by_row else 0 if b.ndim == 1 else b.stride(0)
    k = out.shape[1]
    grid = (rows, -(-k // 1024))
    return [c.launch(pointwise.binary_kernel, grid, a, b, out, a.stride(0), b_stride, out.stride(0), k,
                     OP="scale_rows" if by_row else node.op, B=block_of(k))]


@binds("clamped_swiglu")
def _clamped_swiglu(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    rows = out.numel() // out.shape[-1]
    gate, up, y = (x.view(rows, -1) for x in (*inputs, out))
    k, by = y.shape[1], node.attrs
    return [c.launch(pointwise.clamped_swiglu_kernel, (rows, -(-k // 1024)), gate, up, y, gate.stride(0),
                     up.stride(0), y.stride(0), k, by["slope"], by["limit"], B=block_of(k))]


@binds("soft_max", "normalize", "soft_cap", "sigmoid", "relu_squared", "gelu", "gelu_erf")
def _row(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    k = out.numel() // len(out)  # of a token's experts together, where those are activated
    block = next_power_of_2(k)
    return [c.launch(pointwise.row_kernel, (len(x),), x, out, x.stride(0), out.stride(0), k,
                     float(node.attrs.get("cap", 1.0)), OP=node.op, B=block, warps=warps_of(block))]


@binds("clamp")
def _clamp(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,), k = inputs, out.numel() // len(out)  # of a token's experts together, where those are activated
    block = block_of(k)
    return [c.launch(pointwise.clamp_kernel, (len(x), -(-k // block)), x, out, x.stride(0), out.stride(0), k,
                     float(node.attrs["low"]), float(node.attrs["high"]), B=block)]


@binds("xielu")
def _xielu(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,), k = inputs, out.shape[1]
    block, numbers = block_of(k), (float(node.attrs[name]) for name in ("positive", "negative", "beta", "least"))
    return [c.launch(pointwise.xielu_kernel, (len(x), -(-k // block)), x, out, x.stride(0), out.stride(0), k,
                     *numbers, B=block)]


@binds("keep_largest")
def _keep_largest(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,), k = inputs, out.shape[1]
    block = next_power_of_2(k)
    return [c.launch(pointwise.keep_largest_kernel, (len(x),), x, out, x.stride(0), out.stride(0), k,
                     float(node.attrs["spread"]), B=block, warps=warps_of(block))]


@binds("scale_by_position")
def _scale_by_position(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, positions = inputs
    k = x.shape[1] * x.shape[2]
    block, by = block_of(k), node.attrs
    return [c.launch(pointwise.scale_by_position_kernel, (len(x), -(-k // block)), x, positions, out, x.stride(0),
                     out.stride(0), k, by["length"], by["factor"], by["offset"], B=block)]
