"""Activation formats: reference quantizers against their definitions, and the default choice."""

from types import SimpleNamespace

import numpy as np
import pytest

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.gpu.backend import GpuBackend
from octavo.backends.reference.backend import ReferenceBackend
from octavo.errors import NonFiniteError, QuantFormatError
from octavo.formats import FORMATS, QTensor, channel_format
from octavo.formats.activation import ACTIVATIONS, STATIC, activation
from octavo.formats.rows import SCHEMES

ROWS = [channel_format(scheme.format, 256) for scheme in SCHEMES.values()]
QUANTIZED = [a for a in ACTIVATIONS if a.quantize is not None]
X = (np.random.default_rng(0).normal(size=(2, 3, 128)) * [[[1], [100], [1e-3]]]).astype(np.float32)


@pytest.mark.parametrize("a", QUANTIZED, ids=lambda a: a.name)
def test_round_trip_is_within_half_a_step(a):
    q = a.quantize(X)
    assert q.format is a
    assert q.codes.shape == X.shape
    error = np.abs(q.dequantize() - X)
    if q.scales is None:
        half = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(a.name, 0.0)  # of a unit in the last place
        allowed = np.abs(X) * half + (2.0**-25 if half else 0)  # also of subnormals
        assert np.all(error <= allowed)
    else:
        groups = error.reshape(*q.scales.shape, -1)
        if a.name == "fp8_token":  # steps are a sixteenth of a number's size at most, and 2^-9 near zero
            values = np.abs(X).reshape(groups.shape)
            assert np.all(groups <= np.maximum(values * 0.0626, q.scales[..., None] * 2.0**-9))
            return
        assert np.all(groups <= q.scales[..., None] * 0.501)


def test_q8_1_by_definition():
    q = activation("q8_1").quantize(X)
    assert q.codes.dtype == np.int8
    assert q.scales.shape == q.sums.shape == (2, 3, 4)
    assert q.scales.dtype == q.sums.dtype == np.float32
    blocks, codes = X.reshape(-1, 32), q.codes.reshape(-1, 32)
    for x, code, scale, total in zip(blocks, codes, q.scales.ravel(), q.sums.ravel(), strict=True):
        assert scale == np.abs(x).max() / np.float32(127)
        assert code.tolist() == [int(np.sign(v) * np.floor(abs(v) * (np.float32(1) / scale) + 0.5)) for v in x]
        assert total == np.float32(code.sum(dtype=np.int32)) * scale


def test_the_sum_pays_for_an_offset():
    """sum((q - z) * x) = sum(q * x) - z * sum(x), for weights of unsigned codes q with offset z."""
    q = activation("q8_1").quantize(X[0])
    weights = np.random.default_rng(1).integers(0, 16, 128)
    x = q.dequantize().astype(np.float64)
    assert np.allclose(x @ (weights - 8), x @ weights - 8 * q.sums.sum(axis=-1), rtol=1e-5)


def test_int8_token_by_definition():
    q = activation("int8_token").quantize(X)
    assert q.codes.dtype == np.int8
    assert q.scales.shape == (2, 3, 1)
    assert np.array_equal(q.scales[..., 0], np.abs(X).max(axis=-1) / np.float32(127))
    assert np.abs(q.codes.astype(int)).max(axis=-1).tolist() == [[127] * 3] * 2


def test_a_scale_that_is_given_cuts_off_what_is_beyond():
    x = np.array([[-200.0, -128.4, -127.6, -0.5, 0.5, 1.5], [0, 127.4, 127.6, 1e30, -1e30, 2.5]], np.float32) * 4
    q = activation("int8_static").given(x, 4.0)
    assert q.codes.tolist() == [[-128, -128, -128, 0, 0, 2], [0, 127, 127, 127, -128, 2]]
    assert q.scales.tolist() == [[4], [4]]
    x = np.array([[500.0, -448, 0.3, 17, -1e30, 0]], np.float32) / 2
    q = activation("fp8_static").given(x, 0.5)
    assert q.codes.tolist() == [[448, -448, 0.3125, 16, -448, 0]]
    assert q.dequantize().tolist() == [[224, -224, 0.15625, 8, -224, 0]]


@pytest.mark.parametrize("name", STATIC)
def test_a_given_scale_that_a_token_has_gives_its_codes(name):
    row = X[:1, :1]
    token = activation(name).quantize(row)
    static = activation(STATIC[name]).given(row, float(token.scales[0, 0, 0]))
    assert np.array_equal(static.codes, token.codes)
    assert np.array_equal(static.dequantize(), token.dequantize())
    with pytest.raises(NonFiniteError, match="inf at"):
        activation(STATIC[name]).given(np.where(X[0, 0, 0] == X, np.inf, X), 1.0)


@pytest.mark.parametrize("a", QUANTIZED, ids=lambda a: a.name)
def test_zeros_and_extremes(a):
    assert np.all(a.quantize(np.zeros((2, 64))).dequantize() == 0)
    if a.name != "f16":
        big = np.array([[3e38, -3e38] * 16], np.float32)
        assert np.allclose(a.quantize(big).dequantize(), big, rtol=0.01)


@pytest.mark.parametrize("a", QUANTIZED, ids=lambda a: a.name)
def test_non_finite_activations(a):
    with pytest.raises(NonFiniteError, match=r"nan at \[1, 2, 5\]"):
        a.quantize(np.where(np.arange(768).reshape(2, 3, 128) == 645, np.nan, X))


def test_f16_refuses_what_it_can_not_hold():
    with pytest.raises(NonFiniteError, match="in f16"):
        activation("f16").quantize([[1e6]])


def test_rows_of_part_groups_and_unknown_names():
    with pytest.raises(QuantFormatError, match="multiples of 32"):
        activation("q8_1").quantize(np.zeros((1, 33)))
    with pytest.raises(QuantFormatError, match=r"'q4'.*int8_token"):
        activation("q4")


def test_every_format_asks_for_an_activation_that_exists():
    assert all(activation(f.activation) for f in FORMATS)


@pytest.mark.parametrize("fmt", [*FORMATS, *ROWS], ids=lambda f: f.name)
def test_the_default_is_one_table(fmt):
    """What a backend's products take is what the weight's row says."""
    weight = QTensor(fmt, (1, 256), np.zeros((1, fmt.row_bytes(256)), np.uint8))
    backends = CpuBackend(threads=1), ReferenceBackend(quantize_activations=True)
    assert [b.activation(weight, "mul_mat") for b in backends] == [fmt.activation] * 2
    rounded = {"F16": "f16", "BF16": "bf16"}
    exact, usual = SimpleNamespace(deterministic=True), SimpleNamespace(deterministic=False)
    assert GpuBackend.activation(usual, weight) == rounded.get(fmt.name, fmt.activation)
    assert GpuBackend.activation(exact, weight) == fmt.activation
    assert ReferenceBackend().activation(weight, "mul_mat") == "f32"
    assert fmt.is_float == (fmt.activation == "f32")
