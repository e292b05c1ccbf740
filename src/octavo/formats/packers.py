"""Planes to packed fields: the inverse of each function of `unpackers`.

A function takes planes whose last axis runs over whole blocks and returns the fields, each [..., blocks, count].
"""

from __future__ import annotations

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.scalars import f32_to_e8m0_half, f32_to_ue4m3_half
from octavo.formats.spec import F32, U8, AnyArray, Fields, Planes
from octavo.formats.unpackers import TQ1_RUNS


def by_block(a: AnyArray | None, count: int) -> AnyArray:
    """[..., blocks * count] -> [..., blocks, count]."""
    assert a is not None
    return a.reshape(*a.shape[:-1], a.shape[-1] // count, count)


def join_bits(codes: AnyArray, *, run: int, bits: int) -> U8:
    """The inverse of `split_bits`: codes [..., n] to bytes [..., n * bits / 8]; bits above `bits` are dropped."""
    n, each = codes.shape[-1], 8 // bits
    runs = (codes & np.uint8((1 << bits) - 1)).reshape(*codes.shape[:-1], n // (each * run), each, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    packed: U8 = np.bitwise_or.reduce(runs << shifts, axis=-2)
    return packed.reshape(*codes.shape[:-1], n // each)


def half_floats(scale: F32 | None, count: int = 1) -> AnyArray:
    """A floating plane as half floats. Raises QuantFormatError where one is beyond their range."""
    assert scale is not None
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    if not np.isfinite(half).all():
        worst = scale[~np.isfinite(half)][0]
        raise QuantFormatError(f"a block needs a scale or minimum of {worst:g} (allowed in f16: up to 65504)")
    return by_block(half, count)


def plain(p: Planes) -> Fields:
    return {"x": by_block(p.q, 1)}


def q4_0(p: Planes) -> Fields:
    return {"d": half_floats(p.d), "qs": join_bits(by_block(p.q, 32), run=16, bits=4)}


def q4_1(p: Planes) -> Fields:
    assert p.dmin is not None
    return {**q4_0(p), "m": half_floats(-p.dmin)}


def q5_0(p: Planes) -> Fields:
    return {**q4_0(p), "qh": join_bits(by_block(p.q, 32) >> 4, run=1, bits=1)}


def q5_1(p: Planes) -> Fields:
    return {**q4_1(p), **q5_0(p)}


def _signed(p: Planes, block: int) -> AnyArray:
    return by_block((p.q ^ np.uint8(0x80)).view(np.int8), block)


def q8_0(p: Planes) -> Fields:
    return {"d": half_floats(p.d), "qs": _signed(p, 32)}


def q8_1(p: Planes) -> Fields:
    qs = _signed(p, 32)
    total = qs.sum(axis=-1, dtype=np.int32).astype(np.float32)
    return {"d": half_floats(p.d), "s": half_floats(total * p.d), "qs": qs}


def q8_k(p: Planes) -> Fields:
    qs = _signed(p, 256)
    bsums = qs.reshape(*qs.shape[:-1], 16, 16).sum(axis=-1, dtype=np.int16)
    return {"d": by_block(p.d, 1), "qs": qs, "bsums": bsums}


def q2_k(p: Planes) -> Fields:
    scales = by_block(p.sc, 16) | (by_block(p.m, 16) << 4)
    qs = join_bits(by_block(p.q, 256), run=32, bits=2)
    return {"scales": scales, "qs": qs, "d": half_floats(p.d), "dmin": half_floats(p.dmin)}


def q3_k(p: Planes) -> Fields:
    q, sc = by_block(p.q, 256), (by_block(p.sc, 16) + np.int8(32)).view(np.uint8)
    scales = [join_bits(sc, run=8, bits=4), join_bits(sc >> 4, run=4, bits=2)]
    return {
        "hmask": join_bits(q >> 2, run=32, bits=1),
        "qs": join_bits(q, run=32, bits=2),
        "scales": np.concatenate(scales, axis=-1),
        "d": half_floats(p.d),
    }


def _scales_and_mins(p: Planes) -> U8:
    """8 six-bit scales and 8 six-bit minima as the 12 bytes of Q4_K and Q5_K."""
    sc, m = by_block(p.sc, 8), by_block(p.m, 8)
    a = sc[..., :4] | ((sc[..., 4:] >> 4) << 6)
    b = m[..., :4] | ((m[..., 4:] >> 4) << 6)
    c = (sc[..., 4:] & 15) | ((m[..., 4:] & 15) << 4)
    return np.concatenate([a, b, c], axis=-1)


def q4_k(p: Planes) -> Fields:
    qs = join_bits(by_block(p.q, 256), run=32, bits=4)
    return {"d": half_floats(p.d), "dmin": half_floats(p.dmin), "scales": _scales_and_mins(p), "qs": qs}


def q5_k(p: Planes) -> Fields:
    return {**q4_k(p), "qh": join_bits(by_block(p.q, 256) >> 4, run=32, bits=1)}


def q6_k(p: Planes) -> Fields:
    q = by_block(p.q, 256)
    return {
        "ql": join_bits(q, run=64, bits=4),
        "qh": join_bits(q >> 4, run=32, bits=2),
        "scales": by_block(p.sc, 16),
        "d": half_floats(p.d),
    }


def iq4_xs(p: Planes) -> Fields:
    sc = (by_block(p.sc, 8) + np.int8(32)).view(np.uint8)
    return {
        "d": half_floats(p.d),
        "scales_h": join_bits(sc >> 4, run=1, bits=2).view("<u2"),
        "scales_l": join_bits(sc, run=1, bits=4),
        "qs": join_bits(by_block(p.q, 256), run=16, bits=4),
    }


def mxfp4(p: Planes) -> Fields:
    assert p.d is not None
    qs = join_bits(by_block(p.q, 32), run=16, bits=4)
    return {"d": by_block(f32_to_e8m0_half(p.d), 1), "qs": qs}


def nvfp4(p: Planes) -> Fields:
    assert p.d is not None
    qs = join_bits(by_block(p.q, 64), run=8, bits=4)
    return {"d": by_block(f32_to_ue4m3_half(p.d), 4), "qs": qs}


def tq2_0(p: Planes) -> Fields:
    return {"d": half_floats(p.d), "qs": join_bits(by_block(p.q, 256), run=32, bits=2)}


def tq1_0(p: Planes) -> Fields:
    q, taken = by_block(p.q, 256), 0
    fields: dict[str, list[AnyArray]] = {"qs": [], "qh": []}
    for field, first, end, trits in TQ1_RUNS:
        run = q[..., taken : taken + (end - first) * trits]
        run = run.reshape(*q.shape[:-1], trits, end - first)
        taken += (end - first) * trits
        powers = (3 ** np.arange(4, 4 - trits, -1))[:, None]
        number: AnyArray = np.sum(run * powers, axis=-2)  # the first trit is the highest of five
        fields[field].append((number * 256 + 242) // 243)
    joined = {name: np.concatenate(parts, axis=-1).astype(np.uint8) for name, parts in fields.items()}
    return {"d": half_floats(p.d), **joined}
