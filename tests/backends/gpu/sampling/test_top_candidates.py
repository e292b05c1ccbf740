"""The choice of tokens: kernels held to the reference, and through the engine."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.formats.spec import AnyArray
from octavo.graph import choice_ops  # noqa: F401  (registers its ops)
from octavo.graph.executor import Executor
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from octavo.graph.protocol import AsyncBackend, Backend
from octavo.graph.schedule import schedule
from tests.sampling import some


def chosen(backend: Backend, x: AnyArray, k: int) -> AnyArray:
    given = Node("input", (), ("tokens", x.shape[1]), "f32", name="x")
    graph = Graph.of(apply("top_candidates", given, k=k))
    limits = {"tokens": len(x)}
    (out,) = Executor(schedule(graph, [backend], limits), [backend], limits).run({"x": x}, limits)
    return out


@pytest.mark.parametrize("k", [1, 3, 64])
@pytest.mark.parametrize("n", some([64, 2048, 5003], 2))
def test_as_the_reference(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((3, n)).astype(np.float32)
    x[1] = rng.integers(-1, 2, n)  # many that are equal, and zeros
    x[1, ::2] *= np.float32(-1)  # of either sign
    x[2, ::32] += np.float32(100)  # many of one group
    got, want = chosen(GpuBackend(), x, k), chosen(ReferenceBackend(), x, k)
    np.testing.assert_array_equal(got[:, : 1 + k], want[:, : 1 + k])
    values = [np.ascontiguousarray(c[:, 1 + k :]).view(np.float32) for c in (got, want)]
    np.testing.assert_array_equal(values[0], values[1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted(value: float) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5003)).astype(np.float32)
    x[1, [5, 4000]] = value
    assert chosen(GpuBackend(), x, 1)[:, 0].tolist() == [0, 2]


def test_a_value_is_read_as_it_was() -> None:
    backend = GpuBackend()
    assert isinstance(backend, AsyncBackend)
    memory = backend.allocate(64)
    first, second = (backend.view(memory, start, (4,), "i32") for start in (0, 16))
    backend.write(first, np.arange(4, dtype=np.int32))
    wait = backend.begin_read(first)
    backend.copy(second, first)
    backend.write(first, np.zeros(4, np.int32))
    assert wait().tolist() == [0, 1, 2, 3]
    assert backend.read(second).tolist() == [0, 1, 2, 3]
