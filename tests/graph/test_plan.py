"""Plans: what a schedule runs for a step of a size, made once for each size."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.graph.builder import weight
from octavo.graph.executor import Executor
from octavo.graph.node import Graph
from octavo.graph.ops import apply
from octavo.graph.schedule import schedule
from tests.graph.small import LIMITS, K, Limited, executor, given, run, values, w


def product() -> Graph:
    return Graph.of(apply("mul_mat", w(5, K, name="w"), apply("soft_max", given())))


@pytest.mark.parametrize("tokens", range(1, LIMITS["tokens"] + 1))
def test_every_size_up_to_the_limit(tokens: int) -> None:
    graph = product()
    inputs = values(graph, tokens)
    e = executor(graph)
    (got,) = e.run(inputs, {"tokens": tokens})
    exp = np.exp(inputs["x"] - inputs["x"].max(1, keepdims=True))
    weight = np.random.default_rng([0, 5, K]).standard_normal((5, K)).astype(np.float32)
    np.testing.assert_allclose(got, exp / exp.sum(1, keepdims=True) @ weight.T, rtol=1e-5, atol=1e-6)


def test_sizes_in_any_order_do_not_disturb_one_another() -> None:
    graph = product()
    e = executor(graph)
    for tokens in (8, 1, 5, 8, 2, 1, 7):
        (got,) = e.run(values(graph, tokens), {"tokens": tokens})
        np.testing.assert_array_equal(got, run(graph, tokens)[0])


class Forgetful(ReferenceBackend):
    """A backend whose kernels write nothing."""

    def begin_plan(self, graph):  # type: ignore[no-untyped-def]
        return SimpleNamespace(bind=lambda node, inputs, out: lambda: None, finish=list)


def test_what_no_kernel_wrote_is_nan() -> None:
    graph = product()
    backend = Forgetful()
    e = Executor(schedule(graph, [backend], LIMITS), [backend], LIMITS)
    (got,) = e.run(values(graph, 4), {"tokens": 4})
    assert got.shape == (4, 5)
    assert np.isnan(got).all()


def test_results_are_the_callers_own() -> None:
    graph = product()
    e = executor(graph)
    (first,) = e.run(values(graph, 4), {"tokens": 4})
    kept = first.copy()
    e.run({"x": values(graph, 4)["x"] + 1}, {"tokens": 4})
    np.testing.assert_array_equal(first, kept)


def test_plans_are_made_once_and_the_latest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.graph.executor.PLANS_KEPT", 3)
    e = executor(product())
    plans = {n: e.plan({"tokens": n}) for n in (1, 2, 3)}
    assert e.plan({"tokens": 1}) is plans[1], "used again: now the latest"
    e.plan({"tokens": 4})
    assert e.plan({"tokens": 1}) is plans[1]
    assert e.plan({"tokens": 3}) is plans[3]
    assert e.plan({"tokens": 2}) is not plans[2], "the one that was not used for longest is gone"


class Counting(Limited):
    """Counts what is loaded."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.loaded: list[str] = []

    def load(self, tensor):  # type: ignore[no-untyped-def]
        self.loaded.append(tensor.name)
        return super().load(tensor)


def test_a_weight_is_loaded_once_on_each_backend_that_reads_it() -> None:
    shared, own = w(K, K, name="shared"), w(K, K, name="b")
    x = apply("mul_mat", shared, given())
    x = apply("mul_mat", own, apply("mul_mat", shared, x))
    graph = Graph.of(apply("add", x, apply("mul_mat", own, x)))
    backends = [Counting("first"), Counting("second")]
    executor(graph, backends, lambda weight, reader: int(weight.name == "b"))
    assert [b.loaded for b in backends] == [["shared"], ["b"]]


def test_a_tensor_with_two_leaves_is_loaded_once() -> None:
    tied = w(K, K, name="tied")
    x = apply("mul_mat", tied, given())
    graph = Graph.of(apply("mul_mat", weight(tied.tensor), x))
    backend = Counting("only")
    executor(graph, [backend])
    assert backend.loaded == ["tied"]


def test_inputs_reach_every_backend_that_reads_them() -> None:
    x = given()
    graph = Graph.of(apply("add", apply("mul_mat", w(K, K, name="a"), x), apply("mul_mat", w(K, K, name="b"), x)))
    backends = [Limited("first"), Limited("second")]
    e = executor(graph, backends, lambda weight, reader: int(weight.name == "b"))
    assert len(e.plan({"tokens": 2}).inputs["x"]) == 2
    np.testing.assert_array_equal(e.run(values(graph, 2), {"tokens": 2})[0], run(graph, 2)[0])
