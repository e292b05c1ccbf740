"""Graphs with weights that have a scale for each row, and what they mean in float64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from octavo.formats import QTensor, channel_format, dequantize, quantize_reference, unpack
from octavo.formats.activation import STATIC, activation
from octavo.formats.spec import F32
from octavo.graph.builder import constant, weight
from octavo.graph.executor import Executor
from octavo.graph.lower import lower
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from octavo.graph.protocol import Backend
from octavo.graph.schedule import schedule

NAMES = ("INT8", "INT4", "INT4_G128", "FP8")
EPS = 1e-5


def random(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix(name: str, n: int, k: int, seed: int = 1) -> QTensor:
    return quantize_reference(random(n, k, seed=seed), channel_format(name, k), "w")


def tokens_of(k: int, name: str = "x") -> Node:
    return Node("input", (), ("tokens", k), "f32", MappingProxyType({}), name)


def rows_of_table() -> Node:
    """What no backend has a kernel for: rows of a table in a format of rows."""
    return apply("get_rows", weight(matrix("INT8", 8, 64)), Node("input", (), ("tokens",), "i32", name="ids"))


def run(backend: Backend, graph: Graph, inputs: dict[str, F32]) -> tuple[list[str], list[F32]]:
    """The ops that a graph becomes on a backend, and its results."""
    sizes = {"tokens": len(next(iter(inputs.values())))}
    lowered = lower(graph, [backend])
    planned = schedule(lowered, [backend], sizes, strict=True)
    results: list[F32] = Executor(planned, [backend], sizes).run(inputs, sizes)
    return [n.title for n in lowered.nodes if not n.is_leaf], results


def quantized(op: str, name: str, *, static: bool = False) -> str:
    """What `run` calls an op whose result is quantized for weights of a format."""
    token = channel_format(name, 256).activation
    return f"{op}:{STATIC[token] if static else token}"


def rounded(x: F32, tensor: QTensor, scale: float | None = None) -> F32:
    token = tensor.format.activation
    if scale is not None:
        given = activation(STATIC[token]).given
        assert given is not None
        return given(x, scale).dequantize()
    quantize = activation(token).quantize
    assert quantize is not None
    return quantize(x).dequantize()


def product(tensor: QTensor, x: F32, scale: float | None = None) -> Any:
    """The product with rounded activations, in float64; `scale` is a static one."""
    return rounded(x, tensor, scale).astype(np.float64) @ dequantize(tensor).astype(np.float64).T


def unfolded(tensor: QTensor, x: F32) -> Any:
    """The product by weights whose scales of groups are not folded into their codes, in float64."""
    planes, fmt = unpack(tensor), tensor.format
    assert planes.d is not None
    assert planes.sc is not None
    scales = planes.d.astype(np.float64) * planes.sc
    return rounded(x, tensor).astype(np.float64) @ (fmt.code(planes.q) * np.repeat(scales, fmt.group, axis=-1)).T


def nmse(got: F32, want: Any) -> float:
    return float(((got - want) ** 2).sum() / (np.asarray(want, np.float64) ** 2).sum())


def one_product(tensor: QTensor, scale: float | None = None) -> Graph:
    return Graph.of(apply("mul_mat", weight(tensor, scale), tokens_of(tensor.shape[1])))


def with_terms(tensor: QTensor, bias: F32) -> Graph:
    """x @ w.T + bias + residual."""
    y = apply("add", apply("mul_mat", weight(tensor), tokens_of(tensor.shape[1])), constant(bias, "bias"))
    return Graph.of(apply("add", y, tokens_of(tensor.shape[0], "residual")))


def normed(tensors: list[QTensor], norm: F32, scales: Sequence[float] = ()) -> Graph:
    """Products of one normed activation with several weights, which may have static scales."""
    h = apply("rms_norm", tokens_of(tensors[0].shape[1]), constant(norm, "norm"), eps=EPS)
    return Graph.of(*(apply("mul_mat", weight(t, s), h) for t, s in zip_longest(tensors, scales)))


def biased(tensors: list[QTensor], norm: F32, biases: list[F32]) -> Graph:
    """The same, a bias added to each."""
    parts = zip(normed(tensors, norm).outputs, biases, strict=True)
    return Graph.of(*(apply("add", y, constant(bias, f"bias{i}")) for i, (y, bias) in enumerate(parts)))


def gated(tensor: QTensor, scale: float | None = None) -> Graph:
    k = tensor.shape[1]
    return Graph.of(apply("mul_mat", weight(tensor, scale), apply("swiglu", tokens_of(k, "gate"), tokens_of(k, "up"))))


def norm_of(x: F32, weight: F32) -> F32:
    wide = x.astype(np.float64)
    return (wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPS) * weight).astype(np.float32)


def swiglu_of(gate: F32, up: F32) -> F32:
    wide = gate.astype(np.float64)
    return (wide / (1 + np.exp(-wide)) * up).astype(np.float32)
