"""Products with many tokens whose weights become float16 in registers: what is made beforehand, shapes, and on a card
of compute capability 9.0 the products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import dispatch, memory, mixed_gemm
from octavo.backends.gpu.arguments import F16Scales
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.device import target
from octavo.backends.gpu.kernels import gemm_mixed_hopper
from octavo.backends.gpu.layout import layout_of
from octavo.backends.gpu.load import load
from octavo.backends.gpu.weights import QuantWeight
from octavo.formats import QTensor, by_name, dequantize, quantize_reference, unpack
from octavo.formats.group import row_named
from octavo.graph.node import Node
from octavo.graph.ops import apply
from octavo.quantizers import encode
from tests.sampling import slow

ZEROS = ("GROUP4_128_Z_F16", "GROUP8_64_Z_F16", "GROUP6_32_Z_F16")
FORMATS = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", *ZEROS, "GROUP4_64_M_F16")


def stored(name: str, n: int, k: int) -> QTensor:
    values = np.random.default_rng(n).standard_normal((n, k)).astype(np.float32)
    if name.startswith("GROUP"):
        return quantize_reference(values, row_named(name))
    return QTensor(by_name(name), (n, k), encode(values, name))


def test_values_are_reordered_as_lanes_hold_them() -> None:
    c = Context(target())
    x = torch.arange(3 * 128, dtype=torch.float16, device=c.target.device)
    out = torch.zeros_like(x)
    c.launch(gemm_mixed_hopper.reorder_kernel, (1,), x, out, x.numel(), B=512)()
    place = {8 * b + 2 * t + i: 4 * t + b + 2 * i for b in range(2) for t in range(4) for i in range(2)}
    expected = [16 * block + place[i] for block in range(24) for i in range(16)]
    assert out.tolist() == expected


def test_quantized_values_are_reordered_alike() -> None:
    c = Context(target())
    codes = torch.arange(-96, 96, dtype=torch.int8, device=c.target.device).view(3, 64).repeat(1, 2)
    d = torch.rand(4, 8, dtype=torch.float32, device=c.target.device)
    out, expected = (torch.zeros(3, 128, dtype=torch.float16, device=c.target.device) for _ in range(2))
    c.launch(gemm_mixed_hopper.reorder_codes_kernel, (1,), codes, d, out, codes.numel(), 8, kp=128, B=512)()
    values = (codes.float() * d[:, :3].T.repeat_interleave(32, 1)).half()
    c.launch(gemm_mixed_hopper.reorder_kernel, (1,), values, expected, values.numel(), B=512)()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("name", [slow(name) for name in FORMATS])
def test_scales_of_groups(name: str) -> None:
    """Of each group and row once, in K's order, as float16 twice; minima negative, zero points from 1024 on."""
    c = Context(target())
    tensor = stored(name, 5, 512)
    w: Any = load(tensor, c.target.device)
    assert isinstance(w, QuantWeight)
    group = w.layout.group
    scale, minimum = (torch.zeros(512 // group, 5, dtype=torch.int32, device=c.target.device) for _ in range(2))
    groups = F16Scales(scale, minimum)
    c.launch(gemm_mixed_hopper.scales_kernel, (1, 2), w.planes(), groups, 5, BLOCK_N=8, PAIRS=8)()
    planes = unpack(tensor)
    d, dmin = planes.d, planes.dmin
    assert d is not None
    if planes.sc is not None:
        d = np.repeat(d, planes.sc.shape[1] // d.shape[1], 1) * planes.sc
    if dmin is not None and planes.m is not None:
        dmin = np.repeat(dmin, planes.m.shape[1] // dmin.shape[1], 1) * planes.m
    d, zero = (x if x is None else np.repeat(x, 512 // group // x.shape[1], 1) for x in (d, planes.m))
    assert d is not None
    _check_halves(scale, d)
    if w.layout.has_zero:
        assert zero is not None
        _check_halves(minimum, 1024 + zero.astype(np.float32))
    elif w.layout.has_min:
        assert dmin is not None
        _check_halves(minimum, -dmin)


def test_scales_are_made_once_and_announced() -> None:
    c, tensor = Context(target()), stored("Q4_K", 5, 512)
    w: Any = load(tensor, c.target.device)
    made = mixed_gemm.f16_scales(c, w)
    assert mixed_gemm.f16_scales(c, w) is made
    assert made.minimum is not None
    nbytes = sum(4 * p.numel() for p in (made.scale, made.minimum))  # type: ignore[union-attr]
    x = Node("input", (), ("tokens", 512), "q8_1", name="x")
    product = apply("mul_mat", Node("weight", (), (5, 512), "weight", {"tensor": tensor}), x)
    more = [
        memory.needs([product], {"tokens": n}, "sm_90") - memory.needs([product], {"tokens": n}, "sm_80")
        for n in (16, 64, 4096)
    ]
    assert more == [0, nbytes, nbytes]


def _check_halves(found: torch.Tensor, expected: np.ndarray) -> None:
    halves = found.cpu().numpy().view(np.float16).reshape(len(found), 5, 2)
    for i in range(2):
        np.testing.assert_array_equal(halves[..., i].T, expected.astype(np.float16))


@pytest.mark.parametrize("name", FORMATS)
def test_shapes_fit(name: str) -> None:
    layout = layout_of(row_named(name), "f16")
    for tokens in (17, 33, 64, 65, 128, 300, 1024, 1025, 8192):
        for n, k in ((32, 128), (4096, 4096), (128256, 4096)):
            shape = dispatch.mixed_gemm(layout, n, k, tokens, "sm_90")
            if shape is None:
                assert tokens > 1024
                continue
            stage = shape.block_n * 128 * layout.bits // 8 + shape.block_m * 256
            assert shape.stages * stage <= 224 << 10
            assert 1 <= shape.split_k <= k // 128
    assert dispatch.mixed_gemm(layout, 4096, 4096, 512, "sm_80") is None


def test_layouts_without_a_kernel() -> None:
    for name in ("IQ4_NL", "Q5_0", "Q2_K", "GROUP8_64_M_F16"):
        assert dispatch.mixed_gemm(layout_of(row_named(name), "f16"), 4096, 4096, 512, "sm_90") is None
    assert dispatch.mixed_gemm(layout_of(by_name("Q8_0"), "f32"), 4096, 4096, 512, "sm_90") is None


SHAPES = ((33, 70, 512), (64, 64, 2048), (130, 200, 1280), (300, 130, 512))
QUICK = {("Q4_K", 33)}
CASES = [(name, *shape) for name in FORMATS for shape in SHAPES]


@pytest.mark.parametrize(("name", "tokens", "n", "k"), [case if case[:2] in QUICK else slow(case) for case in CASES])
def test_products(name: str, tokens: int, n: int, k: int) -> None:
    """Odd numbers of rows and tokens, K divided among programs; with and without terms. Interpreted, and on other
    cards, these are the library's products."""
    from octavo.backends.gpu.products import halves_product

    c = Context(target())
    tensor = stored(name, n, k)
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, k)).astype(np.float16)
    w: Any = load(tensor, c.target.device)
    terms = [rng.standard_normal(n).astype(np.float32), rng.standard_normal((tokens, n)).astype(np.float32)]
    right = x.astype(np.float64) @ dequantize(tensor).astype(np.float64).T
    for count in range(3):
        y = torch.empty(tokens, n, dtype=torch.float32, device=c.target.device)
        there = [torch.from_numpy(t).to(c.target.device) for t in terms[:count]]
        for call in halves_product(c, w, torch.from_numpy(x).to(c.target.device), y, there):
            call()
        expected = right + sum(terms[:count])
        assert np.square(y.cpu().numpy() - expected).sum() < 1e-6 * np.square(expected).sum()
