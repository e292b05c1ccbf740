"""Products of 8-bit numbers: what `octavo.ops.definition` says, for every option, odd sizes and divided K."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.matmul.w8a8 import gemm
from octavo.backends.gpu.matmul.w8a8.gemm import Workspace, fp8_gemm, int8_gemm, row_sums, w4a8_gemm
from octavo.backends.gpu.matmul.w8a8.shapes import H100, GemmShape, Scheme, shape_of
from octavo.errors import UsageError
from octavo.formats.rows import pack_int4
from octavo.ops import definition
from octavo.ops.w4a8 import W4A8Weight
from tests.sampling import some

WHERE = torch_device.target().device
SMALL = GemmShape(16, 64, 128, split_k=1, warps=4)
FP8 = 1e-5 if torch_device.target().arch == "interpreter" else 2e-3
"""Of the largest sum: tensor cores may keep 14 bits of one."""
SIZES = [(1, 1, 32), (1, 40, 256), (17, 33, 130), (32, 64, 384), (5, 70, 100)]
rng = np.random.default_rng(5)


def on(x: Any) -> Any:
    """On the device; fp8 by its bytes, as torch does not know the types of ml_dtypes."""
    if x is None:
        return None
    x = np.asarray(x)
    if x.dtype.name in ("float8_e4m3fn", "float8_e5m2"):
        return torch.from_numpy(x.view(np.uint8)).to(WHERE).view(getattr(torch, x.dtype.name))
    return torch.from_numpy(x).to(WHERE)


def codes(*shape: int) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype(np.int8)


def scales(*shape: int) -> np.ndarray:
    return (rng.random(shape) * 0.01 + 1e-3).astype(np.float32)


def check(y: torch.Tensor, expected: np.ndarray, tolerance: float = 2e-6) -> None:
    expected = expected.astype(np.float32)
    largest = float(np.abs(expected).max(initial=0))
    np.testing.assert_allclose(y.float().cpu().numpy(), expected, rtol=tolerance, atol=tolerance * largest)


def w4a8(n: int, k: int, grouped: bool) -> W4A8Weight:
    q = rng.integers(-8, 8, (n, k)).astype(np.int8)
    groups = (rng.random((n, k // 128)) * 15.8 + 0.01).astype(np.float16) if grouped else None
    return W4A8Weight(pack_int4(q), scales(n), groups)


@pytest.mark.parametrize("size", SIZES)
def test_int8(size: tuple[int, int, int]) -> None:
    m, n, k = size
    args = codes(m, k), codes(n, k), scales(m, 1), scales(n, 1)
    check(int8_gemm(*map(on, args)), definition.int8_gemm(*args))


@pytest.mark.parametrize("a_scales", ["tensor", "token"])
@pytest.mark.parametrize("b_scales", ["tensor", "channel"])
def test_int8_scales_and_zero_points(a_scales: str, b_scales: str) -> None:
    m, n, k = 18, 35, 160
    per_a = (m, 1) if a_scales == "token" else ()
    args = codes(m, k), codes(n, k), scales(*per_a), scales(*((n, 1) if b_scales == "channel" else ()))
    zero = np.asarray(rng.integers(-128, 128, per_a), np.int32)
    expected = definition.int8_gemm(*args, zero_a=zero)
    check(int8_gemm(*map(on, args), zero_a=on(zero)), expected)
    check(int8_gemm(*map(on, args), zero_a=on(zero), sums=row_sums(on(args[1]))), expected)


@pytest.mark.parametrize("k", [64, 200])
def test_zero_points_that_are_no_codes(k: int) -> None:
    """Their tokens are NaN, and no others."""
    args = codes(6, k), codes(5, k), scales(6, 1), scales(5, 1)
    zero = np.array([-128, 127, 128, -129, 2**31 - 1, 1 << 24], np.int32)
    expected = definition.int8_gemm(*args, zero_a=zero)
    y = int8_gemm(*map(on, args), zero_a=on(zero))
    check(y[:2], expected[:2])
    assert bool(y[2:].isnan().all())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_activations_of_extreme_sums(activation: Any) -> None:
    """Sums of 0 with the extremes as bias: 0 from the least finite numbers on, NaN from -Inf."""
    bias = np.array([-1e38, -3e38, -np.inf, np.nan, np.inf, 3e38, -1e5, -0.0], np.float32)
    a, b, one = np.zeros((2, 32), np.int8), np.zeros((len(bias), 32), np.int8), np.ones((), np.float32)
    expected = np.tile(definition.activate(bias, activation), (2, 1))
    y = int8_gemm(on(a), on(b), on(one), on(one), bias=on(bias), activation=activation)
    np.testing.assert_allclose(y.cpu().numpy(), expected, rtol=1e-5, atol=1e-36)


@pytest.mark.parametrize("out_dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_epilogue(activation: Any, out_dtype: Any) -> None:
    m, n, k = 3, 40, 128
    args = codes(m, k), codes(n, k), scales(m, 1) / 50, scales(n, 1)
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float16)
    how = {"activation": activation, "out_dtype": out_dtype}
    y = int8_gemm(*map(on, args), bias=on(bias), residual=on(residual), **how)
    assert y.dtype == gemm.OUT_TYPES[out_dtype]
    check(y, definition.int8_gemm(*args, bias=bias, residual=residual, **how),
          {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}[out_dtype])


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 128), (1, 40, 384), (17, 33, 256), (40, 64, 128)])
def test_w4a8(size: tuple[int, int, int], grouped: bool) -> None:
    m, n, k = size
    a, weight, scale = codes(m, k), w4a8(n, k, grouped), scales(m, 1)
    bias, residual = scales(n), scales(m, n)
    there = weight.to(WHERE)
    args = there.packed, on(scale), there.channel_scale, there.group_scale
    y = w4a8_gemm(on(a), *args, bias=on(bias), residual=on(residual), activation="silu")
    check(y, definition.w4a8_gemm(a, weight, scale, bias=bias, residual=residual, activation="silu"))


def test_scales_of_groups_may_lie_group_by_group() -> None:
    a, weight, scale = codes(2, 256), w4a8(40, 256, True), scales(2, 1)
    there = weight.to(WHERE)
    turned = there.group_scale.t().contiguous().t()
    check(w4a8_gemm(on(a), there.packed, on(scale), there.channel_scale, turned),
          definition.w4a8_gemm(a, weight, scale))


def test_group_scales_round_halves_to_even() -> None:
    """Codes times 0.5, 1.5 and so on, each of which is half an integer for odd codes."""
    q = np.tile(np.arange(-8, 8, dtype=np.int8), (6, 8))
    groups = np.array([[0.5], [1.5], [2.5], [15.5], [2.0**-14], [0.0]], np.float16)
    weight = W4A8Weight(pack_int4(q), np.ones(6, np.float32), groups)
    there = weight.to(WHERE)
    one = np.ones((), np.float32)
    y = w4a8_gemm(on(np.eye(128, dtype=np.int8)), there.packed, on(one), there.channel_scale, there.group_scale)
    np.testing.assert_array_equal(y.cpu().numpy().T, weight.int8().astype(np.float32))


@pytest.mark.parametrize(
    ("size", "group"), [((1, 1, 64), 32), ((3, 40, 256), 64), ((17, 33, 384), 128), ((2, 70, 288), 96)], ids=str
)
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("splits", [1, 2])
def test_int8_with_scales_of_groups(size: tuple[int, int, int], group: int, zero: bool, splits: int) -> None:
    m, n, k = size
    args = codes(m, k), codes(n, k), scales(m, k // group), scales(n, k // group)
    zeros = rng.integers(-128, 128, (m, k // group)).astype(np.int32) if zero else None
    bias, residual = scales(n), scales(m, n)
    more = {"bias": bias, "residual": residual}
    y = int8_gemm(*map(on, args), zero_a=on(zeros), activation="relu", shape=SMALL.with_split_k(splits),
                  **{name: on(x) for name, x in more.items()})
    check(y, definition.int8_gemm(*args, zero_a=zeros, activation="relu", **more), 1e-5)


def test_groups_of_one_factor_and_zero_points_that_are_no_codes() -> None:
    a, b, of_a, of_b = codes(4, 128), codes(5, 128), scales(4, 2), scales(5, 1)
    check(int8_gemm(on(a), on(b), on(of_a), on(of_b)), definition.int8_gemm(a, b, of_a, of_b), 1e-5)
    zero = np.array([[0, 1], [0, 128], [-129, 0], [5, -128]], np.int32)
    y = int8_gemm(on(a), on(b), on(of_a), on(of_b), zero_a=on(zero))
    assert y.isnan().any(1).tolist() == [False, True, True, False]
    assert int8_gemm(on(a)[:0], on(b), on(of_a)[:0], on(of_b)).shape == (0, 5)


KINDS = [(a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_fp8(size: tuple[int, int, int], fast: bool, kinds: Any) -> None:
    m, n, k = size
    x, w = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    a, scale_a = definition.quantize_fp8(x, kinds[0], "token")
    b, scale_b = definition.quantize_fp8(w, kinds[1], "channel")
    y = fp8_gemm(on(a), on(b), on(scale_a), on(scale_b), fast=fast)
    check(y, definition.fp8_gemm(a, b, scale_a, scale_b), FP8)


def test_sums_of_fp8_that_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that end with a share of K and that do not; the first sums are lost nowhere."""
    monkeypatch.setattr(gemm, "KEPT", 256)
    a, b = (definition.quantize_fp8(rng.standard_normal((17, 1700)).astype(np.float32), "e4m3") for _ in range(2))
    expected = definition.fp8_gemm(a[0], b[0], a[1], b[1])
    for splits in (1, 3):
        check(fp8_gemm(on(a[0]), on(b[0]), on(a[1]), on(b[1]), shape=SMALL.with_split_k(splits)), expected, FP8)


