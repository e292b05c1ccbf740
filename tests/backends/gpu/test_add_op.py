"""CONTRIBUTING's "Add an op", followed with `mish`: one file, which is right on every backend by its op cases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.bench.op_case import OpCase, run
from octavo.errors import GraphError
from octavo.graph import pointwise
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Graph, Node
from octavo.graph.ops import OPS
from octavo.graph.pointwise import POINTWISE
from octavo.graph.schedule import schedule
from tests.backends.comparison import compare
from tests.backends.op_cases import pointwise_cases

MISH = '''\
"""Mish, an activation function."""

from octavo.graph.pointwise.expression import m, pointwise


@pointwise(fold="elementwise", numbers={"slope": 1.5})
def mish(x, slope):
    """x * tanh(log(1 + exp(slope * x))) (arXiv 1908.08681, where the slope is 1)."""
    return x * m.tanh(m.log(1.0 + m.exp(slope * x)))
'''


@pytest.fixture
def mish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "mish.py").write_text(MISH)
    monkeypatch.setattr(pointwise, "__path__", [*pointwise.__path__, str(tmp_path)])
    pointwise.find_ops()
    yield
    del POINTWISE["mish"], OPS["mish"], sys.modules["octavo.graph.pointwise.mish"]


@pytest.mark.usefixtures("mish")
def test_the_definition() -> None:
    assert len(MISH.splitlines()) <= 15
    built = OpCase("mish", 5, {"k": 3}).build()
    (found,) = run(built, [ReferenceBackend()])
    x = built.steps[0][0]["x"].astype(np.float64)
    np.testing.assert_allclose(found, x * np.tanh(np.log1p(np.exp(1.5 * x))), rtol=1e-5)


@pytest.mark.usefixtures("mish")
@pytest.mark.parametrize("backend", [CpuBackend, GpuBackend])
def test_backends(backend: Any) -> None:
    for case in pointwise_cases(POINTWISE["mish"]):
        built = case.build()
        assert compare(case, run(built, [backend()]), run(built, [ReferenceBackend()])).ok, case.name


@pytest.mark.usefixtures("mish")
def test_the_builder_has_a_method() -> None:
    x = Node("input", (), ("tokens", 3), "f32", name="x")
    node = GraphBuilder().mish(x, 2.0)
    assert (node.op, node.inputs, dict(node.attrs), node.shape) == ("mish", (x,), {"slope": 2.0}, x.shape)
    with pytest.raises(AttributeError, match="no op swish"):
        GraphBuilder().swish(x)


def test_an_op_without_a_definition_is_refused() -> None:
    x = Node("input", (), ("tokens", 3), "f32", name="x")
    node = Node("mish", (x,), x.shape, "f32")
    with pytest.raises(GraphError, match="no backend runs mish"):
        schedule(Graph.of(node), [ReferenceBackend()], {"tokens": 8})
