"""Packing and the plain encoders: the inverse of unpacking, gguf's own bytes, and the round trip's error."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from format_oracle import BLOCK_FORMATS, ENCODED_BY_GGUF, encoded_by_oracle, random_tensor, same_bits, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from octavo.errors import NonFiniteError, QuantFormatError
from octavo.formats import FORMATS, by_name, dequantize, encoders, pack, quantize_reference, unpack

ENCODABLE = [f for f in FORMATS if f.encode is not None]
BY_GGUF = [f for f in FORMATS if f.name in ENCODED_BY_GGUF]

# sqrt(sum of squared errors) / n over 4096 values of 0.1 + 2 cos(i), as llama.cpp's own test holds the formats to
TOLERANCE = {"Q2_K": 0.0075, "Q3_K": 0.004, "NVFP4": 0.003, "TQ1_0": 0.01, "TQ2_0": 0.01, "IQ3_S": 0.004,
             "IQ3_XXS": 0.005, **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"), 0.01)}

# Where 1 / scale overflows (scales below 2^-128) the gguf package casts Inf to an integer, which is undefined.
_magnitude = st.floats(2.0**-100, 2.0**13, width=32)
_value = st.one_of(st.just(0.0), _magnitude, _magnitude.map(lambda v: -v))


@pytest.mark.parametrize("fmt", [f for f in BLOCK_FORMATS if f.name not in ("Q8_1", "Q8_K")], ids=lambda f: f.name)
def test_pack_is_the_inverse_of_unpack(fmt):
    t = random_tensor(fmt, finite=True)
    if fmt.name == "TQ1_0":  # 243 of 256 bytes are written
        t = quantize_reference(np.random.default_rng(0).normal(size=(24, 1024)), fmt)
    if fmt.name == "IQ1_M":  # d lies in the highest bits of the scales
        t.data.reshape(-1, fmt.block_bytes)[:, -1] &= 0x3F
    assert np.array_equal(pack(unpack(t), fmt), t.data)


@pytest.mark.parametrize("name", ["NVFP4", "MXFP4", "IQ4_NL", "IQ4_XS"])
def test_tables_take_no_more_memory_than_other_formats(name):
    """An error for each entry of the table is there for a few values only."""
    fmt, values = by_name(name), np.random.default_rng(0).normal(size=(256, 2048)).astype(np.float32)
    tracemalloc.start()
    fmt.encode(fmt, values)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 24 * values.size


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.name)
def test_unpack_is_the_inverse_of_pack(fmt):
    planes = unpack(quantize_reference(np.random.default_rng(0).normal(size=(2, 3, 512)), fmt))
    again = unpack(tensor(fmt, pack(planes, fmt)))
    for one, other in zip(dataclasses.astuple(planes), dataclasses.astuple(again), strict=True):
        assert (one is None and other is None) or np.array_equal(one, other)


@pytest.mark.parametrize("fmt", BY_GGUF, ids=lambda f: f.name)
def test_the_same_bytes_as_gguf(fmt):
    rng = np.random.default_rng(0)
    plain = rng.normal(size=(64, 512)).astype(np.float32)
    for x in (
        plain,
        plain * 10.0 ** rng.integers(-30, 4, (64, 1)).astype(np.float32),
        np.where(rng.random(plain.shape) < 0.9, np.float32(0), plain),
        np.round(plain * 4),
        np.abs(plain) + 3,
        np.zeros((2, 64), np.float32),
        np.full((2, 64), -0.0, np.float32),
    ):
        values = x.astype(np.float32)
        assert np.array_equal(quantize_reference(values, fmt).data, encoded_by_oracle(fmt, values))


@pytest.mark.parametrize("fmt", [f for f in BY_GGUF if f.name != "MXFP4"], ids=lambda f: f.name)
def test_the_same_bytes_as_gguf_for_any_values(fmt):
    @settings(max_examples=25, deadline=None)
    @given(arrays.arrays(np.float32, (1, fmt.block), elements=_value))
    def check(x):
        assert np.array_equal(quantize_reference(x, fmt).data, encoded_by_oracle(fmt, x))

    check()


@pytest.mark.parametrize("fmt", ENCODABLE, ids=lambda f: f.name)
def test_round_trip_error(fmt):
    x = (0.1 + 2 * np.cos(np.arange(4096))).astype(np.float32)
    error = dequantize(quantize_reference(x, fmt)) - x
    assert np.sqrt(np.sum(np.square(error, dtype=np.float64))) / x.size < TOLERANCE.get(fmt.name, 0.002)


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.name)
def test_no_value_is_far_off(fmt):
    """Each value within one step of the coarsest code, whatever the sign and size of its group."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (8, 512)) * 10.0 ** rng.integers(0, 4, (8, 1))
    x[1] = np.abs(x[1])
    x[2] = -np.abs(x[2])
    span = np.abs(x).max(axis=-1, keepdims=True)
    # steps over the range: 2^bits - 1; twice that for rounded scales; e2m1 and the two-bit codes are the coarsest
    allowed = 2 * 2.0 / ((1 << fmt.bits) - 1) if fmt.table is None else 0.25
    if fmt.codebook is not None:  # no point may be near where one value is large and its neighbours small
        allowed = 1.0
    assert np.all(np.abs(dequantize(quantize_reference(x, fmt)) - x) <= allowed * span)