@pytest.mark.parametrize("size", [(1, 1, 32), (17, 130, 300), (5, 256, 256)])
def test_fp8_blocks(size: tuple[int, int, int]) -> None:
    m, n, k = size
    x, w = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    a, scale_a = definition.quantize_fp8(np.pad(x, ((0, 0), (0, -k % 128))), "e4m3", 128)
    b, scale_b = definition.quantize_fp8(w, "e4m3", "block")
    a = a[:, :k]
    y = fp8_gemm(on(a), on(b), on(scale_a), on(scale_b), bias=on(scales(n) * 0))
    check(y, definition.fp8_gemm(a, b, scale_a, scale_b), FP8)


@pytest.mark.few(3)
@pytest.mark.parametrize("splits", some([1, 2], 1))
@pytest.mark.parametrize(
    ("how", "rows", "kind"),
    some([("exact", 128, "e4m3"), ("exact", 256, "e5m2"), ("fast", 128, "e5m2"), ("fast", 256, "e4m3"),
          ("blocks", 128, "e4m3")], 1),
)
def test_large_tiles_of_fp8(how: str, rows: int, kind: Any, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that compute capability 9.0 has a kernel of its own for, where a program takes more than one."""
    monkeypatch.setattr(torch_device, "multiprocessors", lambda: 2)
    m, n, k = 140, 272, 1296
    x, w = (rng.standard_normal((size, k)).astype(np.float32) for size in (m, n))
    granularity: Any = (128, "block") if how == "blocks" else ("token", "channel")
    a, scale_a = definition.quantize_fp8(np.pad(x, ((0, 0), (0, -k % 128))), kind, granularity[0])
    b, scale_b = definition.quantize_fp8(w, kind, granularity[1])
    a, bias, residual = a[:, :k], scales(n), rng.standard_normal((m, n)).astype(np.float32)
    more = {"bias": bias, "residual": residual, "activation": "relu"}
    expected = definition.fp8_gemm(a, b, scale_a, scale_b, **more)
    shape, workspace = GemmShape(128, rows, 128, split_k=splits, stages=3), Workspace()
    on_card = {name: on(value) if isinstance(value, np.ndarray) else value for name, value in more.items()}
    for _ in range(2):  # the second time with counters that the first has left
        y = fp8_gemm(
            *map(on, (a, b, scale_a, scale_b)), **on_card, fast=how == "fast", shape=shape, workspace=workspace
        )
        check(y, expected, FP8)


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_fp8_without_units_of_its_own(kinds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of the type, minus zero and the smallest among them, by units of float16."""
    monkeypatch.setattr(gemm, "fp8_operands", lambda arch, *kinds: "f16")
    every = np.arange(256, dtype=np.uint8).view(definition.fp8_dtype(kinds[0]))
    with np.errstate(invalid="ignore"):
        every = np.where(np.isfinite(every.astype(np.float32)), every, 0).astype(every.dtype)
    a, b = every.reshape(8, 32), np.eye(32, dtype=np.float32).astype(definition.fp8_dtype(kinds[1]))
    one = np.ones((), np.float32)
    y = fp8_gemm(on(a), on(b), on(one), on(one))
    np.testing.assert_array_equal(y.cpu().numpy(), a.astype(np.float32))


def test_e4m3_is_twice_what_gfx942_takes_its_bits_for() -> None:
    every = np.array([b for b in range(256) if b & 0x7F != 0x7F and b != 0x80], np.uint8)
    twice = every.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(every.view(ml_dtypes.float8_e4m3fnuz).astype(np.float32) * 2, twice)


@pytest.mark.parametrize("splits", some([2, 3, 7], 1))
def test_programs_that_share_k(splits: int) -> None:
    shape, workspace = SMALL.with_split_k(splits), Workspace()
    a, b, sa, sb = codes(17, 640), codes(33, 640), scales(17, 1), scales(33, 1)
    weight = w4a8(33, 640, True)
    there = weight.to(WHERE)
    for _ in range(2):  # the second time with counters that the first has left
        y = int8_gemm(*map(on, (a, b, sa, sb)), shape=shape, workspace=workspace)
        check(y, definition.int8_gemm(a, b, sa, sb))
        y = w4a8_gemm(on(a), there.packed, on(sa), there.channel_scale, there.group_scale, shape=shape,
                      workspace=workspace)
        check(y, definition.w4a8_gemm(a, weight, sa))
    x, one = rng.standard_normal((17, 640)).astype(definition.fp8_dtype("e4m3")), np.ones((), np.float32)
    again = [fp8_gemm(on(x), on(x), on(one), on(one), shape=shape, workspace=workspace) for _ in range(2)]
    check(again[0], definition.fp8_gemm(x, x, one, one), FP8)
    assert torch.equal(*again)


def test_programs_that_go_from_tile_to_tile() -> None:
    args = codes(40, 256), codes(70, 256), scales(40, 1), scales(70, 1)
    for shape in (replace(SMALL, persistent=True), replace(SMALL, persistent=True, split_k=2)):
        check(int8_gemm(*map(on, args), shape=shape), definition.int8_gemm(*args))


def test_results_go_where_the_caller_says() -> None:
    """Into a part of something larger, and onto the residual."""
    a, b, sa, sb = codes(5, 256), codes(40, 256), scales(5, 1), scales(40, 1)
    weight = w4a8(40, 256, True)
    there = weight.to(WHERE)
    x, w = (rng.standard_normal((rows, 256)).astype(definition.fp8_dtype("e4m3")) for rows in (5, 40))
    expected = (
        definition.int8_gemm(a, b, sa, sb),
        definition.w4a8_gemm(a, weight, sa),
        definition.fp8_gemm(x, w, sa, sb),
    )
    whole = torch.ones(5, 64, device=WHERE)
    for right, call in zip(
        expected,
        (lambda **to: int8_gemm(*map(on, (a, b, sa, sb)), **to),
         lambda **to: w4a8_gemm(on(a), there.packed, on(sa), there.channel_scale, there.group_scale, **to),
         lambda **to: fp8_gemm(*map(on, (x, w, sa, sb)), **to)),
        strict=True,
    ):
        out = whole.fill_(1)[:, 8:48]
        assert call(out=out, residual=out) is out
        check(out, right + 1, FP8)
        assert whole[:, :8].eq(1).all()
        assert whole[:, 48:].eq(1).all()


@pytest.mark.parametrize("k", some([131_072, 65_792, 131_200], 1))
@pytest.mark.parametrize("zero", [None, 127])
def test_sums_that_int32_does_not_hold(k: int, zero: int | None) -> None:
    """-128 by -128 131,072 times is 2^31; with a zero point each product is twice as large."""
    shape = GemmShape(16, 16, 4096, split_k=1) if torch_device.target().arch == "interpreter" else SMALL
    a, b, one = np.full((2, k), -128, np.int8), np.full((3, k), -128, np.int8), np.ones((), np.float32)
    b[1] = 127
    zeros = None if zero is None else np.array(zero, np.int32)
    y = int8_gemm(*map(on, (a, b, one, one)), zero_a=on(zeros), shape=shape)
    check(y, definition.int8_gemm(a, b, one, one, zero_a=zeros))


def test_4_bit_sums_that_int32_does_not_hold() -> None:
    k, one = 131_072, np.ones((), np.float32)
    a, weight = np.full((1, k), -128, np.int8), W4A8Weight(np.full((2, k // 2), 0x88, np.uint8), np.ones(2, np.float32))
    there = weight.to(WHERE)
    check(w4a8_gemm(on(a), there.packed, on(one), there.channel_scale), definition.w4a8_gemm(a, weight, one))


def test_memory_that_is_not_aligned_or_not_in_order() -> None:
    a, b, sa, sb = codes(6, 300), codes(80, 300), scales(6, 1), scales(40, 1)
    expected = definition.int8_gemm(a[:, 3:259], b[::2, 5:261], sa, sb)
    check(int8_gemm(on(a)[:, 3:259], on(b)[::2, 5:261], on(sa), on(sb)), expected)
    turned = on(np.ascontiguousarray(b[::2, 5:261].T)).t()
    check(int8_gemm(on(a)[:, 3:259], turned, on(sa), on(sb)), expected)


def test_no_tokens_no_rows_no_values() -> None:
    for m, n, k in ((0, 4, 128), (4, 0, 128)):
        assert int8_gemm(on(codes(m, k)), on(codes(n, k)), on(scales()), on(scales())).shape == (m, n)
    y = int8_gemm(on(codes(2, 0)), on(codes(3, 0)), on(scales()), on(scales()), bias=on(np.ones(3, np.float32)))
    np.testing.assert_array_equal(y.cpu().numpy(), np.ones((2, 3), np.float32))


A, B, ONE = on(codes(2, 128)), on(codes(4, 128)), on(np.ones((), np.float32))
WRONG: dict[str, tuple[Any, str]] = {
    "K": (lambda: int8_gemm(A, B[:, :64], ONE, ONE), r"a is int8 \[2, 128\] and b int8 \[4, 64\]"),
    "type": (lambda: int8_gemm(A.float(), B, ONE, ONE), "allowed: int8"),
    "dimensions": (lambda: int8_gemm(A[0], B, ONE, ONE), r"\[M, K\] and \[N, K\]"),
    "scale_a": (lambda: int8_gemm(A, B, ONE.repeat(3), ONE), r"scale_a is float32 \[3\].*\[\] or \[2, 1\]"),
    "scale_b": (lambda: int8_gemm(A, B, ONE, ONE.half()), "scale_b is float16"),
    "zero_a": (lambda: int8_gemm(A, B, ONE, ONE, zero_a=ONE), "zero_a is float32"),
    "sums": (lambda: int8_gemm(A, B, ONE, ONE, zero_a=ONE.int(), sums=ONE.int()), r"allowed: int32 \[4\]"),
    "bias": (lambda: int8_gemm(A, B, ONE, ONE, bias=ONE), r"bias is float32 \[\].*\[4\]"),
    "residual": (lambda: int8_gemm(A, B, ONE, ONE, residual=A.float()), r"residual is .*\[2, 4\]"),
    "out": (lambda: int8_gemm(A, B, ONE, ONE, out=A.float()), r"out is .*\[2, 4\]"),
    "out's strides": (lambda: int8_gemm(A, B, ONE, ONE, out=torch.empty(4, 2, device=WHERE).t()), "contiguous"),
    "activation": (lambda: int8_gemm(A, B, ONE, ONE, activation="tanh"), "'tanh' .allowed: relu, gelu, silu"),
    "out_dtype": (lambda: int8_gemm(A, B, ONE, ONE, out_dtype="i8"), "'i8' .allowed: f32, f16, bf16"),
    "device": (lambda: int8_gemm(A.to("meta"), B, ONE, ONE), "one device"),
    "packed": (lambda: w4a8_gemm(A, B[:, :60].view(torch.uint8), ONE, ONE), "packed is uint8"),
    "groups": (lambda: w4a8_gemm(A, B[:, :64].view(torch.uint8), ONE, ONE, ONE), r"float16 \[4, 1\]"),
    "fp8": (lambda: fp8_gemm(A, B, ONE, ONE), "float8_e4m3fn or float8_e5m2"),
    "kinds": (lambda: fp8_gemm(A.view(torch.float8_e5m2), B.half(), ONE, ONE), "b float16 .*e4m3fn or float8_e5m2"),
    "number of groups": (lambda: int8_gemm(A, B, ONE.repeat(2, 3), ONE), r"scale_a is \[2, 3\] with K = 128"),
    "scales of groups": (lambda: int8_gemm(A, B, ONE.repeat(3, 2), ONE), r"scale_a is float32 \[3, 2\]"),
    "blocks": (lambda: fp8_gemm(*(x.view(torch.float8_e5m2) for x in (A, B)), ONE, ONE.repeat(2, 3)), r"\[2, 1\]"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_said(what: str) -> None:
    call, words = WRONG[what]
    with pytest.raises(UsageError, match=words):
        call()


@pytest.mark.parametrize("scheme", H100)
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100", "gfx942", "gfx1100"])
def test_shapes_fit(scheme: Scheme, arch: str) -> None:
    """Each is within shared memory, and each program of a divided K has work."""
    memory = {"sm_80": 160, "sm_89": 99, "gfx942": 64, "gfx1100": 64}.get(arch, 224) << 10
    for m in (1, 16, 64, 128, 512, 2048, 8192):
        for n, k in ((8192, 21504), (4096, 4096), (128, 256)):
            for hopper in {False, arch == "sm_90"}:
                s = shape_of(scheme, m, n, k, arch, 132, hopper)
                assert s.stages * s.stage_bytes(scheme.startswith("w4a8")) <= memory
                assert 1 <= s.split_k <= -(-k // s.block_k)
