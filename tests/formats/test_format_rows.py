"""Numbers of 8 and 4 bits: codes, scales, zero points and packing against loops, and what a scheme is made of."""

from fractions import Fraction

import numpy as np
import pytest

from octavo.errors import UsageError
from octavo.formats import channel_format, rows
from octavo.formats.activation import activation

X = (np.random.default_rng(0).normal(size=(4, 2, 16)) * [[[1]], [[100]], [[1e-3]], [[0]]]).astype(np.float32)


def half_to_even(x: Fraction) -> int:
    return round(x)  # of a Fraction, halves go to the even number


@pytest.mark.parametrize("top", [127, 7])
def test_symmetric_codes(top: int) -> None:
    codes, scales = rows.symmetric(X, top)
    assert (codes.dtype, scales.dtype, scales.shape) == (np.int8, np.float32, (4, 2))
    for values, got, scale in zip(X.reshape(-1, 16), codes.reshape(-1, 16), scales.reshape(-1), strict=True):
        assert scale == np.float32(max(abs(v) for v in values)) / np.float32(top)
        steps = [Fraction(float(v / scale)) if scale else Fraction(0) for v in values]
        assert got.tolist() == [max(-top, min(top, half_to_even(step))) for step in steps]


def test_halves_go_to_the_even_code() -> None:
    codes, scale = rows.symmetric(np.array([127, 0.5, 1.5, -2.5, -0.5], np.float32), 127)
    assert (codes.tolist(), float(scale)) == ([127, 0, 2, -2, 0], 1.0)


def test_zero_points() -> None:
    x = np.array([[-1.0, 0.0, 3.0, 1.5], [2.01, 4.0, 1.0, 3.0], [-2.01, -4.0, -1.0, -3.0], [0, 0, 0, 0]], np.float32)
    codes, scale, zero = rows.zero_point(x)
    assert (codes.dtype, scale.dtype, zero.dtype) == (np.uint8, np.float32, np.uint8)
    assert zero.tolist() == [64, 0, 255, 0]
    assert codes.tolist() == [[0, 64, 255, 160], [128, 255, 64, 191], [127, 0, 191, 64], [0, 0, 0, 0]]
    assert scale == pytest.approx([4 / 255, 4 / 255, 4 / 255, 0])


def test_nothing_to_share_a_scale() -> None:
    codes, scale = rows.symmetric(np.zeros((0, 3, 8), np.float32), 127)
    assert (codes.shape, scale.shape) == ((0, 3, 8), (0, 3))
    codes, scale, zero = rows.zero_point(np.zeros((2, 0), np.float32))
    assert (codes.shape, scale.tolist(), zero.tolist()) == ((2, 0), [0, 0], [0, 0])


def test_division_by_a_scale_of_zero_and_of_a_damaged_file() -> None:
    assert rows.divide(np.float32([3, 3]), np.float32([2, 0])).tolist() == [1.5, 0]
    assert np.isnan(rows.divide(np.float32([1]), np.float32([np.nan])))


def test_two_levels_fold_into_eight_bits() -> None:
    groups = np.random.default_rng(1).normal(size=(3, 2, 128)).astype(np.float32) * np.float32([[[1], [0.1]]])
    codes, scales = rows.symmetric(groups, rows.INT4_TOP)
    row, relative = rows.two_levels(scales, rows.INT4_TOP)
    assert (row.shape, relative.shape, relative.dtype) == ((3, 1), (3, 2), np.float16)
    assert row[:, 0] == pytest.approx(np.abs(groups).max(axis=(1, 2)) / 127)
    folded = codes.astype(np.float32)
    rows.fold(folded, relative)
    assert np.abs(folded).max(axis=(1, 2)).tolist() == [127, 127, 127]
    assert folded[1, 1, 5] == half_to_even(Fraction(int(codes[1, 1, 5])) * Fraction(float(relative[1, 1])))


@pytest.mark.parametrize("shape", [(3, 256), (2, 2, 128), (0, 128), (1, 0)])
def test_packing_keeps_all_codes(shape: tuple[int, ...]) -> None:
    codes = (np.arange(np.prod(shape), dtype=np.int16).reshape(shape) * 5 % 16 - 8).astype(np.int8)
    packed = rows.pack_int4(codes)
    assert packed.shape == (*shape[:-1], shape[-1] // 2)
    assert np.array_equal(rows.unpack_int4(packed), codes)
    assert np.array_equal(rows.pack_int4(codes & 15), packed)
    for j, byte in enumerate(packed.reshape(-1).tolist()):
        block, at = divmod(j, 64)
        low, high = (int(codes.reshape(-1)[128 * block + at + i]) & 15 for i in (0, 64))
        assert byte == low | high << 4


@pytest.mark.parametrize("scheme", rows.SCHEMES.values(), ids=lambda s: s.name)
def test_a_scheme_is_made_of_formats_that_exist(scheme: rows.Scheme) -> None:
    fmt = channel_format(scheme.format, 256)
    assert (fmt.bits, fmt.activation, fmt.folds) == (scheme.bits, scheme.activation, scheme.group is not None)
    assert fmt.group == (scheme.group or 256)
    assert (fmt.number is not None) == (scheme.kind == "float")
    assert activation(scheme.activation).bits == 8
    assert rows.find_scheme(scheme.name) is scheme


def test_another_scheme() -> None:
    with pytest.raises(UsageError, match=r"scheme 'int7' \(allowed: int8-w8a8, w4a8, w4a8-g128, fp8\)"):
        rows.find_scheme("int7")
