"""CONTRIBUTING's "Add an op", followed with `square`: from its shape to kernels on CPU and GPU and an op case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu import ops as cpu_binders
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu import ops as gpu_binders
from octavo.backends.gpu.launch.context import Context
from octavo.backends.reference import ReferenceBackend
from octavo.backends.reference import ops as reference
from octavo.bench.op_case import OpCase, compare, run
from octavo.bench.op_graphs import GRAPHS, Sketch
from octavo.errors import GraphError
from octavo.graph.node import DType, Graph, Node, Shape
from octavo.graph.ops import OPS, apply, op
from octavo.graph.schedule import schedule
from octavo.jit.compile import kernels
from octavo.jit.program import KernelCall
from octavo.jit.record import record
from octavo.jit.simd import f32_pointer

SQUARE = record("y y_stride x x_stride k")


@kernels(SQUARE)
def square_kernel() -> Any:
    """y = x * x. Task t works on row t; strides are in bytes."""

    def square(a, task):
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        for i in range(a.k):
            ys[i] = xs[i] * xs[i]

    return square


def bind_on_cpu(node: Node, inputs: Sequence[Any], out: Any, shared: Any) -> list[KernelCall]:
    (x,) = inputs
    return [KernelCall(
        square_kernel(), len(out), y=out, y_stride=out.strides[0], x=x, x_stride=x.strides[0], k=out.shape[1],
    )]


@triton.jit
def square_on_gpu_kernel(x, y, x_stride, y_stride, k, B: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, B)
    value = tl.load(x + row * x_stride + at, mask=at < k)  # [B]
    tl.store(y + row * y_stride + at, value * value, mask=at < k)


def bind_on_gpu(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Any]:
    (x,) = inputs
    k = out.shape[1]
    return [c.launch(square_on_gpu_kernel, (len(out),), x, out, x.stride(0), out.stride(0), k,
                     B=triton.next_power_of_2(k))]


def sketch(s: Sketch) -> Node:
    return apply("square", s.given("x", s["k"]))


@pytest.fixture
def square(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @op
    def square(x: Node) -> tuple[Shape, DType]:
        """x * x."""
        return x.shape, "f32"

    monkeypatch.setattr(reference, "square", lambda x: x * x, raising=False)
    monkeypatch.setitem(cpu_binders.BINDERS, "square", bind_on_cpu)
    monkeypatch.setitem(gpu_binders.BINDERS, "square", bind_on_gpu)
    monkeypatch.setitem(GRAPHS, "square", sketch)
    yield
    del OPS["square"]


@pytest.mark.usefixtures("square")
@pytest.mark.parametrize("tokens", [1, 5])
def test_the_definition(tokens: int) -> None:
    built = OpCase("square", tokens, {"k": 3}).build()
    (found,) = run(built, [ReferenceBackend()])
    np.testing.assert_allclose(found, built.steps[0][0]["x"].astype(np.float64) ** 2, rtol=1e-6)


@pytest.mark.usefixtures("square")
@pytest.mark.parametrize("backend", [CpuBackend, GpuBackend])
@pytest.mark.parametrize(("tokens", "k"), [(1, 40), (9, 33)])
def test_backends(backend: Any, tokens: int, k: int) -> None:
    case = OpCase("square", tokens, {"k": k})
    built = case.build()
    assert compare(case, run(built, [backend()]), run(built, [ReferenceBackend()])).ok


def test_an_op_without_a_definition_is_refused() -> None:
    x = Node("input", (), ("tokens", 3), "f32", name="x")
    node = Node("square", (x,), x.shape, "f32")
    with pytest.raises(GraphError, match="no backend runs square"):
        schedule(Graph.of(node), [ReferenceBackend()], {"tokens": 8})
