"""Packed fields to planes, one function for each way of packing.

A function takes the fields of a run of blocks, each an array [..., blocks, count], and returns planes whose last axis
runs over all the values of the blocks. Nearly every packing here is the same move, `split_bits`.
"""

from __future__ import annotations

import numpy as np

from octavo.formats.scalars import e8m0_half_to_f32, ue4m3_half_to_f32
from octavo.formats.spec import F32, U8, AnyArray, Fields, Planes


def flat(a: AnyArray) -> AnyArray:
    """[..., blocks, n] -> [..., blocks * n]."""
    return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1])


def split_bits(packed: AnyArray, *, run: int, bits: int) -> U8:
    """Codes of 1, 2 or 4 bits out of bytes [..., n] -> [..., n * 8 / bits].

    Bytes are taken in runs of `run`: the lowest `bits` of each byte of a run are its first `run` codes, the next bits
    the next `run` codes, and so on up to the highest.
    """
    n = packed.shape[-1]
    runs = packed.reshape(*packed.shape[:-1], n // run, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], n * 8 // bits)


def _bytes(a: AnyArray) -> U8:
    return a.view(np.uint8)


def scale(a: AnyArray) -> F32:
    """A field of floating scales [..., blocks, n] as float32 [..., blocks * n]."""
    with np.errstate(invalid="ignore"):  # a signalling NaN in a damaged file
        return flat(a).astype(np.float32)


def plain(f: Fields) -> Planes:
    return Planes(flat(f["x"]))


def q4_0(f: Fields) -> Planes:
    return Planes(flat(split_bits(f["qs"], run=16, bits=4)), d=scale(f["d"]))


def q4_1(f: Fields) -> Planes:
    return Planes(flat(split_bits(f["qs"], run=16, bits=4)), d=scale(f["d"]), dmin=-scale(f["m"]))


def _q5(f: Fields) -> U8:
    """Low nibbles as in Q4_0; bit k of the four bytes `qh`, read as one little-endian word, is the fifth of code k."""
    q = split_bits(f["qs"], run=16, bits=4)
    q |= split_bits(f["qh"], run=1, bits=1) << 4
    return flat(q)


def q5_0(f: Fields) -> Planes:
    return Planes(_q5(f), d=scale(f["d"]))


def q5_1(f: Fields) -> Planes:
    return Planes(_q5(f), d=scale(f["d"]), dmin=-scale(f["m"]))


def signed_bytes(f: Fields) -> Planes:
    """Signed bytes -128..127 become unsigned codes 0..255 with offset 128."""
    return Planes(flat(_bytes(f["qs"]) ^ np.uint8(0x80)), d=scale(f["d"]))


def q2_k(f: Fields) -> Planes:
    scales = _bytes(flat(f["scales"]))
    return Planes(flat(split_bits(f["qs"], run=32, bits=2)),
                  d=scale(f["d"]), sc=scales & 15, dmin=scale(f["dmin"]), m=scales >> np.uint8(4))


def q3_k(f: Fields) -> Planes:
    q = split_bits(f["qs"], run=32, bits=2)
    q |= split_bits(f["hmask"], run=32, bits=1) << 2
    sc = split_bits(f["scales"][..., :8], run=8, bits=4)
    sc |= split_bits(f["scales"][..., 8:], run=4, bits=2) << 4
    return Planes(flat(q), d=scale(f["d"]), sc=flat(sc).view(np.int8) - np.int8(32))


def _scales_and_mins(packed: U8) -> tuple[U8, U8]:
    """The 12 bytes of Q4_K and Q5_K [..., 12] as 8 six-bit scales and 8 six-bit minima [..., 8].

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in their low six bits; bytes 8-11 hold the low nibbles of scales 4-7
    (low) and minima 4-7 (high), whose upper two bits are the top of bytes 0-3 and 4-7.
    """
    a, b, c = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    sc = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], axis=-1)
    m = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], axis=-1)
    return sc, m


def _k_with_min(f: Fields, q: U8) -> Planes:
    sc, m = _scales_and_mins(f["scales"])
    return Planes(flat(q), d=scale(f["d"]), sc=flat(sc), dmin=scale(f["dmin"]), m=flat(m))


def q4_k(f: Fields) -> Planes:
    return _k_with_min(f, split_bits(f["qs"], run=32, bits=4))


def q5_k(f: Fields) -> Planes:
    q = split_bits(f["qs"], run=32, bits=4)
    q |= split_bits(f["qh"], run=32, bits=1) << 4
    return _k_with_min(f, q)


def q6_k(f: Fields) -> Planes:
    q = split_bits(f["ql"], run=64, bits=4)
    q |= split_bits(f["qh"], run=32, bits=2) << 4
    return Planes(flat(q), d=scale(f["d"]), sc=flat(f["scales"]))


def iq4_xs(f: Fields) -> Planes:
    sc = split_bits(f["scales_l"], run=1, bits=4)
    sc |= split_bits(_bytes(f["scales_h"]), run=1, bits=2) << 4
    q = split_bits(f["qs"], run=16, bits=4)
    return Planes(flat(q), d=scale(f["d"]), sc=flat(sc).view(np.int8) - np.int8(32))


def mxfp4(f: Fields) -> Planes:
    return Planes(flat(split_bits(f["qs"], run=16, bits=4)), d=e8m0_half_to_f32(flat(f["d"])))


def nvfp4(f: Fields) -> Planes:
    return Planes(flat(split_bits(f["qs"], run=8, bits=4)), d=ue4m3_half_to_f32(flat(f["d"])))


def tq2_0(f: Fields) -> Planes:
    return Planes(flat(split_bits(f["qs"], run=32, bits=2)), d=scale(f["d"]))


TQ1_RUNS = (("qs", 0, 32, 5), ("qs", 32, 48, 5), ("qh", 0, 4, 4))
"""Runs of bytes that hold trits: field, first and last byte, and trits of a byte."""


def tq1_0(f: Fields) -> Planes:
    """A byte of a run is ceil(256 / 243 n), so the highest trit of n is the high byte of 3 times it; and so on."""
    q = []
    for field, first, end, trits in TQ1_RUNS:
        left = f[field][..., first:end].copy()
        for _ in range(trits):
            q.append((left >= 86).view(np.uint8) + (left >= 171).view(np.uint8))  # 3 * 86 is above 256, 3 * 171 512
            left *= np.uint8(3)  # the trits above are lost in the overflow
    return Planes(flat(np.concatenate(q, axis=-1)), d=scale(f["d"]))
