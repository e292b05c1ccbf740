"""Ops that compute each value, or each row, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.launch.calls import rows_call, stride
from octavo.backends.cpu.launch.shared import Shared
from octavo.backends.cpu.ops.quantize import bind_quantize
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.pointwise import kernel as elementwise
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.jit.program import KernelCall

OF_A_ROW = {
    "soft_max": elementwise.soft_max_kernel,
    "normalize": elementwise.normalize_kernel,
    "sigmoid": elementwise.sigmoid_kernel,
    "relu_squared": elementwise.relu_squared_kernel,
    "gelu": elementwise.gelu_kernel,
    "gelu_erf": elementwise.gelu_erf_kernel,
}


@binds("rms_norm")
def _rms_norm(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    if node.quantizes:
        return bind_quantize(node, inputs, out, shared)
    x, weight = inputs
    heads, k = (x.shape[1], x.shape[2]) if x.ndim == 3 else (1, x.shape[1])
    return [rows_call(
        elementwise.rms_norm_kernel(), out, x, weight=weight, k=k, eps=float(node.attrs["eps"]),
        heads=heads, y_head_stride=k * 4, x_head_stride=k * 4,
    )]


@binds("layer_norm")
def _layer_norm(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, weight, *bias = inputs
    kernel, given = elementwise.layer_norm_kernel(bool(bias)), bias[0] if bias else 0
    return [rows_call(kernel, out, x, weight=weight, bias=given, k=x.shape[1], eps=float(node.attrs["eps"]))]


@binds("add", "mul", "swiglu", "geglu")
def _binary(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    if node.quantizes:
        return bind_quantize(node, inputs, out, shared)
    a, b = inputs
    if a.ndim == 3 and b.ndim == 2:
        return [_scale_rows(out, a, b)]
    k = int(np.prod(out.shape[1:]))
    b_stride = stride(b) if b.ndim == a.ndim else 0
    return [KernelCall(
        elementwise.binary_kernel(node.op), len(out),
        y=out, y_stride=stride(out), a=a, a_stride=stride(a), b=b, b_stride=b_stride, k=k,
    )]


def _scale_rows(out: AnyArray, x: AnyArray, scales: AnyArray) -> KernelCall:
    """out [T, k, N] = x times the numbers of its rows, scales [T, k]; none has gaps."""
    k = x.shape[2]
    return KernelCall(
        elementwise.scale_rows_kernel(), scales.size, y=out, y_stride=4 * k, x=x, x_stride=4 * k, scales=scales, k=k
    )


@binds("clamped_swiglu")
def _clamped_swiglu(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    gate, up = inputs
    return [rows_call(
        elementwise.clamped_swiglu_kernel(), out, gate,
        up=up, up_stride=stride(up), k=int(np.prod(out.shape[1:])), **node.attrs,
    )]


@binds(*OF_A_ROW)
def _row(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    k = int(np.prod(out.shape[1:]))  # values of a token, of all its experts together
    return [rows_call(OF_A_ROW[node.op](), out, inputs[0], k=k)]


@binds("soft_cap")
def _soft_cap(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    return [rows_call(elementwise.soft_cap_kernel(), out, inputs[0], k=out.shape[1], cap=float(node.attrs["cap"]))]


@binds("clamp")
def _clamp(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    ends = {name: float(value) for name, value in node.attrs.items()}
    return [rows_call(elementwise.clamp_kernel(), out, inputs[0], k=int(np.prod(out.shape[1:])), **ends)]


@binds("xielu")
def _xielu(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    numbers = {name: float(value) for name, value in node.attrs.items()}
    return [rows_call(elementwise.xielu_kernel(), out, inputs[0], k=out.shape[1], **numbers)]


@binds("keep_largest")
def _keep_largest(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    kernel, k = elementwise.keep_largest_kernel(), out.shape[1]
    return [rows_call(kernel, out, inputs[0], k=k, spread=float(node.attrs["spread"]))]


@binds("scale_by_position")
def _scale_by_position(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, positions = inputs
    kernel, k = elementwise.scale_by_position_kernel(), x.shape[1] * x.shape[2]
    return [rows_call(kernel, out, x, k=k, positions=positions, **node.attrs)]
