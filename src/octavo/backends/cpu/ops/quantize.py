"""Activations in the numbers that products want."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.backends.cpu.launch.calls import stride
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.matmul import quantize_kernel as quantize
from octavo.backends.cpu.matmul.w8a8.activations import Int8Tokens, quantize_tokens
from octavo.backends.cpu.matmul.w8a8.quantize_kernel import round_fp8_kernel
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.pointwise.expression_kernel import has_lanes
from octavo.graph.node import Node
from octavo.graph.pointwise import POINTWISE
from octavo.jit.program import KernelCall

TILES = quantize.TILES


@binds("quantize")
def bind_quantize(node: Node, inputs: Sequence[Any], out: Any, shared: PlanMemory) -> list[KernelCall]:
    """`quantize`, or the op whose result is quantized on its way out."""
    x, *other = inputs
    tokens, k = x.shape
    scale = node.static_scale
    least = other[0] if node.op == "quantize" and other else 0
    if node.dtype in ("fp8_token", "fp8_static"):
        kernel = round_fp8_kernel(scale is not None)
        return [KernelCall(kernel, tokens, out=out, k=k, x=x, x_stride=stride(x), given=scale or 0.0, least=least)]
    source = "values"
    more: dict[str, Any] = {"other": 0, "other_stride": 0, "eps": 0.0}
    if node.op == "rms_norm":
        source, more = "rms_norm", more | {"other": other[0], "eps": float(node.attrs["eps"])}
    elif node.op in POINTWISE:
        source = POINTWISE[node.op].version
        more |= {"other": other[0], "other_stride": stride(other[0])} if other else {}
    if isinstance(out, Int8Tokens):
        return [quantize_tokens(out, x, source, scale, least, **more)]
    tiles, chunks = quantize.tasks_of(tokens, k, TILES[0])
    return [KernelCall(
        quantize.quantize_kernel(source, TILES[0]), tiles * chunks,
        codes=out, tokens=tokens, k=k, x=x, x_stride=stride(x), chunks=chunks, **more,
    )]


def makes(op: str) -> bool:
    """Whether the result of an op has a form of 16 lanes, which is quantized."""
    return op not in POINTWISE or has_lanes(POINTWISE[op])
