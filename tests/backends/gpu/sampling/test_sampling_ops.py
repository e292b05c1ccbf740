"""What the choice of a token needs of logits: the kernels of the CPU and of GPUs held to the reference."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend, ops
from octavo.formats.spec import F32, AnyArray
from octavo.graph import choice_ops  # noqa: F401  (registers its ops)
from octavo.graph.executor import Executor
from octavo.graph.node import DType, Graph, Node
from octavo.graph.ops import apply
from octavo.graph.protocol import Backend
from octavo.graph.schedule import schedule

N = 20_011
"""Values of a row: more than a task or a program takes, and no multiple of what is looked at together."""


@pytest.fixture(params=["cpu", "gpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return CpuBackend(threads=2) if request.param == "cpu" else GpuBackend()


def made(backend: Backend, op: str, x: AnyArray, others: dict[str, AnyArray], **attrs: int) -> AnyArray:
    """What an op makes of rows x, and of other inputs."""
    dtypes: dict[str, DType] = {"f": "f32", "i": "i32"}
    nodes = [Node("input", (), ("tokens", x.shape[1]), "f32", name="x")]
    nodes += [Node("input", (), a.shape, dtypes[a.dtype.kind], name=name) for name, a in others.items()]
    graph, limits = Graph.of(apply(op, *nodes, **attrs)), {"tokens": len(x)}
    (out,) = Executor(schedule(graph, [backend], limits), [backend], limits).run({"x": x, **others}, limits)
    return np.array(out)


def same(backend: Backend, op: str, x: AnyArray, others: dict[str, AnyArray], **attrs: int) -> None:
    np.testing.assert_array_equal(
        made(backend, op, x, others, **attrs), made(ReferenceBackend(), op, x, others, **attrs)
    )


def rows(n: int = N) -> F32:
    """Three rows of logits: of a normal distribution, with many that are equal, and in ascending order."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((3, n)).astype(np.float32)
    x[1] = rng.integers(-3, 4, n)
    return np.concatenate([x[:2], np.sort(x[2:])])


@pytest.mark.parametrize("k", [1, 64])
@pytest.mark.parametrize("n", [64, 100, N])
def test_top_candidates(n: int, k: int) -> None:
    x = rows(n)
    x[0, 3:40] = -np.inf
    got, want = (made(b, "top_candidates", x, {}, k=k) for b in (CpuBackend(threads=2), ReferenceBackend()))
    np.testing.assert_array_equal(got, want)
    for value in (np.nan, np.inf):
        x[2, [0, n - 1]] = value
        assert made(CpuBackend(threads=2), "top_candidates", x, {}, k=k)[:, 0].tolist() == [37, 0, 2]


def test_draw() -> None:
    """Each row with settings of its own; one has NaN, one tokens that are not known."""
    rng, n = np.random.default_rng(4), 60
    x = rng.standard_normal((n, 100)).astype(np.float32)
    x[5, 7] = np.nan
    settings = np.column_stack([
        rng.integers(1, 65, n), rng.uniform(0.1, 1, n), rng.choice([0, 0.05, 0.5], n),
        rng.choice([1e-30, 0.3, 1, 100], n), rng.uniform(0, 1, n), rng.choice([90, 100], n),
    ]).astype(np.float64)
    found = ops.top_candidates(x, k=64)
    graph, limits = Graph.of(apply("draw", _rows("found", 129), _rows("settings", 12))), {"tokens": n}
    given = {"found": found, "settings": settings.view(np.int32)}
    got, want = (
        Executor(schedule(graph, [b], limits), [b], limits).run(given, limits)[0]
        for b in (GpuBackend(), ReferenceBackend())
    )
    np.testing.assert_array_equal(got, want)
    assert len({found[i, 1:65].tolist().index(t) for i, t in enumerate(want[:, 1])}) > 8
    assert (want[5, 0], want[0, 0]) == (1, 0)
    assert ((want[:, 2] > 0) == (settings[:, 5] == 90)).all()


def _rows(name: str, columns: int) -> Node:
    return Node("input", (), ("tokens", columns), "i32", name=name)


def test_log_sum_exp(backend: Backend) -> None:
    x = rows() * np.float32(30)
    want = made(ReferenceBackend(), "log_sum_exp", x.astype(np.float32), {})
    np.testing.assert_allclose(made(backend, "log_sum_exp", x, {}), want, rtol=1e-6)


def test_adjust(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    x, flat = rows(), rng.choice(3 * N, 300, replace=False)
    places = np.stack([flat // N, flat % N], axis=1).astype(np.int32)
    places[7] = -1
    changes = rng.uniform(-3, 3, (300, 2)).astype(np.float32)
    changes[:, 0] = np.exp(changes[:, 0])
    changes[9, 1] = -np.inf
    same(backend, "adjust", x, {"places": places, "changes": changes})


def test_mask(backend: Backend) -> None:
    rng = np.random.default_rng(1)
    masks = rng.integers(-(1 << 31), 1 << 31, (3, -(-N // 32))).astype(np.int32)
    masks[0, 5:600] = -1
    same(backend, "mask", rows(), {"rows": np.array([2, -1, 0], np.int32), "masks": masks})
