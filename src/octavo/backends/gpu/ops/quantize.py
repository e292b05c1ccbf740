"""Activations in the numbers that products want."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton import next_power_of_2

from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, TokenCodes
from octavo.backends.gpu.launch.sizes import QUANTIZE_BLOCK, block_of, warps_of
from octavo.backends.gpu.matmul import activations
from octavo.backends.gpu.matmul.matvec.float8_kernel import FLOAT8_PLANES
from octavo.backends.gpu.matmul.w8a8.row_scales import quantize_tokens
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.pointwise.expressions import expression_of
from octavo.graph.node import Node
from octavo.graph.pointwise import POINTWISE
from octavo.graph.protocol import Call


@binds("quantize")
def bind_quantize(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    """`quantize`, or the op whose result is quantized on its way out."""
    x, *others = inputs
    least = others.pop() if node.op == "quantize" and others else None
    kind = "values" if node.op == "quantize" else expression_of(node.op) if node.op in POINTWISE else node.op
    source = Source(matrix(x), matrix(others[0]) if others else None, float(node.attrs.get("eps", 0.0)))
    if isinstance(out, TokenCodes):
        block = next_power_of_2(out.k)
        return quantize_tokens(c, out, source, kind, block, warps_of(block), node.static_scale, least)
    if isinstance(out, Activation):
        return quantized(c, source, out, kind)
    return [float_call(c, source, len(out), matrix(out), None, kind, out.shape[1], out.shape[1])]


def quantized(c: Context, source: Source, out: Activation, kind: Any = "values") -> list[Call]:
    """Activations of `source` for as many tokens: 8-bit codes for few, float16 for many."""
    if (planar := out.planar) is not None:
        return [float_call(c, source, out.tokens, matrix(planar), None, kind, out.k, out.kp, FLOAT8_PLANES)]
    plain, ordered = c.wanted_of(out)
    if out.is_q8_1:
        return [quantize_call(c, source, out.tokens, plain, kind, out.k, out.kp, ordered)]
    return [float_call(c, source, out.tokens, plain, ordered, kind, out.k, out.kp)]


def float_call(
    c: Context, source: Source, rows: int, out: Any, ordered: Any, kind: Any, k: int, kp: int, planes: int = 1
) -> Call:
    """Rows of k values of `source` in the type of `out`, filled up with zeros to kp; `ordered` and `planes` as
    `float_kernel` has them."""
    block = next_power_of_2(kp) if kind == "rms_norm" else block_of(kp, 2048)
    grid = (rows, -(-kp // block))
    return c.launch(activations.float_kernel, grid, source, out, ordered, k, kp, KIND=kind, B=block,
                    PLANES=planes, warps=warps_of(block))


def quantize_call(
    c: Context, source: Source, rows: int, out: Any, kind: Any, k: int, kp: int, ordered: Any = None
) -> Call:
    """8-bit codes of rows of k values of `source`, filled up with zeros to kp; `out` and `ordered` as `store_q8_1` has
    them."""
    block = next_power_of_2(kp) if kind == "rms_norm" else block_of(kp, QUANTIZE_BLOCK)
    warps = warps_of(block if out is not None or kind != "rms_norm" else 2 * block)
    grid = (rows, -(-kp // block))
    return c.launch(activations.quantize_kernel, grid, source, out, ordered, k, kp, KIND=kind, B=block, warps=warps)
