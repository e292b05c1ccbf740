"""Products with many tokens whose weights become float16 in registers: what is made beforehand, shapes, and on a card
of compute capability 9.0 the products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu.device import memory
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, activation_bytes
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.mmq.mmq_shapes import INT8_MAX_TOKENS
from octavo.backends.gpu.matmul.product import Product, Shape
from octavo.backends.gpu.matmul.w4a16 import hopper_kernel as w4a16_hopper
from octavo.backends.gpu.matmul.w4a16 import launch as w4a16
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import HopperShape, MultiCtaShape, StreamKShape, stage_bytes
from octavo.backends.gpu.ops.quantize import quantized
from octavo.backends.gpu.pointwise.expressions import expression_of
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import layout_of
from octavo.backends.gpu.weights.load import load
from octavo.formats import QTensor, by_name, dequantize, quantize_reference, unpack
from octavo.formats.group import row_named
from octavo.graph.node import Node
from octavo.graph.ops import apply
from octavo.quantizers import encode
from tests.sampling import slow

ZEROS = ("GROUP4_128_Z_F16", "GROUP8_64_Z_F16", "GROUP6_32_Z_F16", "GROUP4_16_Z_F16", "GROUP6_16_Z_F16")
FORMATS = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", *ZEROS, "GROUP4_64_M_F16")


def stored(name: str, n: int, k: int) -> QTensor:
    values = np.random.default_rng(n).standard_normal((n, k)).astype(np.float32)
    if name.startswith("GROUP"):
        return quantize_reference(values, row_named(name))
    return QTensor(by_name(name), (n, k), encode(values, name))


PLACE = {8 * b + 2 * t + i: 4 * t + b + 2 * i for b in range(2) for t in range(4) for i in range(2)}


def reordered(x: torch.Tensor) -> torch.Tensor:
    """x [..., 16 n] in the order in which lanes hold its values."""
    return x.unflatten(-1, (-1, 16))[..., [PLACE[i] for i in range(16)]].flatten(-2)


def test_values_are_reordered_as_lanes_hold_them() -> None:
    c = Context(target())
    x = torch.arange(3 * 128, dtype=torch.float16, device=c.target.device)
    out = torch.zeros_like(x)
    c.launch(w4a16_hopper.reorder_kernel, (1,), x, out, x.numel(), B=512)()
    assert torch.equal(out, reordered(x))


@pytest.mark.parametrize("tokens", [9, 40])
@pytest.mark.parametrize("kind", ["values", "rms_norm"])
def test_activations_are_kept_in_order_too(tokens: int, kind: str) -> None:
    """What is quantized, or made float16, is the same whether there is a copy in the kernel's order or not."""
    c, k = Context(target()), 160
    x = torch.randn(tokens, k, device=c.target.device)
    source = Source(matrix(x), matrix(torch.rand(k, device=c.target.device)) if kind == "rms_norm" else None, 1e-5)
    raw = [torch.zeros(activation_bytes(tokens, k, "sm_90"), dtype=torch.uint8, device=c.target.device) for _ in "12"]
    alone, both = Activation(raw[0], tokens, k), Activation(raw[1], tokens, k, both=True)
    for out in (alone, both):
        for call in quantized(c, source, out, kind):
            call()
    assert both.ordered is not None
    size = raw[0].numel() - both.ordered.numel() * 2
    assert torch.equal(raw[0][:size], raw[1][:size])
    if tokens > INT8_MAX_TOKENS:
        assert torch.equal(both.ordered, reordered(both.halves))
    elif kind == "values":
        assert torch.equal(both.ordered[:, :k], reordered(x.half()))
        assert not both.ordered[:, k:].any()


