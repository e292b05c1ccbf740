"""Vectors of 16 floats: memory, conversions, arithmetic. Each intrinsic alone, against NumPy."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numba
import numpy as np
import pytest

from octavo.jit import host_cpu, simd
from tests.jit.kernel_functions import compiled, fenced

HALVES = np.arange(1 << 16, dtype=np.uint16)
BYTES = np.arange(256, dtype=np.uint8)
FINITE = np.where(BYTES & 0x7F == 0x7F, 0, BYTES).astype(np.uint8)


@pytest.fixture(params=["instructions", "by hand"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the CPU's instructions, and as it is done on a CPU without F16C and FMA."""
    if request.param == "by hand":
        monkeypatch.setattr(host_cpu, "features", frozenset)
        monkeypatch.setattr(host_cpu, "level", lambda: "x86-64")


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal to the bit, the sign of zero included; any NaN is as good as another."""
    assert got.dtype == want.dtype
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    whole = f"u{got.itemsize}"
    np.testing.assert_array_equal(got.view(whole)[~nan], want.view(whole)[~nan])


def each_vector(load: Callable[..., Any], store: Callable[..., Any], source: np.ndarray, result: np.dtype) -> Any:
    """`source`, 16 values at a time, through a load and a store."""
    out = np.empty(len(source), result)
    step, out_step = 16 * source.itemsize, 16 * out.itemsize

    @compiled
    def run(x, y, n):
        for i in range(n):
            store(y + i * out_step, load(x + i * step))

    run(source, out, len(source) // 16)
    return out


F32 = np.dtype(np.float32)
with np.errstate(invalid="ignore"):  # signaling NaNs, of which Arm says so
    FROM_HALVES = HALVES.view(np.float16).astype(np.float32)
SOURCES = {
    "f16": (simd.load_f16x16, HALVES, FROM_HALVES),
    "bf16": (simd.load_bf16x16, HALVES, (HALVES.astype(np.uint32) << 16).view(np.float32)),
    "e4m3": (simd.load_e4m3x16, BYTES, BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32) / 256),
    "finite e4m3": (simd.load_finite_e4m3x16, FINITE, FINITE.view(ml_dtypes.float8_e4m3fn).astype(np.float32) / 256),
    "e5m2": (simd.load_e5m2x16, BYTES, BYTES.view(ml_dtypes.float8_e5m2).astype(np.float32)),
    "u8": (simd.load_u8x16, BYTES, np.arange(256, dtype=np.float32)),
    "s8": (simd.load_s8x16, BYTES, np.arange(256).astype(np.int8).astype(np.float32)),
    "exponent": (simd.load_exponent_x16, BYTES,
                 np.r_[0, 2.0 ** np.arange(-126, 128), np.inf].astype(np.float32)),
}


@pytest.mark.usefixtures("means")
@pytest.mark.parametrize("kind", SOURCES)
def test_loads_of_every_value(kind: str) -> None:
    load, source, want = SOURCES[kind]
    same_bits(each_vector(load, simd.store_f32x16, source, F32), want)


@pytest.mark.usefixtures("means")
def test_finite_e4m3_in_pairs_of_vectors() -> None:
    out = np.empty(len(FINITE), np.float32)

    @compiled
    def run(x, y, n):
        for i in range(n):
            both = simd.load_finite_e4m3x32(x + i * 32)
            simd.store_f32x16(y + i * 128, simd.get(both, 0))
            simd.store_f32x16(y + i * 128 + 64, simd.get(both, 1))

    run(FINITE, out, len(FINITE) // 32)
    same_bits(out, SOURCES["finite e4m3"][2])


@pytest.mark.usefixtures("means")
def test_floats_are_rounded_to_the_nearest_e4m3() -> None:
    numbers = np.sort(FINITE.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    middles = (numbers[:-1] + numbers[1:]) / 2
    near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    drawn = np.random.default_rng(0).uniform(-448, 448, 1 << 12).astype(np.float32)
    values = np.concatenate([numbers, middles, *near, drawn, drawn / 2**12, [np.nan, -np.nan]]).astype(np.float32)
    values = np.concatenate([values, np.zeros(-len(values) % 16, np.float32)])
    out = np.empty(len(values), np.float32)

    @compiled
    def run(x, y, n):
        for i in range(n):
            simd.store_f32x16(y + i * 64, simd.round_e4m3(simd.load_f32x16(x + i * 64)))

    run(values, out, len(values) // 16)
    same_bits(out, values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


def f32_edges() -> np.ndarray:
    """Floats where rounding to f16 can go wrong: halves, the middles between them, and their neighbours."""
    halves = HALVES[:0x7C00].view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    special = np.array([65504, 65519.99, 65520, 65536, 3e38, np.inf, np.nan, 1e-45, 2e-8, 2.0**-25, 2.0**-24], "f4")
    exact = np.concatenate([halves, middles, special])
    near = np.concatenate([exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))])
    any_bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    values = np.concatenate([near, -near, any_bits])
    return np.concatenate([values, np.zeros(-len(values) % 16, np.float32)])


@pytest.mark.usefixtures("means")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_single_halves_are_rounded_to_nearest_even() -> None:
    wide = np.empty(len(HALVES), np.float32)
    narrow_from = f32_edges()
    narrow = np.empty(len(narrow_from), np.float16)

    @compiled
    def run(halves, wide, floats, narrow, n_wide, n_narrow):
        for i in range(n_wide):
            simd.f32_pointer(wide)[i] = simd.load_f16(halves + 2 * i)
        for i in range(n_narrow):
            simd.store_f16(narrow + 2 * i, simd.f32_pointer(floats)[i])

    run(HALVES, wide, narrow_from, narrow, len(wide), len(narrow))
    same_bits(wide, HALVES.view(np.float16).astype(np.float32))
    same_bits(narrow, narrow_from.astype(np.float16))


def test_memory_need_not_be_aligned_and_no_more_is_touched() -> None:
    source, target = fenced(16 * 4), fenced(16 * 4)
    source[:] = np.random.default_rng(0).integers(0, 256, 64)
    raw = np.zeros(64 + 7, np.uint8)

    @compiled
    def run(x, y, z):
        simd.store_f32x16(y, simd.load_f32x16(x))
        simd.store_f32x16(z + 7, simd.load_f32x16(x))
        simd.store_f32x16(y, simd.load_f32x16(z + 7))

    run(source, target, raw)
    np.testing.assert_array_equal(raw[7:], source)
    np.testing.assert_array_equal(target, source)


def through(function: Callable[..., Any], *vectors: np.ndarray) -> np.ndarray:
    """A function of 1 to 3 vectors and a result, on arrays of 16 floats."""
    x, y, z = (*vectors, vectors[0], vectors[0])[:3]
    out, count = np.empty(16, np.float32), len(vectors)

    @compiled
    def run(out, x, y, z):
        a, b, c = simd.load_f32x16(x), simd.load_f32x16(y), simd.load_f32x16(z)
        if count == 1:
            value = function(a)
        elif count == 2:
            value = function(a, b)
        else:
            value = function(a, b, c)
        simd.store_f32x16(out, value)

    run(out, x, y, z)
    return out


X, Y, Z = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
ARITHMETIC = {"add": X + Y, "sub": X - Y, "mul": X * Y, "div": X / Y, "maximum": np.maximum(X, Y)}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    np.testing.assert_array_equal(through(getattr(simd, name), X, Y), ARITHMETIC[name])


def test_operators() -> None:
    """Of two vectors, or of one and a number."""
    products = through(numba.njit(lambda x, y: x / y - 3 * x), X, Y)
    np.testing.assert_allclose(products, X / Y - np.float32(3) * X, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(through(numba.njit(lambda x: (x + 3.0) * 0.5), X), (X + 3) * 0.5, rtol=1e-6)


def test_largest_magnitude() -> None:
    out = np.empty(1, np.float32)

    @compiled
    def run(out, x, y):
        simd.f32_pointer(out)[0] = simd.largest_magnitude(simd.load_f32x16(x), simd.load_f32x16(y))

    for lane, value in itertools.product(range(16), [-7.5, 7.5, np.inf, -np.inf, np.nan, -np.nan]):
        for x, y in ((X.copy(), Y), (Y, X.copy())):
            (x if y is Y else y)[lane] = value
            run(out, x, y)
            np.testing.assert_array_equal(out[0], np.abs(np.float32(value)))


def test_fma_rounds_once_where_the_cpu_can() -> None:
    x = np.full(16, 1 + 2.0**-23, np.float32)
    got = through(simd.fma, x, x, -x * x)
    exact = float(x[0]) ** 2 + float((-x * x)[0])
    can = "fma" in host_cpu.features() or platform.machine() in ("aarch64", "arm64")
    np.testing.assert_array_equal(got, np.float32(exact if can else 0.0))
    np.testing.assert_allclose(through(simd.fma, X, Y, Z), X * Y + Z, rtol=1e-5, atol=1e-6)


def test_splat_sums_and_maxima() -> None:
    out = np.empty(18, np.float32)

    @compiled
    def run(out, x):
        v = simd.load_f32x16(x)
        simd.f32_pointer(out)[0] = simd.sum_lanes(v)
        simd.f32_pointer(out)[1] = simd.max_lanes(v)
        simd.store_f32x16(out + 8, simd.splat(simd.f32_pointer(x)[3]))

    for x in (X, -np.abs(X), np.arange(16, dtype=np.float32)[::-1].copy(), np.eye(16, dtype=np.float32)[7]):
        run(out, x)
        np.testing.assert_allclose(out[0], x.astype(np.float64).sum(), rtol=1e-6)
        assert out[1] == x.max()
        np.testing.assert_array_equal(out[2:], x[3])


def exponentials(x: np.ndarray) -> np.ndarray:
    @compiled.inline
    def load_exp(address):
        return simd.exp(simd.load_f32x16(address))

    return each_vector(load_exp, simd.store_f32x16, x, F32)


@pytest.mark.usefixtures("means")
def test_exp_is_within_2_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-87.3, 88.3, 1 << 18), np.linspace(-1, 1, 1 << 16)]).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    units = np.abs(exponentials(x) - want) / np.spacing(want.astype(np.float32)).astype(np.float64)
    assert units.max() <= 2


@pytest.mark.usefixtures("means")
def test_exp_at_its_ends() -> None:
    x = np.array([0, -0.0, -87.4, -103, -1e30, -np.inf, 88.3, 88.8, 1e30, np.inf, np.nan, -np.nan] + [0] * 4, "f4")
    x[12:14] = np.array([0x7FC00001, 0xFFFFFFFF], np.uint32).view(np.float32)
    got, top = exponentials(x), np.exp(np.float64(88.3))
    np.testing.assert_array_equal(got[:6], [1, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(got[6:10], top, rtol=1e-5)
    assert np.isnan(got[10:14]).all(), "NaN stays NaN"


def test_quantize16_takes_ties_to_even() -> None:
    ties = np.array(
        [-127.5, -126.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 0, -0.0, 127, -128, 3.49, 3.51, -3.5], "f4"
    )
    rng = np.random.default_rng(0)
    codes, out = fenced(16), np.empty(1, np.float32)

    @compiled
    def run(codes, out, x):
        simd.f32_pointer(out)[0] = simd.quantize16(codes, simd.load_f32x16(x))

    for x in (ties, *rng.uniform(-127.4, 127.4, (50, 16)).astype(np.float32), np.full(16, 127, "f4")):
        run(codes, out, x)
        np.testing.assert_array_equal(codes.view(np.int8), np.rint(x))
        assert out[0] == np.rint(x).sum()
