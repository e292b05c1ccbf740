"""Products of weights that no op case has: scales that float16 does not hold, in groups of 64; entries of
codebooks; two matrices at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch import device_values
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.launch import product, product_pair
from octavo.backends.gpu.matmul.matvec.kernel import matvec_pair_kernel
from octavo.backends.gpu.weights.layout import PlaneLayout
from octavo.backends.gpu.weights.load import load
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, dequantize
from octavo.graph.builder import constant, weight
from octavo.graph.executor import Executor
from octavo.graph.lower import lower
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply
from octavo.graph.protocol import Backend
from octavo.graph.schedule import schedule
from tests.sampling import slow

N, K = 5, 256


def check_sums_of_rows(name: str, tokens: int) -> PlaneLayout:
    """Check the product of a matrix with tokens whose values are all the same code, so that nothing
    is rounded. The layout of the matrix."""
    c, rng = Context(target()), np.random.default_rng(tokens)
    tensor = random_matrix("w", by_name(name), (N, K), rng)
    w: Any = load(tensor, c.target.device)
    size = device_values.activation_bytes(tokens, K, c.target.arch)
    memory = torch.zeros(size, dtype=torch.uint8, device=c.target.device)
    x = device_values.Activation(memory, tokens, K)
    codes = torch.arange(1, tokens + 1, dtype=torch.int8)
    x.q8_1.codes.view(tokens, K)[:] = codes[:, None]
    x.q8_1.scale.fill_(1.0)
    y = torch.empty(tokens, N, dtype=torch.float32, device=c.target.device)
    for call in product(c, w, x, y, ()):
        call()
    right = codes.numpy()[:, None] * dequantize(tensor).astype(np.float64).sum(axis=1)
    np.testing.assert_allclose(y.cpu().numpy(), right, rtol=1e-4, atol=1e-5)
    layout: PlaneLayout = w.layout
    return layout


@pytest.mark.parametrize("tokens", [slow(1), slow(5), 9])
def test_float_scales_of_groups_of_64(tokens: int) -> None:
    """By each kernel of few tokens."""
    layout = check_sums_of_rows("Q8_K", tokens)
    assert (layout.scale, layout.group) == ("f32", 64)


@pytest.mark.parametrize("tokens", [1, slow(3), 9])
@pytest.mark.parametrize(("name", "bits"), [("IQ3_S", 4), ("IQ3_XXS", 4), ("IQ2_XS", 3), ("IQ1_M", 3)])
def test_codebook_entries(name: str, bits: int, tokens: int) -> None:
    """They lie as codes, which are looked up in the table of the format."""
    layout = check_sums_of_rows(name, tokens)
    assert layout.bits == bits
    assert layout.table == by_name(name).table


@pytest.mark.parametrize("tokens", [1, slow(2)])
@pytest.mark.parametrize("names", [("Q4_K", "Q6_K"), slow((("Q8_0", "Q4_1"),))])  # Q4_0 alone is streamed
def test_two_matrices_in_one_launch(names: tuple[str, str], tokens: int) -> None:
    """As by a launch of each, with rows that fill no program."""
    c, rng = Context(target()), np.random.default_rng(tokens)
    sizes = (9, 5) if c.target.arch == "interpreter" else (4100, 1029)
    tensors = [random_matrix("w", by_name(name), (n, 512), rng) for name, n in zip(names, sizes, strict=True)]
    weights = [load(tensor, c.target.device) for tensor in tensors]
    size = device_values.activation_bytes(tokens, 512, c.target.arch)
    memory = torch.zeros(size, dtype=torch.uint8, device=c.target.device)
    x, codes = device_values.Activation(memory, tokens, 512), rng.integers(-127, 128, (tokens, 32, 16), np.int8)
    halves = codes.sum(axis=2, dtype=np.float32)
    x.q8_1.codes.view(-1)[: codes.size] = torch.from_numpy(codes.reshape(-1)).to(c.target.device)
    x.q8_1.scale.fill_(1.0)
    for place, given in ((x.q8_1.sums, halves.reshape(tokens, -1, 2).sum(axis=2)), (x.q8_1.sums16, halves)):
        place.view(-1, x.tp)[:, :tokens] = torch.from_numpy(given.T)
    both = [torch.full((tokens, n), torch.nan, device=c.target.device) for n in sizes]
    apart = [torch.empty_like(y) for y in both]
    (call,) = product_pair(c, weights, x, both)
    assert getattr(call, "kernel", None) is matvec_pair_kernel
    for one in (call, *(one for w, y in zip(weights, apart, strict=True) for one in product(c, w, x, y, ()))):
        one()
    for tensor, y, alone in zip(tensors, both, apart, strict=True):
        exact = codes.reshape(tokens, -1).astype(np.float64) @ dequantize(tensor).astype(np.float64).T
        np.testing.assert_allclose(y.cpu().numpy(), exact, rtol=1e-5, atol=2e-6 * np.abs(exact).max())
        np.testing.assert_allclose(y.cpu().numpy(), alone.cpu().numpy(), rtol=1e-5, atol=2e-6 * np.abs(exact).max())


@pytest.mark.few(2)
@pytest.mark.parametrize("tokens", [1, 2, 5, 9, slow(16), 40])
def test_factors_of_rows(tokens: int) -> None:
    """By each kernel, before what is added; of matrices that are joined each row has its own."""
    rng, residual = np.random.default_rng(tokens), np.ones((tokens, 24), np.float32)
    tensors = [random_matrix(f"w{n}", by_name("NVFP4"), (n, K), rng) for n in (16, 24)]
    scales = [rng.uniform(0.5, 2, n).astype(np.float32) for n in (16, 24)]
    x = rng.standard_normal((tokens, K)).astype(np.float32)
    given, added = (Node("input", (), ("tokens", n), "f32", name=name) for name, n in (("x", K), ("r", 24)))
    one, other = (
        apply("mul", apply("mul_mat", weight(t), given), constant(s, f"{t.name}.scale"))
        for t, s in zip(tensors, scales, strict=True)
    )
    backends: list[Backend] = [GpuBackend()]
    for outputs in ((one, other), (apply("add", other, added),)):
        graph, sizes = lower(Graph.of(*outputs), backends), {"tokens": tokens}
        assert "mul" not in [node.op for node in graph.nodes]
        inputs = {"x": x, "r": residual} if len(outputs) == 1 else {"x": x}
        made = Executor(schedule(graph, backends, sizes, strict=True), backends, sizes).run(inputs, sizes)
        products = [x @ (dequantize(t).T * s) for t, s in zip(tensors, scales, strict=True)]
        right = products if len(outputs) == 2 else [products[1] + residual]
        for found, want in zip(made, right, strict=True):
            assert ((found - want) ** 2).sum() < 2e-4 * (want**2).sum()
