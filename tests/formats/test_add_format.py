"""The recipe "add a format" of CONTRIBUTING.md, followed step by step with a format that does not exist.

X3_A: 64 values in two groups of 32, three-bit codes, an f16 scale and an f16 value of code 0 for each group.
"""

import numpy as np
import pytest
from format_oracle import same_bits

from octavo.errors import QuantFormatError
from octavo.formats import BlockFormat, Planes, QTensor, decode, dequantize, dequantize_rows, pack, quantize_reference
from octavo.formats import unpack as planes_of
from octavo.formats.encoders import affine
from octavo.formats.packers import by_block, join_bits
from octavo.formats.spec import f16, u8
from octavo.formats.unpackers import flat, split_bits


def unpack_x3_a(f):
    """Step 1: packed fields, each [..., blocks, count], to planes. Low two bits in `ql`, the third in `qh`."""
    q = split_bits(f["ql"], run=16, bits=2) | (split_bits(f["qh"], run=8, bits=1) << 2)
    return Planes(flat(q), d=flat(f["d"]).astype(np.float32), dmin=-flat(f["m"]).astype(np.float32))


def pack_x3_a(p):
    """Step 3, where something is to write the format: the way back."""
    q = by_block(p.q, 64)
    fields = {"ql": join_bits(q, run=16, bits=2), "qh": join_bits(q >> 2, run=8, bits=1)}
    return {**fields, "d": by_block(p.d, 2), "m": by_block(-p.dmin, 2)}


# Step 2: the row. In octavo it stands in FORMATS, with its GGUF id if it has one and a note for the documentation.
X3_A = BlockFormat("X3_A", block=64, bits=3, group=32, super=32, has_min=True,
                   fields=(f16("d", 2), f16("m", 2), u8("ql", 16), u8("qh", 8)), unpack=unpack_x3_a,
                   pack=pack_x3_a, encode=affine)


def by_definition(row):
    """Step 4: an oracle, value by value, that shares no code with the unpack function."""
    values = []
    for block in row.reshape(-1, 32):
        d, m = block[0:4].view("<f2").astype(np.float32), block[4:8].view("<f2").astype(np.float32)
        for k in range(64):
            low = int(block[8 + k % 16]) >> (2 * (k // 16)) & 3
            high = int(block[24 + k % 8]) >> (k // 8) & 1
            values.append(d[k // 32] * np.float32(low + 4 * high) + m[k // 32])
    return np.array(values, np.float32)


@pytest.fixture
def t():
    data = np.random.default_rng(0).integers(0, 256, (5, 3 * 32), dtype=np.uint8)
    data.reshape(-1, 32)[:, 1:8:2] &= 0xBB  # finite scales
    return QTensor(X3_A, (5, 192), data)


def test_the_row_knows_its_size():
    assert X3_A.block_bytes == 32
    assert X3_A.bits_per_weight == 4
    assert X3_A.row_bytes(192) == 96
    with pytest.raises(QuantFormatError, match="multiples of 64"):
        QTensor(X3_A, (1, 100), np.zeros((1, 50), np.uint8))


def test_it_decodes_as_defined(t):
    want = np.stack([by_definition(row) for row in t.data])
    assert same_bits(dequantize(t), want)
    assert same_bits(decode(planes_of(t), X3_A), want)
    assert same_bits(dequantize_rows(t, [4, 0]), want[[4, 0]])


def test_it_can_be_written(t):
    assert np.array_equal(pack(planes_of(t), X3_A), t.data)
    x = np.random.default_rng(1).normal(size=(4, 128)).astype(np.float32)
    error = dequantize(quantize_reference(x, X3_A)) - x
    step = np.ptp(x.reshape(4, 4, 32), axis=-1) / 7
    assert np.all(np.abs(error).reshape(4, 4, 32) <= 0.51 * step[..., None])
