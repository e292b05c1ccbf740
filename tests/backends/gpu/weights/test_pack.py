"""The GPU layout: there and back without loss for every format, and bit for bit where it is written down."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.gpu.weights.layout import PlaneLayout, layout_of
from octavo.backends.gpu.weights.pack import pack, unpack
from octavo.bench.cases import WEIGHTS
from octavo.errors import QuantFormatError
from octavo.formats import FORMATS, Planes, QTensor, by_name, decode
from octavo.formats import unpack as planes_of

QUANTIZED = [name for name in WEIGHTS if not by_name(name).is_float]


def random_planes(name: str, n: int, k: int) -> Planes:
    """The planes of random bytes in a format: every code and scale, NaN and Inf too."""
    fmt = by_name(name)
    data = np.random.default_rng(1).integers(0, 256, (n, fmt.row_bytes(k)), dtype=np.uint8)
    return planes_of(QTensor(fmt, (n, k), data))


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_there_and_back(name: str, blocks: int) -> None:
    fmt = by_name(name)
    planes = random_planes(name, 5, blocks * fmt.block)
    packed = pack(planes, fmt)
    back = unpack(packed)
    for part in ("q", "d", "sc", "dmin", "m"):
        before, after = getattr(planes, part), getattr(back, part)
        if before is None:
            assert after is None
        elif part in ("sc", "m"):
            np.testing.assert_array_equal(after.astype(np.int16), before.astype(np.int16))
        elif part in ("d", "dmin"):
            parts = fmt.group // packed.layout.group if fmt.super == fmt.group else 1
            np.testing.assert_array_equal(after, np.repeat(before, parts, axis=1))
        else:
            np.testing.assert_array_equal(after, before)
    assert packed.layout.row_bytes(-(-packed.k // 128) * 128) == sum(a[0].nbytes for a in packed.arrays().values())


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "Q5_0", "IQ4_NL"])
def test_no_more_bytes_than_the_file(name: str) -> None:
    fmt = by_name(name)
    layout = pack(random_planes(name, 1, 1024), fmt).layout
    assert layout.row_bytes(1024) == fmt.row_bytes(1024)


@pytest.mark.parametrize("name", [f.name for f in FORMATS if f.codebook or f.base3 or f.name == "TQ2_0"])
def test_few_bits_take_those_of_their_codes(name: str) -> None:
    """And of scales: half a bit where groups of 16 have a byte each, a quarter for 32, or a float for 64."""
    fmt = by_name(name)
    assert layout_of(fmt, "f16").row_bytes(4096) * 8 / 4096 <= fmt.bits + (0.57 if fmt.group == 16 else 0.32)


@pytest.mark.parametrize("bits", [4, 5, 6, 2, 3])
def test_where_a_code_lies(bits: int) -> None:
    """By the words of `layout`, one code at a time."""
    name = {4: "Q4_K", 5: "Q5_K", 6: "Q6_K", 2: "Q2_K", 3: "Q3_K"}[bits]
    planes = random_planes(name, 1, 256)
    packed = pack(planes, by_name(name))
    for k in range(256):
        tile, inside = divmod(k, 128)
        pair, high = inside % 64, inside // 64
        code, taken = 0, 0
        for b in packed.layout.planes:
            byte = int(packed.codes[b].view(np.uint8)[0, 16 * b * tile + pair % (16 * b)])
            shift = 2 * b * (pair // (16 * b)) + high * b
            code |= ((byte >> shift) & ((1 << b) - 1)) << taken
            taken += b
        assert code == planes.q[0, k] ^ (1 << (bits - 1) if packed.layout.signed else 0)


def test_scales_of_a_pair_are_neighbours() -> None:
    """Q6_K has eight groups of 16 in a tile: group 1 lies beside group 5."""
    planes = random_planes("Q6_K", 2, 512)
    small = pack(planes, by_name("Q6_K")).small
    assert small is not None
    assert planes.sc is not None
    np.testing.assert_array_equal(small[:, 1], planes.sc[:, [1, 5]])


def test_large_groups_become_several() -> None:
    """Groups of 256 with one scale (Q8_K's) are four groups of 64 with the same scale."""
    fmt = by_name("Q8_K")
    planes = random_planes("Q8_K", 3, 512)
    planes = Planes(planes.q, d=np.float32([[1, 2], [3, 4], [5, 0.1]]))
    back = unpack(pack(planes, fmt))
    assert planes.d is not None
    np.testing.assert_array_equal(back.d, np.repeat(planes.d, 4, axis=1))


def test_values_survive() -> None:
    fmt = by_name("Q5_K")
    planes = random_planes("Q5_K", 4, 512)
    finite = Planes(planes.q, np.ones_like(planes.d), planes.sc, np.ones_like(planes.d), planes.m)
    np.testing.assert_array_equal(decode(unpack(pack(finite, fmt)), fmt), decode(finite, fmt))


def test_a_format_without_a_layout() -> None:
    with pytest.raises(QuantFormatError, match="F16: no GPU layout"):
        layout_of(by_name("F16"), "f16")


def test_a_layout_knows_no_names() -> None:
    assert layout_of(by_name("Q4_K"), "f16") == PlaneLayout(4, 32, 256, "f16", True, 6, False, 0, None)