@pytest.mark.parametrize("tokens", [9, 40])
@pytest.mark.parametrize("kind", ["values", "rms_norm", "swiglu"])
def test_what_is_not_wanted_is_not_made(tokens: int, kind: str) -> None:
    """And what is, is the same, but for the order in which a norm's squares are added up where no codes are made."""
    c, k = Context(target()), 256
    x, other = (torch.randn(n, k, device=c.target.device) for n in (tokens, 1 if kind == "rms_norm" else tokens))
    source = Source(matrix(x), None if kind == "values" else matrix(other), 1e-5)
    form, made = expression_of(kind) if kind == "swiglu" else kind, {}
    for wanted in ({"plain", "ordered"}, {"plain"}, {"ordered"}):
        raw = torch.full((activation_bytes(tokens, k, "sm_90"),), 77, dtype=torch.uint8, device=c.target.device)
        out = Activation(raw, tokens, k, both=True)
        for call in quantized(replace(c, wanted=frozenset(wanted)), source, out, form):
            call()
        assert out.ordered is not None
        plain = raw[: raw.numel() - out.ordered.numel() * 2]
        made[len(wanted), "plain" in wanted] = plain, out.ordered.view(torch.int16)
    (plain, ordered), (plain_alone, others), (rest, ordered_alone) = made[2, True], made[1, True], made[1, False]
    assert torch.equal(plain, plain_alone)
    if kind == "rms_norm":
        torch.testing.assert_close(ordered.view(torch.float16), ordered_alone.view(torch.float16), rtol=2**-10, atol=0)
    else:
        assert torch.equal(ordered, ordered_alone)
    assert (rest == 77).all()
    assert (others.view(torch.uint8) == 77).all()


def test_activations_hold_both_orders_where_a_product_takes_them() -> None:
    assert [dispatch.ordered(tokens, "sm_90") for tokens in (1, 2, 3, 1024, 1025)] == [False, False, True, True, False]
    assert not dispatch.ordered(64, "sm_80")
    for tokens in (1, 4, 5, 32, 33, 1024, 1025, 8192):
        nbytes = activation_bytes(tokens, 4096, "sm_90")
        assert nbytes >= activation_bytes(tokens, 4096, "sm_80")
        for fewer in (1, 4, 5, 32, 33, 1024, 1025, 8192):
            if fewer <= tokens:
                there = dispatch.ordered(fewer, "sm_90")
                x = Activation(torch.empty(nbytes, dtype=torch.uint8), fewer, 4096, both=there)
                assert (x.ordered is None) == (not x.both)
                assert x.ordered is None or x.ordered.shape == (fewer, 4096)


