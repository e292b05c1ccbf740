"""The definition itself: against numbers worked out by hand, and against exact arithmetic."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.formats.activation import activation
from octavo.ops import definition


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_int8_rounds_halves_to_even_and_keeps_zero_rows() -> None:
    x = np.array([[127, 0.5, 1.5, -2.5], [0, 0, 0, 0]], np.float32)
    codes, scale = definition.quantize_int8(x, "token")
    assert codes.tolist() == [[127, 0, 2, -2], [0, 0, 0, 0]]
    assert scale.tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("granularity", "shape"), [("tensor", ()), ("token", (6, 1)), ("channel", (6, 1)), (8, (6, 4))]
)
def test_scales_have_the_shape_of_what_shares_them(granularity: definition.Granularity, shape: tuple[int, ...]) -> None:
    x = gaussian(6, 32)
    _, scale = definition.quantize_int8(x, granularity)
    _, scale_zero, zero = definition.quantize_int8_zero(x, granularity)
    assert (scale.shape, scale_zero.shape, zero.shape) == (shape, shape, shape)
    assert (scale.dtype, scale_zero.dtype, zero.dtype) == (np.float32, np.float32, np.int32)


def test_token_codes_are_those_of_the_activation_formats() -> None:
    x = gaussian(5, 64)
    symmetric = activation("int8_token").quantize
    assert symmetric is not None
    codes, scale = definition.quantize_int8(x, "token")
    assert (codes == symmetric(x).codes).all()
    assert (scale == symmetric(x).scales).all()


def test_zero_points_by_hand() -> None:
    x = np.array([[-1.0, 0.0, 3.0, 1.5], [2.01, 4.0, 1.0, 3.0], [-2.01, -4.0, -1.0, -3.0]], np.float32)
    codes, scale, zero = definition.quantize_int8_zero(x, "token")
    assert (zero[:, 0] + 128).tolist() == [64, 0, 255]
    assert (codes.astype(int) + 128).tolist() == [[0, 64, 255, 160], [128, 255, 64, 191], [127, 0, 191, 64]]
    assert (codes[0, 1] - zero[0, 0]) * scale[0, 0] == 0.0


@settings(deadline=None)
@given(
    st.lists(st.floats(-(2.0**120), 2.0**120, width=32, allow_subnormal=False), min_size=1, max_size=40),
    st.sampled_from(["tensor", "token", "channel"]),
)
def test_int8_is_within_half_a_step(values: list[float], granularity: definition.Granularity) -> None:
    x = np.array([values], np.float32)
    codes, scale = definition.quantize_int8(x, granularity)
    back = codes.astype(np.float64) * scale
    assert np.abs(codes.astype(np.int16)).max() <= 127
    assert (np.abs(back - x) <= float(np.max(scale)) * 0.5001 + 1e-44).all()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
@pytest.mark.parametrize("granularity", ["tensor", "token", 16, "block"])
def test_fp8_is_within_half_a_unit(kind: definition.Fp8, granularity: definition.Granularity) -> None:
    x = gaussian(130, 144) * np.exp2(np.arange(130) % 7)[:, None].astype(np.float32)
    x[3] = 0
    codes, scale = definition.quantize_fp8(x, kind, granularity)
    wide = definition.spread_blocks(scale, x.shape) if granularity == "block" else scale
    if granularity == 16:
        wide = np.repeat(scale, 16, axis=1)
    mantissa, smallest = (3, 2.0**-6) if kind == "e4m3" else (2, 2.0**-14)
    back = codes.astype(np.float32) * wide
    unit = np.maximum(np.abs(x), smallest * wide) * 2.0 ** -(mantissa + 1)
    assert (np.abs(back - x) <= unit * 1.0001).all()
    assert not codes[3].astype(np.float32).any()


def test_int8_product_is_the_exact_sum_with_the_epilogue_in_its_order() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((3, 70), (5, 70)))
    zero, bias, residual = rng.integers(-128, 128, 3).astype(np.int32), gaussian(5), gaussian(3, 5)
    scale_a, scale_b = np.abs(gaussian(3, 1)), np.abs(gaussian(5, 1)) * 0.01
    y = definition.int8_gemm(
        a, b, scale_a, scale_b, zero_a=zero, bias=bias, activation="relu", residual=residual, out_dtype="f32"
    )
    for i in range(3):
        for j in range(5):
            acc = sum((int(p) - int(zero[i])) * int(q) for p, q in zip(a[i], b[j], strict=True))
            expected = max(acc * float(scale_a[i, 0]) * float(scale_b[j, 0]) + float(bias[j]), 0) + residual[i, j]
            assert y[i, j] == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("relu", [0, 0, 1, 3]),
        ("silu", [-0.268941, 0, 0.731059, 2.85772]),
        ("gelu", [-0.158808, 0, 0.841192, 2.996363]),
    ],
)
def test_activations(name: definition.Activation, values: list[float]) -> None:
    x = np.array([-1, 0, 1, 3], np.float32)
    assert definition.activate(x, name) == pytest.approx(values, abs=1e-5)
    assert definition.activate(np.array([-200.0], np.float32), name) == pytest.approx([0], abs=1e-30)


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_out_dtype(name: definition.OutDType, dtype: type) -> None:
    one = np.ones((1, 1), np.int8)
    y = definition.int8_gemm(one, one, np.float32(0.1), np.float32(1), out_dtype=name)
    assert y.dtype == dtype
    assert y[0, 0] == np.float32(0.1).astype(dtype)


def test_scales_of_blocks_belong_to_parts_of_the_sum() -> None:
    x, w = gaussian(3, 256), gaussian(200, 256, seed=1)
    a, scale_a = definition.quantize_fp8(x, "e4m3", 128)
    b, scale_b = definition.quantize_fp8(w, "e4m3", "block")
    y = definition.fp8_gemm(a, b, scale_a, scale_b)
    parts = [
        definition.fp8_gemm(a[:, s], b[:, s], scale_a[:, i], np.repeat(scale_b[:, i], 128)[:200])
        for i, s in enumerate((slice(0, 128), slice(128, 256)))
    ]
    assert y == pytest.approx(parts[0] + parts[1], rel=1e-5, abs=1e-4)
    assert np.linalg.norm(y - x @ w.T) / np.linalg.norm(x @ w.T) < 0.05


def test_no_rows_and_no_columns() -> None:
    codes, scale = definition.quantize_int8(np.zeros((0, 8), np.float32), "token")
    y = definition.int8_gemm(codes, np.ones((4, 8), np.int8), scale, np.ones(4, np.float32))
    assert (codes.shape, scale.shape, y.shape) == ((0, 8), (0, 1), (0, 4))
