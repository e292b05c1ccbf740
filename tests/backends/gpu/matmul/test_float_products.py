"""Products of weights that are floats: as they lie, without a copy of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch.arguments import Matrix, Source
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul import launch as matmul
from octavo.backends.gpu.matmul.experts.launch import Rows, float_product
from octavo.backends.gpu.weights.load import load
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, dequantize
from octavo.graph.builder import weight
from octavo.graph.executor import Executor
from octavo.graph.lower import lower
from octavo.graph.node import Graph
from octavo.graph.ops import apply
from tests.graph.small import K, executor, given, run

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
ROUNDED = {"F32": 2.0**-21, "F16": 2.0**-11, "BF16": 2.0**-8}
"""How far a number may be off that is rounded as these are."""


def floats(name: str, *shape: int, seed: int = 0) -> tuple[Any, np.ndarray]:
    """A weight on the device, and its values in float64."""
    tensor = random_matrix("w", by_name(name), shape, np.random.default_rng(seed))
    return load(tensor, target().device), dequantize(tensor).astype(np.float64)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 19, 264), (2, 19, 264), (9, 300, 1096), (27, 70, 600)])
def test_products(name: str, tokens: int, n: int, k: int) -> None:
    """With a term, against float64; the library is given the weights' own memory."""
    c, (w, exact) = Context(target()), floats(name, n, k)
    rng = np.random.default_rng(tokens)
    x = torch.from_numpy(rng.standard_normal((tokens, k), np.float32)).to(c.target.device)
    given = x if tokens == 1 else x.to(TYPES[name])
    term = torch.ones((tokens, n), device=c.target.device)
    y = torch.full((tokens, n), torch.nan, device=c.target.device)
    for call in matmul.product(c, w, given, y, (term,)):
        call()
    values = given.double().cpu().numpy()
    most = (np.abs(values) @ np.abs(exact).T) * 2.0**-20
    np.testing.assert_array_less(np.abs(y.cpu().numpy() - 1 - values @ exact.T), most)
    assert not [key for key, memory in c.scratch.items() if memory.numel() >= w.data.numel()]


def test_activations_of_other_types_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 tokens of float16 weights: two products of the same ones round them once."""
    seen = list[tuple[torch.Tensor, torch.Tensor]]()
    library = matmul.library_product

    def watched(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, **more: bool) -> None:
        seen.append((x, w))
        library(x, w, y, **more)

    monkeypatch.setattr(matmul, "library_product", watched)
    c, x = Context(target()), torch.randn(130, 64, device=target().device)
    weights = [floats("F16", 5, 64, seed=seed)[0] for seed in range(2)]
    calls = [matmul.product(c, w, x, torch.empty(130, 5, device=x.device), ()) for w in weights]
    assert [len(of_one) for of_one in calls] == [2, 1]
    for call in (*calls[0], *calls[1]):
        call()
    (first, w), (second, _) = seen
    assert first.data_ptr() == second.data_ptr()
    torch.testing.assert_close(first, x.half())
    assert w.data_ptr() == weights[0].data.data_ptr()


def test_joined_weights_lie_once() -> None:
    c = Context(target())
    q, k, other = (floats(name, n, 64, seed=n)[0] for name, n in (("BF16", 8), ("BF16", 4), ("F16", 4)))
    before = [w.data.clone() for w in (q, k)]
    both, apart = c.joined([q, k, other])
    assert apart is other
    assert isinstance(both, type(q))
    assert (both.n, both.k) == (12, 64)
    for w, values in zip((q, k), before, strict=True):
        torch.testing.assert_close(w.data, values)
        assert w.data.untyped_storage().data_ptr() == both.data.untyped_storage().data_ptr()
    assert c.joined([q, k, other])[0] is both


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("tokens", [1, 3])
def test_residuals_are_added_in_place(name: str, tokens: int) -> None:
    """The term is a value that nothing reads later."""
    tensor = random_matrix("w", by_name(name), (K, K), np.random.default_rng(0))
    product = apply("mul_mat", weight(tensor), apply("soft_max", given()))
    graph = Graph.of(apply("add", product, apply("soft_cap", given("y"), cap=3.0)))

    def on_gpu(graph: Graph) -> Executor:
        backend = GpuBackend()
        made = executor(lower(graph, [backend]), [backend], strict=True)
        term, total = (n for n in made.schedule.graph.nodes if n.op in ("soft_cap", "mul_mat_add"))
        assert made.schedule.buffers[id(term)] == made.schedule.buffers[id(total)]
        return made

    (found,), (expected,) = run(graph, tokens, on_gpu), run(graph, tokens)
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * ROUNDED[name])


@pytest.mark.parametrize("name", TYPES)
def test_sorted_experts(name: str) -> None:
    """Pairs of a token and an expert, some experts with none; rows that no tile divides."""
    c, (w, exact), rng = Context(target()), floats(name, 6, 19, 72), np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((11, 72), np.float32)).to(c.target.device)
    ids = torch.from_numpy(rng.choice([0, 2, 3, 5], (11, 2)).astype(np.int32)).to(c.target.device)
    out = torch.full((11, 2, 19), torch.nan, device=c.target.device)
    for call in float_product(c, w, Rows(x, Source(Matrix(x, 72), None), "values", 11), ids, out, 2):
        call()
    values, chosen = x.double().cpu().numpy(), exact[ids.cpu().numpy()]
    most = np.einsum("tk,tenk->ten", np.abs(values), np.abs(chosen)) * ROUNDED[name]
    expected = np.einsum("tk,tenk->ten", values, chosen)
    np.testing.assert_array_less(np.abs(out.cpu().numpy() - expected), most)
