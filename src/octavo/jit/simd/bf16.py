# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""bfloat16 as matrix tiles take it: pairs of consecutive k side by side, of 16 rows; and rows of activations."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.simd.emit import (
    I16,
    I32,
    V_F32,
    V_I32,
    V_U8,
    f32x16,
    fill,
    join_lanes,
    literal,
    load_at,
    multiply_add,
    store_at,
    to_float,
)

UPPER = -0x10000
"""The half of a float32 that is a bfloat16."""


def pair(b, even, odd):
    """16 floats of each of two k, cut to bfloat16: <16 x i32>."""
    low, high = (b.bitcast(v, V_I32) for v in (even, odd))
    return b.or_(b.lshr(low, fill(V_I32, 16)), b.and_(high, fill(V_I32, UPPER)))


def cut(b, value):
    """16 floats cut to bfloat16."""
    return b.bitcast(b.and_(b.bitcast(value, V_I32), fill(V_I32, UPPER)), V_F32)


def raised(b, value):
    """Floats of which the upper halves are rounded to nearest, ties away from 0, once they are cut. NaN must have a
    mantissa that is not all ones."""
    return b.bitcast(b.add(b.bitcast(value, V_I32), fill(V_I32, 0x8000)), V_F32)


@intrinsic
def store_bf16_pairs(ty, address, even, odd):
    """16 floats of k and of k + 1 as 16 pairs of bfloat16, cut off: exact for what is a bfloat16."""

    def gen(c, b, s, a):
        store_at(b, a[0], pair(b, a[1], a[2]))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16, f32x16), gen


@intrinsic
def cut_bf16(ty, values):
    """16 floats cut to bfloat16: what is left of one that is a float16 is a bfloat16 too."""
    return f32x16(f32x16), lambda c, b, s, a: cut(b, a[0])


@intrinsic
def raise_bf16(ty, values):
    """16 floats that `store_bf16_pairs` rounds to nearest. NaN must not have a mantissa of ones; see `plain_nan`."""
    return f32x16(f32x16), lambda c, b, s, a: raised(b, a[0])


@intrinsic
def plain_nan(ty, values):
    """16 floats, and where one is NaN the usual one."""

    def gen(c, b, s, a):
        bits = b.bitcast(a[0], V_I32)
        return b.bitcast(b.select(_is_nan(b, bits), fill(V_I32, 0x7FC00000), bits), V_F32)

    return f32x16(f32x16), gen


def _rounded(b, value):
    """<16 x float> -> <16 x i32>: bfloat16 in the low halves, to nearest, ties to even; NaN is the usual one."""
    bits = b.bitcast(value, V_I32)
    odd = b.and_(b.lshr(bits, fill(V_I32, 16)), fill(V_I32, 1))
    upper = b.lshr(b.add(bits, b.add(odd, fill(V_I32, 0x7FFF))), fill(V_I32, 16))
    return b.select(_is_nan(b, bits), fill(V_I32, 0x7FC0), upper)


def _is_nan(b, bits):
    return b.icmp_unsigned(">", b.and_(bits, fill(V_I32, 0x7FFFFFFF)), fill(V_I32, 0x7F800000))


@intrinsic
def store_bf16x32(ty, address, low, high):
    """Two times 16 floats as bfloat16 (nearest, ties to even), one after the other."""

    def gen(c, b, s, a):
        halves = [b.trunc(_rounded(b, value), ir.VectorType(I16, 16)) for value in a[1:]]
        store_at(b, a[0], join_lanes(b, halves))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16, f32x16), gen


@intrinsic
def store_bf16x32_parts(ty, address, rest, low, high):
    """Two times 16 floats cut to bfloat16, one after the other, and what that leaves, cut too, at `rest`."""

    def gen(c, b, s, a):
        upper = ir.Constant(ir.VectorType(I32, 32), list(range(1, 64, 2)))
        lower = [b.fsub(value, cut(b, value)) for value in a[2:]]
        for place, pair_of in zip(a[:2], (a[2:], lower), strict=True):
            words = [b.bitcast(value, ir.VectorType(I16, 32)) for value in pair_of]
            store_at(b, place, b.shuffle_vector(*words, upper))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, f32x16, f32x16), gen


@intrinsic(prefer_literal=True)
def store_code_pairs(ty, address, codes, scale, bias, signed):
    """code * scale + bias of 16 rows x 4 k of bytes at `codes`, as two vectors of pairs of bfloat16, rounded."""
    below = literal(signed)

    def gen(c, b, s, a):
        words = b.bitcast(load_at(b, a[1], V_U8), V_I32)
        values = []
        for i in range(4):
            if below:
                code = b.ashr(b.shl(words, fill(V_I32, 24 - 8 * i)), fill(V_I32, 24))
            else:
                code = b.and_(b.lshr(words, fill(V_I32, 8 * i)), fill(V_I32, 255))
            values.append(raised(b, multiply_add(b, to_float(b, code), a[2], a[3])))
        for i in (0, 1):
            store_at(b, a[0], pair(b, *values[2 * i : 2 * i + 2]), 64 * i)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, f32x16, f32x16, signed), gen
