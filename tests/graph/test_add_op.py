"""CONTRIBUTING's "Add an op", followed with `square`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.backends.reference import ops as reference
from octavo.errors import GraphError
from octavo.graph.node import DType, Graph, Node, Shape
from octavo.graph.ops import OPS, apply, op
from octavo.graph.plan import Executor
from octavo.graph.schedule import schedule

X = Node("input", (), ("tokens", 3), "f32", name="x")


@pytest.fixture
def square(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @op
    def square(x: Node) -> tuple[Shape, DType]:
        """x * x."""
        return x.shape, "f32"

    monkeypatch.setattr(reference, "square", lambda x: x * x, raising=False)
    yield
    del OPS["square"]


def run(graph: Graph, x: np.ndarray) -> np.ndarray:
    backends, limits = [ReferenceBackend()], {"tokens": 8}
    executor = Executor(schedule(graph, backends, limits), backends, limits)
    return executor.run({"x": x}, {"tokens": len(x)})[0]


@pytest.mark.usefixtures("square")
@pytest.mark.parametrize("tokens", [1, 5])
def test_op_runs(tokens: int) -> None:
    x = np.random.default_rng(0).standard_normal((tokens, 3)).astype(np.float32)
    got = run(Graph.of(apply("square", X)), x)
    np.testing.assert_allclose(got, x.astype(np.float64) ** 2, rtol=1e-6)


def test_op_without_definition_is_refused() -> None:
    node = Node("square", (X,), X.shape, "f32")
    with pytest.raises(GraphError, match="no backend runs square"):
        schedule(Graph.of(node), [ReferenceBackend()], {"tokens": 8})
