"""Ops that compute each value, or each row, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.launch.calls import rows_call, stride
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.ops.quantize import bind_quantize
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.pointwise import kernel as elementwise
from octavo.backends.cpu.pointwise.expression_kernel import pointwise_kernel
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.graph.pointwise import POINTWISE
from octavo.graph.pointwise.expression import operands
from octavo.jit.program import KernelCall

OF_A_ROW = {
    "soft_max": elementwise.soft_max_kernel,
    "normalize": elementwise.normalize_kernel,
    "keep_largest": elementwise.keep_largest_kernel,
}


@binds("rms_norm")
def _rms_norm(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    if node.quantizes:
        return bind_quantize(node, inputs, out, shared)
    x, weight = inputs
    heads, k = (x.shape[1], x.shape[2]) if x.ndim == 3 else (1, x.shape[1])
    return [rows_call(
        elementwise.rms_norm_kernel(), out, x, weight=weight, k=k, eps=float(node.attrs["eps"]),
        heads=heads, y_head_stride=k * 4, x_head_stride=k * 4,
    )]


@binds("layer_norm")
def _layer_norm(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, weight, *bias = inputs
    kernel, given = elementwise.layer_norm_kernel(bool(bias)), bias[0] if bias else 0
    return [rows_call(kernel, out, x, weight=weight, bias=given, k=x.shape[1], eps=float(node.attrs["eps"]))]


@binds("pointwise")
def _pointwise(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    if node.quantizes:
        return bind_quantize(node, inputs, out, shared)
    op, (rows, k, lie) = POINTWISE[node.op], operands(out.shape, *(x.shape for x in inputs))
    given: dict[str, Any] = {"y": out, "y_token": stride(out), "y_row": 4 * k}
    kinds = []
    for i, (x, (by_token, by_row, by_value)) in enumerate(zip(inputs, lie, strict=True)):
        kinds.append(("i32" if x.dtype == np.int32 else "f32") + ("" if by_value else " row"))
        given[f"x{i}"], given[f"x{i}_token"] = x, stride(x) if by_token else 0
        given[f"x{i}_row"] = x.strides[-2] if by_row else 0
    given |= {f"n{i}": number for i, number in enumerate(op.given(node.attrs))}
    return [KernelCall(pointwise_kernel(op.version, *kinds), len(out), rows=rows, k=k, **given)]


@binds(*OF_A_ROW)
def _row(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    numbers = {name: float(value) for name, value in node.attrs.items()}
    return [rows_call(OF_A_ROW[node.op](), out, inputs[0], k=out.shape[1], **numbers)]


@binds("largest_magnitude")
def _largest_magnitude(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    return [rows_call(elementwise.largest_magnitude_kernel(), out, inputs[0], k=inputs[0].shape[1])]


@binds("as_large_as")
def _as_large_as(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, like = inputs
    _, count, k = x.shape
    return [rows_call(
        elementwise.as_large_as_kernel(), out, x, like=like, like_stride=stride(like), streams=count, k=k,
        least=float(node.attrs["least"]),
    )]