@pytest.mark.parametrize("name", [slow(name) for name in FORMATS])
def test_scales_of_groups(name: str) -> None:
    """Of each group and row once, in K's order, as float16 twice; minima negative, zero points from 1024 on."""
    c = Context(target())
    tensor = stored(name, 5, 512)
    w: Any = load(tensor, c.target.device)
    assert isinstance(w, QuantWeight)
    group = w.layout.group
    step = 1 + w.layout.has_min
    table = torch.zeros(256 // group * step, 8, dtype=torch.int32, device=c.target.device)
    c.launch(w4a16_hopper.scales_kernel, (1, 2), w.planes(), table, 5, 8, BLOCK_N=8, PAIRS=8)()
    assert not table[:, 5:].any()
    planes = unpack(tensor)
    d, dmin = planes.d, planes.dmin
    assert d is not None
    if planes.sc is not None:
        d = np.repeat(d, planes.sc.shape[1] // d.shape[1], 1) * planes.sc
    if dmin is not None and planes.m is not None:
        dmin = np.repeat(dmin, planes.m.shape[1] // dmin.shape[1], 1) * planes.m
    d, zero = (x if x is None else np.repeat(x, 512 // group // x.shape[1], 1) for x in (d, planes.m))
    assert d is not None
    _check_pairs(table[::step, :5], d, group)
    if w.layout.has_zero:
        assert zero is not None
        _check_pairs(table[1::2, :5], 1024 + zero.astype(np.float32), group)
    elif w.layout.has_min:
        assert dmin is not None
        _check_pairs(table[1::2, :5], -dmin, group)


def test_scales_are_made_once_and_announced() -> None:
    c, tensor = Context(target()), stored("Q4_K", 5, 512)
    w: Any = load(tensor, c.target.device)
    made = w4a16.f16_scales(c, w)
    assert w4a16.f16_scales(c, w) is made
    assert made.shape == (16, 8)
    x = Node("input", (), ("tokens", 512), "q8_1", name="x")
    product = apply("mul_mat", Node("weight", (), (5, 512), "weight", {"tensor": tensor}), x)
    more = [
        memory.needs([product], {"tokens": n}, "sm_90") - memory.needs([product], {"tokens": n}, "sm_80")
        for n in (2, 64, 4096)
    ]
    assert more == [0, made.nbytes, made.nbytes]


def _check_pairs(found: torch.Tensor, expected: np.ndarray, group: int) -> None:
    """found int32 [pairs, 5]: of groups of low codes and of those 64 codes later; expected [5, groups]."""
    halves = found.cpu().contiguous().numpy().view(np.float16).reshape(len(found), 5, 2)
    tiles = expected.astype(np.float16).reshape(5, -1, 2, 64 // group)
    for i in range(2):
        np.testing.assert_array_equal(halves[..., i].T, tiles[:, :, i].reshape(5, -1))


@pytest.mark.parametrize("name", FORMATS)
def test_shapes_fit(name: str) -> None:
    layout = layout_of(row_named(name), "f16")
    for tokens in (4, 5, 8, 9, 17, 33, 64, 65, 128, 300, 1024, 1025, 8192):
        for n, k in ((32, 128), (4096, 4096), (128256, 4096)):
            shape = dispatch.w4a16(layout, n, k, tokens, "sm_90")
            if shape is None:
                assert tokens > 1024 or tokens <= 8
                continue
            stage = shape.block_n * 128 * layout.bits // 8 + shape.block_m * 256
            stage += shape.block_n * 4 * 64 // layout.group * (1 + layout.has_min)
            if isinstance(shape, MultiCtaShape):
                stage *= shape.depth * shape.resident
            assert shape.stages * stage <= 226 << 10
            assert shape.block_m >= min(tokens, 128)
            if isinstance(shape, HopperShape):
                assert 1 <= shape.split_k <= k // 128
    assert dispatch.w4a16(layout, 4096, 4096, 512, "sm_80") is None


def test_few_tokens_of_narrow_models_are_int8() -> None:
    """All products of a model alike, but for the vocabulary's."""
    layout = layout_of(by_name("Q4_K"), "f16")
    for n, k, tokens in ((2048, 1024, 8), (1024, 3072, 2), (4096, 4096, 2), (2048, 2048, 8)):
        assert dispatch.w4a16(layout, n, k, tokens, "sm_90") is None
    for n, k, tokens in ((2048, 1024, 9), (4096, 2048, 8), (4096, 4096, 3), (2048, 6144, 8), (151936, 1024, 4)):
        assert isinstance(dispatch.w4a16(layout, n, k, tokens, "sm_90"), MultiCtaShape)


def test_layouts_without_a_kernel() -> None:
    for name in ("IQ4_NL", "Q5_0", "Q2_K", "GROUP8_64_M_F16"):
        assert dispatch.w4a16(layout_of(row_named(name), "f16"), 4096, 4096, 512, "sm_90") is None
    assert dispatch.w4a16(layout_of(by_name("Q8_0"), "f32"), 4096, 4096, 512, "sm_90") is None


MANY = ((33, 70, 512), (64, 64, 2048), (130, 200, 1280), (300, 130, 512))
FEW = ((5, 70, 4096), (12, 200, 1280), (32, 130, 512))
QUICK = {("Q4_K", 33)}
CASES = [(name, *shape) for name in FORMATS for shape in FEW + MANY]
CASES.append(("Q4_0", 12, 70, 640))  # tiles of 256 values, of which the last has half


@pytest.mark.parametrize(("name", "tokens", "n", "k"), [case if case[:2] in QUICK else slow(case) for case in CASES])
def test_products(name: str, tokens: int, n: int, k: int) -> None:
    """Odd numbers of rows and tokens, K divided among programs; with and without terms. Interpreted, and on other
    cards, these are the library's products."""
    from octavo.backends.gpu.matmul.launch import halves_product

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


@pytest.mark.skipif(target().arch != "sm_90", reason="Gluon is not interpreted")
@pytest.mark.parametrize("kind", [HopperShape, StreamKShape, MultiCtaShape])
@pytest.mark.parametrize(("name", "tokens", "n", "k"), [("MXFP4", 30, 200, 1312), ("NVFP4", 8, 70, 2048)])
def test_codes_that_are_floats(name: str, tokens: int, n: int, k: int, kind: type[Shape]) -> None:
    """Rows of weights that differ by powers of two up to 2^40, of which no tuned table has these kernels."""
    c, rng = Context(target()), np.random.default_rng(0)
    values = rng.standard_normal((n, k)).astype(np.float32)
    if name == "MXFP4":
        values *= 2.0 ** rng.integers(-20, 20, (n, 1))
    tensor = quantize_reference(values.astype(np.float32), by_name(name))
    w: Any = load(tensor, c.target.device)
    x, term = rng.standard_normal((tokens, w.kp)).astype(np.float16), rng.standard_normal(n).astype(np.float32)
    x[:, k:] = 0
    p = Product(w.layout, n, w.kp, tokens, "sm_90")
    shape: Any = kind.of(p, *next(iter(kind.space(p))))
    y = torch.full((tokens, n), torch.nan, device=c.target.device)
    given, more = (torch.from_numpy(v).to(c.target.device) for v in (x, term))
    calls = w4a16.w4a16_product(c, shape, w, given, y, [more], lambda: pytest.fail("no kernel"))
    for call in calls:
        call()
    expected = x[:, :k].astype(np.float64) @ dequantize(tensor).astype(np.float64).T + term
    wrong = np.linalg.norm(y.cpu().numpy() - expected, axis=0)
    assert (wrong < 1e-3 * np.linalg.norm(expected, axis=0)).all()


@pytest.mark.parametrize(
    ("tokens", "n", "others"), [(8, 70, 40), *map(slow, ((8, 130, 70), (16, 70, 40), (29, 64, 70)))]
)
def test_two_products_of_a_launch(tokens: int, n: int, others: int) -> None:
    """By matrices of two layouts; where there is no such launch, by two."""
    from octavo.backends.gpu.matmul.launch import product, product_pair

    c, k = Context(target()), 768
    x = torch.randn(tokens, k, device=c.target.device)
    there = dispatch.ordered(tokens, c.target.arch)
    raw = torch.zeros(activation_bytes(tokens, k, "sm_90"), dtype=torch.uint8, device=c.target.device)
    activation = Activation(raw, tokens, k, both=there)
    for call in quantized(c, Source(matrix(x)), activation):
        call()
    tensors = stored("Q4_K", n, k), stored("Q6_K", others, k)
    weights: list[Any] = [load(t, c.target.device) for t in tensors]
    y = torch.full((tokens, n + others), torch.nan, device=c.target.device)
    ys = y.split([n, others], 1)
    calls = product_pair(c, weights, activation, ys)
    for call in calls or [
        call for w, out in zip(weights, ys, strict=True) for call in product(c, w, activation, out, ())
    ]:
        call()
    right = x.cpu().double().numpy() @ np.concatenate([dequantize(t) for t in tensors]).astype(np.float64).T
    assert np.square(y.cpu().numpy() - right).sum() < 1e-3 * np.square(right).sum()


def test_launches_of_two_products() -> None:
    """Rings of as many programs to a multiprocessor as the first product has, and one copy of tokens for both."""
    kinds = [layout_of(by_name(name), "f16") for name in ("Q4_K", "Q6_K")]
    for tokens in (8, 16, 32):
        pair = dispatch.w4a16_pair((kinds[0], 3072, 4096), (kinds[1], 1024, 4096), tokens, "sm_90")
        assert pair is not None
        one, other = pair.shape, pair.other_shape
        assert (one.block_m, one.depth, one.warps, one.resident) == (
            other.block_m, other.depth, other.warps, other.resident
        )
        nbytes = other.depth * other.stages * stage_bytes(kinds[1], other.block_m, other.block_n)
        assert other.resident * nbytes <= 196 << 10
    assert dispatch.w4a16_pair((kinds[0], 3072, 4096), (kinds[1], 1024, 4096), 4, "sm_90") is None
    assert dispatch.w4a16_pair((kinds[0], 3072, 4096), (kinds[1], 1024, 4096), 8, "sm_80") is None
