"""Decoding, bit for bit against the gguf package; formats that it lacks against their definition, value by value."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from format_oracle import BLOCK_FORMATS, WITH_ORACLE, by_oracle, random_tensor, same_bits, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import UsageError
from octavo.formats import FORMATS, by_name, decode, dequantize, dequantize_rows, unpack, unpackers

# f16 bytes, low first: 0, -0, smallest subnormal, largest subnormal, smallest normal, largest, Inf, -Inf, two NaN
EXTREME_F16 = [0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7D01]

# Of formats whose highest code is not the highest number of their bits: three digits, or three sizes with a mark above.
HIGHEST = {"TQ1_0": 2, "IQ1_S": 6, "IQ1_M": 6, "IQ2_XXS": 6, "IQ2_XS": 6, "IQ2_S": 6}


@pytest.mark.parametrize("fmt", WITH_ORACLE, ids=lambda f: f.name)
def test_random_blocks(fmt):
    for seed in range(4):
        t = random_tensor(fmt, seed=seed)
        assert same_bits(dequantize(t), by_oracle(fmt, t.data))


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("fmt", WITH_ORACLE, ids=lambda f: f.name)
def test_blocks_of_one_byte(fmt, byte):
    t = tensor(fmt, np.full((3, 2 * fmt.block_bytes), byte, dtype=np.uint8))
    assert same_bits(dequantize(t), by_oracle(fmt, t.data))


@pytest.mark.parametrize("fmt", WITH_ORACLE, ids=lambda f: f.name)
def test_extreme_scales(fmt):
    halves = np.array([(a, b) for a in EXTREME_F16 for b in EXTREME_F16], dtype="<u2")
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (len(halves), fmt.block_bytes), dtype=np.uint8).view(fmt.dtype)[:, 0]
    floating = [f.name for f in fmt.fields if f.kind in ("f16", "bf16")]
    for column, field in enumerate(floating):
        blocks[field] = halves[:, column : column + 1].view(blocks[field].dtype)
    t = tensor(fmt, blocks.view(np.uint8).reshape(len(halves), fmt.block_bytes))
    assert same_bits(dequantize(t), by_oracle(fmt, t.data))


@pytest.mark.parametrize("fmt", [f for f in WITH_ORACLE if f.fields[0].dtype.itemsize == 1], ids=lambda f: f.name)
def test_every_scale_byte(fmt):
    blocks = np.random.default_rng(2).integers(0, 256, (256, fmt.block_bytes), dtype=np.uint8)
    blocks[:, 0] = np.arange(256)
    assert same_bits(dequantize(tensor(fmt, blocks)), by_oracle(fmt, blocks))


@pytest.mark.parametrize("fmt", WITH_ORACLE, ids=lambda f: f.name)
def test_any_bytes(fmt):
    @settings(max_examples=60, deadline=None)
    @given(st.binary(min_size=fmt.block_bytes, max_size=fmt.block_bytes))
    def check(raw):
        data = np.frombuffer(raw, dtype=np.uint8)[None]
        assert same_bits(dequantize(tensor(fmt, data)), by_oracle(fmt, data))

    check()


def test_q8_1_by_definition():
    t = random_tensor(by_name("Q8_1"), rows=2, k=64, finite=True)
    values = dequantize(t).reshape(-1, 32)
    for block, got in zip(t.data.reshape(-1, 36), values, strict=True):
        d = np.float32(block[:2].view("<f2")[0])
        assert got.tolist() == [float(d * np.float32(code)) for code in block[4:].view(np.int8)]


def test_q8_k_by_definition():
    t = random_tensor(by_name("Q8_K"), rows=2, k=512, finite=True)
    values = dequantize(t).reshape(-1, 256)
    for block, got in zip(t.data.reshape(-1, 292), values, strict=True):
        d = block[:4].view("<f4")[0]
        assert got.tolist() == [float(d * np.float32(code)) for code in block[4:260].view(np.int8)]


@pytest.mark.parametrize("name", ["F64", "I8", "I16", "I32", "I64"])
def test_plain_numbers_are_rounded_to_float32(name):
    fmt = by_name(name)
    dtype = fmt.fields[0].dtype
    values = np.array([[0, 1, -1, 100, -128, 127]], dtype=dtype)
    if name == "F64":
        values = np.array([[0.1, 1e300, -1e-300, np.nan, -0.0, 1 + 2**-30]], dtype=dtype)
    with np.errstate(over="ignore"):
        want = values.astype(np.float32)
    assert same_bits(dequantize(tensor(fmt, values.view(np.uint8))), want)


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.name)
def test_planes_have_the_shapes_and_ranges_of_the_row(fmt):
    t = random_tensor(fmt, rows=6, k=512)
    experts = dataclasses.replace(t, shape=(2, 3, 512), data=t.data.reshape(2, 3, -1))
    p = unpack(experts)
    assert p.q.dtype == np.uint8
    assert p.q.shape == (2, 3, 512)
    assert p.q.max() == HIGHEST.get(fmt.name, (1 << fmt.bits) - 1)
    assert p.d.dtype == np.float32
    assert p.d.shape == (2, 3, 512 // fmt.super)
    assert (p.sc is not None) == (fmt.super > fmt.group)
    assert (p.dmin is not None) == fmt.has_min
    for plane in (p.sc, p.m):
        assert plane is None or plane.shape == (2, 3, 512 // fmt.group)
    if p.sc is not None:
        assert p.sc.dtype == (np.uint8 if fmt.has_min else np.int8)
        step = 2 if fmt.odd_scales else 1
        assert int(p.sc.max()) - int(p.sc.min()) == step * ((1 << fmt.scale_bits) - 1)
        assert not fmt.odd_scales or np.all(p.sc % 2 == 1)
    assert same_bits(decode(p, fmt).reshape(6, 512), dequantize(t))


def _swapped_nibbles(f):
    return unpackers.q4_0({**f, "qs": (f["qs"] >> 4) | (f["qs"] << 4)})


def _swapped_scales(f):
    p = unpackers.q4_k(f)
    return dataclasses.replace(p, sc=p.m, m=p.sc)


def _high_bits_of_another_group(f):
    return unpackers.q6_k({**f, "qh": np.roll(f["qh"], 1, axis=-1)})


def _min_of_wrong_sign(f):
    p = unpackers.q4_1(f)
    return dataclasses.replace(p, dmin=-p.dmin)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Q4_0", {"unpack": _swapped_nibbles}),
        ("Q4_0", {"offset": 7}),
        ("Q4_1", {"unpack": _min_of_wrong_sign}),
        ("Q4_K", {"unpack": _swapped_scales}),
        ("Q6_K", {"unpack": _high_bits_of_another_group}),
        ("IQ4_NL", {"table": tuple(reversed(by_name("IQ4_NL").table))}),
        ("BF16", {"number": by_name("I16").number}),
    ],
)
def test_the_comparison_catches_a_wrong_row(name, change):
    t = random_tensor(by_name(name), rows=1, k=256, finite=True)
    want = by_oracle(t.format, t.data)
    assert same_bits(dequantize(t), want)
    assert not same_bits(dequantize(dataclasses.replace(t, format=dataclasses.replace(t.format, **change))), want)


def test_the_comparison_catches_one_bit():
    want = np.array([[1.0, -0.0, np.nan]], dtype=np.float32)
    assert same_bits(want.copy(), want)
    assert not same_bits(np.array([[np.nextafter(np.float32(1), np.float32(2)), -0.0, np.nan]], np.float32), want)
    assert not same_bits(np.array([[1.0, 0.0, np.nan]], np.float32), want)
    assert not same_bits(np.array([[1.0, -0.0, 0.0]], np.float32), want)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_rows_are_looked_up_without_the_others(fmt):
    t = random_tensor(fmt, rows=9, k=256)
    everything = dequantize(t)
    rows = np.array([[3, 8, 3], [0, 1, 2]])
    assert same_bits(dequantize_rows(t, rows), everything[rows])
    assert dequantize_rows(t, []).shape == (0, 256)


@pytest.mark.parametrize("rows", [[-1], [9], [0, 2**40], [1.0], [True]])
def test_rows_out_of_range(rows):
    t = random_tensor(by_name("Q8_0"), rows=9, k=256)
    with pytest.raises(UsageError, match="rows of QTensor"):
        dequantize_rows(t, rows)


def test_rows_of_something_else_than_a_matrix():
    t = random_tensor(by_name("Q8_0"), rows=9, k=256)
    with pytest.raises(UsageError, match="not a matrix"):
        dequantize_rows(dataclasses.replace(t, shape=(3, 3, 256), data=t.data.reshape(3, 3, -1)), [0])


@pytest.mark.parametrize("shape", [(0, 256), (3, 0), (256,), (1, 2, 1, 256)])
def test_any_number_of_dimensions(shape):
    fmt = by_name("Q5_K")
    data = np.zeros((*shape[:-1], fmt.row_bytes(shape[-1])), dtype=np.uint8)
    t = dataclasses.replace(random_tensor(fmt), shape=shape, data=data)
    assert dequantize(t).shape == unpack(t).q.shape == shape


def test_a_big_tensor_needs_little_memory_beside_the_result():
    t = random_tensor(by_name("Q6_K"), rows=2048, k=4096)
    tracemalloc.start()
    values = dequantize(t)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - values.nbytes < 4 << 20