@pytest.mark.parametrize("fmt", ENCODABLE, ids=lambda f: f.name)
def test_zero_and_tiny_values_stay_so(fmt):
    assert np.all(dequantize(quantize_reference(np.zeros((2, 512)), fmt)) == 0)
    tiny = np.full((1, 512), 1e-41, np.float32)
    assert np.all(np.abs(dequantize(quantize_reference(tiny, fmt))) <= 1e-37)


def test_q8_1_by_definition():
    x = np.random.default_rng(4).normal(size=32).astype(np.float32)
    block = quantize_reference(x, by_name("Q8_1")).data
    d = np.float32(np.abs(x).max()) / np.float32(127)
    codes = block[4:].view(np.int8)
    assert block[:2].view("<f2")[0] == np.float16(d)
    assert block[2:4].view("<f2")[0] == np.float16(np.float32(codes.sum(dtype=np.int32)) * d)
    assert codes.tolist() == [int(np.sign(v) * np.floor(abs(v) / d + 0.5)) for v in x]


def test_q8_k_by_definition():
    x = np.random.default_rng(5).normal(size=256).astype(np.float32)
    block = quantize_reference(x, by_name("Q8_K")).data
    codes = block[4:260].view(np.int8)
    peak = x[np.abs(x).argmax()]
    inverse = np.float32(-127) / peak
    assert block[:4].view("<f4")[0] == np.float32(1) / inverse
    assert codes.tolist() == [min(127, round(float(inverse * v))) for v in x]
    assert block[260:].view("<i2").tolist() == [int(codes[i : i + 16].sum(dtype=np.int32)) for i in range(0, 256, 16)]


def test_the_peak_of_a_group_is_kept():
    x = np.array([0.5] * 31 + [-4.0], np.float32)
    assert dequantize(quantize_reference(x, by_name("Q4_0")))[31] == -4.0
    assert dequantize(quantize_reference(-x, by_name("Q4_0")))[31] == 4.0
    assert dequantize(quantize_reference(x, by_name("Q8_0")))[31] == pytest.approx(-4.0, rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", ENCODABLE, ids=lambda f: f.name)
def test_non_finite_input_names_its_position(fmt, bad):
    x = np.zeros((2, 3, 512), np.float32)
    x[1, 2, 300] = x[1, 2, 301] = bad
    with pytest.raises(NonFiniteError, match=r"tensor 'w': (nan|-?inf) at \[1, 2, 300\]"):
        quantize_reference(x, fmt, name="w")


@pytest.mark.parametrize("name", ["F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "NVFP4"])
def test_values_beyond_the_scale_are_refused(name):
    with pytest.raises(QuantFormatError, match="tensor 'w': "):
        quantize_reference(np.full((1, 256), 1e30, np.float32), by_name(name), name="w")


def test_shapes_and_formats_that_can_not_be_encoded():
    with pytest.raises(QuantFormatError, match=r"\(2, 33\).*Q4_0 blocks of 32"):
        quantize_reference(np.zeros((2, 33)), by_name("Q4_0"))
    with pytest.raises(QuantFormatError, match=r"shape \(\)"):
        quantize_reference(1.0, by_name("F32"))
    with pytest.raises(QuantFormatError, match="no encoder for I32"):
        quantize_reference(np.zeros((2, 32)), by_name("I32"))


def test_plain_numbers_come_back():
    x = np.random.default_rng(6).normal(size=(4, 32)).astype(np.float32)
    assert same_bits(dequantize(quantize_reference(x, by_name("F32"))), x)
    assert same_bits(dequantize(quantize_reference(x, by_name("F64"))), x)
    assert same_bits(dequantize(quantize_reference(x, by_name("F16"))), x.astype(np.float16).astype(np.float32))


STEPS = {
    "of the peak": lambda x, rng: np.abs(x).max(axis=-1, keepdims=True) / rng.choice([12, 6, 113, 0.5], (len(x), 1)),
    "one": lambda x, rng: np.ones((len(x), 1)),
    "below 0": lambda x, rng: -np.abs(x).max(axis=-1, keepdims=True) / 100,
    "small": lambda x, rng: np.full((len(x), 1), 1e-9),
    "none": lambda x, rng: np.where(rng.random((len(x), 1)) < 0.5, 0, 1e-45),
    "beyond float32": lambda x, rng: np.where(rng.random((len(x), 1)) < 0.5, np.inf, 1e38),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["NVFP4", "MXFP4", "IQ4_NL", "IQ4_XS"])
def test_the_nearest_entry_of_a_table_is_that_of_all(name, step):
    """Numbers of any size, halfway between two entries, next to one, and those that several entries are as near to."""
    fmt, rng = by_name(name), np.random.default_rng(0)
    entries = np.array(sorted(fmt.table), np.float32)
    halves = (rng.choice(entries, (300, fmt.group)) + rng.choice(entries, (300, fmt.group))) / 2
    table = np.array(fmt.table, np.float32)
    for drawn in (rng.normal(size=(300, fmt.group)), rng.normal(size=(300, fmt.group)) * 1e6, halves, halves * 1e-40):
        x = drawn.astype(np.float32)
        with np.errstate(all="ignore"):
            d = STEPS[step](x, rng).astype(np.float32)
            scaled = np.nan_to_num(x * d)
            for values in (x, scaled, np.nextafter(scaled, np.float32(0)), np.nextafter(scaled, np.float32(1))):
                want = np.abs(d[..., None] * table - values[..., None]).argmin(axis=-1)
                np.testing.assert_array_equal(encoders._nearest_in_table(values, d, fmt), want)
