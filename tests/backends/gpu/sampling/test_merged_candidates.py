"""Candidates of parts of a row, merged, are those of the row; and so is what is changed of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.backends.reference import ops as defined
from octavo.graph.executor import Executor
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from octavo.graph.protocol import Backend
from octavo.graph.schedule import schedule


@pytest.fixture(params=["cpu", "gpu", "reference"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "gpu":
        return GpuBackend()
    return CpuBackend(threads=1) if request.param == "cpu" else ReferenceBackend()


def made(backend: Backend, op: str, x: np.ndarray, **attrs: Any) -> np.ndarray:
    """What an op gives of an array."""
    limits = {"tokens": len(x)}
    node = Node("input", (), ("tokens", *x.shape[1:]), "i32" if x.dtype == np.int32 else "f32", name="x")
    graph = schedule(Graph.of(apply(op, node, **attrs)), [backend], limits)
    (out,) = Executor(graph, [backend], limits).run({"x": x}, limits)
    return np.array(out)


@pytest.mark.parametrize("k", [1, 8, 40])
def test_merged(backend: Backend, k: int) -> None:
    x = np.random.default_rng(k).integers(-40, 40, (5, 300)).astype(np.float32)  # equals among them
    x[1, 7], x[3, [40, 250]] = np.nan, np.inf
    firsts = (0, 96, 192)
    parts = np.concatenate([defined.top_candidates(part, k=k) for part in np.split(x, firsts[1:], axis=1)], axis=1)
    found, want = made(backend, "merge_candidates", parts, k=k, firsts=firsts), defined.top_candidates(x, k=k)
    finite = [0, 2, 4]
    np.testing.assert_array_equal(found[finite], want[finite])
    assert found[:, 0].tolist() == [0, 1, 0, 2, 0]


def test_places(backend: Backend) -> None:
    places = np.array([[0, 31], [1, 32], [2, 71], [3, 72], [-1, 40]], np.int32)
    found = made(backend, "local_places", places, first=32, count=40)
    assert found[:, 0].tolist() == [-1, 1, 2, -1, -1]
    assert found[1:3, 1].tolist() == [0, 39]


def test_largest_magnitudes(backend: Backend) -> None:
    x = np.array([[1, -3, 2], [0, 0, 0], [1, np.nan, 2], [-np.inf, 1, 2]], np.float32)
    np.testing.assert_array_equal(made(backend, "largest_magnitude", x), [[3], [0], [np.nan], [np.inf]])
