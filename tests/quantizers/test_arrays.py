"""Integer quantization of plain arrays: the worked examples, error bounds, who shares a scale, and what it takes."""

import doctest

import numpy as np
import pytest

from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats.activation import activation
from octavo.ops.definition import quantize_int8_zero
from octavo.quantizers import arrays, quantize_symmetric, quantize_zero_point

BOTH = pytest.mark.parametrize("quantize", [quantize_symmetric, quantize_zero_point])
EXAMPLE = [2.5, -1.8, 3.2, 0.5, -2.7, 1.2, -0.9, 2.1]


def test_the_worked_examples():
    found = doctest.testmod(arrays)
    assert found.attempted > 6
    assert found.failed == 0


def test_the_example_by_hand():
    scale = 3.2 / 127
    found = quantize_symmetric(EXAMPLE)
    assert found.codes.tolist() == [round(v / scale) for v in EXAMPLE] == [99, -71, 127, 20, -107, 48, -36, 83]
    assert f"{float(found.scales):.10f}".startswith("0.0251968")


@BOTH
@pytest.mark.parametrize(("per", "scales"), [("tensor", ()), ("channel", (3, 5)), ("group", (3, 5, 4))])
def test_error_is_within_half_a_step(quantize, per, scales):
    x = np.random.default_rng(0).standard_normal((3, 5, 128)).astype(np.float32)
    x *= 10.0 ** np.arange(5, dtype=np.float32)[:, None]
    found = quantize(x, per=per, group=32)
    assert found.scales.shape == scales
    assert found.codes.shape == x.shape
    groups = (x.size // max(1, found.scales.size),)
    error = np.abs(found.dequantize() - x).reshape(-1, *groups)
    step = found.scales.reshape(-1, 1)
    slack = 1.0 if quantize is quantize_zero_point else 0.5  # the zero point is rounded, too
    assert (error <= slack * step * 1.0001).all()


@BOTH
def test_finer_scales_leave_less_error(quantize):
    x = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32) * np.geomspace(1, 100, 256)
    errors = [
        np.square(quantize(x, per=per, group=32).dequantize() - x).sum() for per in ("tensor", "channel", "group")
    ]
    assert errors[0] >= errors[1] > errors[2]


def test_a_zero_point_uses_all_codes_of_one_sided_values():
    x = np.random.default_rng(2).uniform(0, 1, 4096)
    zero, plain = quantize_zero_point(x), quantize_symmetric(x)
    assert int(zero.zeros) == 0
    assert int(zero.codes.max()) == 255
    ratio = np.square(plain.dequantize() - x).sum() / np.square(zero.dequantize() - x).sum()
    assert ratio == pytest.approx(4, rel=0.1)  # twice as many steps


@BOTH
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 3.4e38, -3.4e38, 7.0])
def test_constant_arrays(quantize, value):
    x = np.full((2, 64), value, np.float32)
    found = quantize(x, per="channel").dequantize()
    assert np.isfinite(found).all()
    assert np.allclose(found, x, rtol=1e-6, atol=1e-44)


@BOTH
def test_zero_is_exact(quantize):
    x = np.r_[np.random.default_rng(3).uniform(0.5, 9, 63), 0].astype(np.float32)
    assert quantize(x).dequantize()[-1] == 0


def test_the_same_as_activations_of_a_token():
    x = np.random.default_rng(4).standard_normal((4, 96)).astype(np.float32)
    assert np.array_equal(quantize_symmetric(x, per="channel").codes, activation("int8_token").quantize(x).codes)
    codes, _, zeros = quantize_int8_zero(x, "token")
    found = quantize_zero_point(x, per="channel")
    assert np.array_equal(found.codes, codes.astype(np.int16) + 128)
    assert np.array_equal(found.zeros.reshape(-1), zeros[:, 0] + 128)


def test_storage():
    x = np.ones((4, 256), np.float32)
    assert quantize_symmetric(x).storage.nbytes == 1024 + 4
    assert quantize_symmetric(x, per="channel").storage.nbytes == 1024 + 16
    by_group = quantize_zero_point(x, per="group", group=32).storage
    assert by_group.nbytes == 1024 + 32 * 5
    assert by_group.bytes_per_value == pytest.approx(1 + 5 / 32)
    assert by_group.compression == pytest.approx(4 / (1 + 5 / 32))


@BOTH
def test_what_is_refused(quantize):
    with pytest.raises(NonFiniteError, match=r"nan at \[1, 2\]"):
        quantize([[0, 1, 2], [3, 4, np.nan]])
    with pytest.raises(UsageError, match="group is 3 for rows of 8"):
        quantize(EXAMPLE, per="group", group=3)
    with pytest.raises(UsageError, match="per is 'row'"):
        quantize(EXAMPLE, per="row")
    with pytest.raises(QuantFormatError, match=r"shape \(0,\)"):
        quantize([])
