# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Arithmetic on 16 floats."""

from __future__ import annotations

import operator
import struct

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from octavo.jit.simd.emit import (
    AS_WRITTEN,
    F32,
    I8,
    I32,
    V_F32,
    V_I32,
    f32x16,
    fill,
    multiply_add,
    repeat,
    slice_lanes,
    store_at,
)


@intrinsic
def splat(ty, x):
    """A float in all lanes."""
    return f32x16(types.float32), lambda c, b, s, a: repeat(b, a[0])


def _binary(name, **how):
    @intrinsic
    def op(ty, x, y):
        return f32x16(f32x16, f32x16), lambda c, b, s, a: getattr(b, name)(*a, **how)

    return op


add, sub, mul, div = _binary("fadd"), _binary("fsub"), _binary("fmul"), _binary("fdiv")
"""The flags of kernels allow LLVM to reorder these, and to make a division a product."""


def _operator(symbol, name):
    """What + - * / between 16 floats, or these and a number, are."""

    @infer_global(symbol)
    class Typed(AbstractTemplate):
        def generic(self, args, kws):
            fits = f32x16 in args and all(a is f32x16 or isinstance(a, types.Number) for a in args)
            return signature(f32x16, *(a if a is f32x16 else types.float32 for a in args)) if fits else None

    def lower(c, b, s, a):
        return getattr(b, name)(*(repeat(b, x) if t is not f32x16 else x for t, x in zip(s.args, a, strict=True)))

    for sides in ((f32x16, f32x16), (f32x16, types.float32), (types.float32, f32x16)):
        lower_builtin(symbol, *sides)(lower)


for _symbol, _name in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
    _operator(getattr(operator, _symbol), _name)

add_exact, sub_exact, mul_exact, div_exact = (
    _binary(name, flags=AS_WRITTEN) for name in ("fadd", "fsub", "fmul", "fdiv")
)
"""As written: neither reordered nor replaced."""


@intrinsic
def maximum(ty, x, y):
    """The larger of each lane's two."""
    return f32x16(f32x16, f32x16), lambda c, b, s, a: b.select(b.fcmp_ordered(">", a[0], a[1]), a[0], a[1])


@intrinsic
def minimum(ty, x, y):
    """The smaller of each lane's two."""
    return f32x16(f32x16, f32x16), lambda c, b, s, a: b.select(b.fcmp_ordered("<", a[0], a[1]), a[0], a[1])


@intrinsic
def largest_magnitude(ty, x, y):
    """The largest |value| of two vectors; NaN if one is: as integers, NaN is above infinity."""

    def gen(c, b, s, a):
        x, y = (b.and_(b.bitcast(v, V_I32), fill(V_I32, 0x7FFFFFFF)) for v in a)
        value = b.select(b.icmp_signed(">", x, y), x, y)
        while value.type.count > 1:
            half = value.type.count // 2
            x, y = slice_lanes(b, value, 0, half), slice_lanes(b, value, half, half)
            value = b.select(b.icmp_signed(">", x, y), x, y)
        return b.bitcast(b.extract_element(value, ir.Constant(I32, 0)), F32)

    return types.float32(f32x16, f32x16), gen


@intrinsic
def fma(ty, x, y, z):
    """x * y + z."""
    return f32x16(f32x16, f32x16, f32x16), lambda c, b, s, a: multiply_add(b, *a)


def _fold(name, combine):
    @intrinsic
    def fold(ty, x):
        def gen(c, b, s, a):
            value = a[0]
            while value.type.count > 1:
                half = value.type.count // 2
                value = combine(b, slice_lanes(b, value, 0, half), slice_lanes(b, value, half, half))
            return b.extract_element(value, ir.Constant(I32, 0))

        return types.float32(f32x16), gen

    fold.__name__ = name
    return fold


sum_lanes = _fold("sum_lanes", lambda b, x, y: b.fadd(x, y))

max_lanes = _fold("max_lanes", lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


@intrinsic
def exp(ty, x):
    """e^x to about 2 units in the last place; 0 below -87.3, no more than e^88.3, and NaN for NaN."""

    def gen(c, b, s, a):
        x = a[0]
        below = b.select(b.fcmp_unordered("uno", x, x), x, fill(V_F32, 0.0))
        low, high = fill(V_F32, -87.336544), fill(V_F32, 88.3)
        x = b.select(b.fcmp_ordered(">", x, high), high, x)
        keep = b.fcmp_ordered(">", x, low)
        x = b.select(keep, x, low)
        shifter = fill(V_F32, 12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
        shifted = multiply_add(b, x, fill(V_F32, 1.44269504088896341), shifter)
        n = b.fsub(shifted, shifter, flags=AS_WRITTEN)
        r = multiply_add(b, n, fill(V_F32, -0.693359375), x)  # ln 2 in two parts (Cody and Waite)
        r = multiply_add(b, n, fill(V_F32, 2.12194440e-4), r)
        p = fill(V_F32, 1 / 5040)
        for factorial in (720, 120, 24, 6, 2, 1, 1):
            p = multiply_add(b, p, r, fill(V_F32, _round32(1 / factorial)))
        exponent = b.shl(b.bitcast(shifted, V_I32), fill(V_I32, 23))
        value = b.bitcast(b.add(b.bitcast(p, V_I32), exponent), V_F32)
        return b.select(keep, value, below)

    return f32x16(f32x16), gen


@intrinsic
def exp_or_inf(ty, x, power):
    """`power`, which is `exp` of x; Inf where that is more than a float holds."""

    def gen(c, b, s, a):
        return b.select(b.fcmp_ordered(">", a[0], fill(V_F32, 88.72284)), fill(V_F32, float("inf")), a[1])

    return f32x16(f32x16, f32x16), gen


@intrinsic
def quantize16(ty, address, values):
    """Round 16 floats to integers (nearest, ties to even), keep them as s8 at `address`; their sum as a float."""

    def gen(c, b, s, a):
        shifted = b.bitcast(b.fadd(a[1], fill(V_F32, 12582912.0)), V_I32)  # 1.5 * 2^23: units in the low bits
        whole = b.sub(shifted, fill(V_I32, 0x4B400000))
        store_at(b, a[0], b.trunc(whole, ir.VectorType(I8, 16)))
        total = whole
        while total.type.count > 1:
            half = total.type.count // 2
            total = b.add(slice_lanes(b, total, 0, half), slice_lanes(b, total, half, half))
        return b.sitofp(b.extract_element(total, ir.Constant(I32, 0)), F32)

    return types.float32(types.intp, f32x16), gen


@intrinsic
def round16(ty, address, values, low, high, zero):
    """16 floats, no less than `low` and no more than `high`, rounded to integers (nearest, ties to even), plus `zero`:
    as s8 at `address`."""

    def gen(c, b, s, a):
        low, high, value = repeat(b, a[2]), repeat(b, a[3]), a[1]
        value = b.select(b.fcmp_ordered("<", value, low), low, value)
        value = b.select(b.fcmp_ordered(">", value, high), high, value)
        shifted = b.fadd(value, fill(V_F32, 12582912.0), flags=AS_WRITTEN)  # 1.5 * 2^23: units in the low bits
        whole = b.add(b.bitcast(shifted, V_I32), repeat(b, b.trunc(a[4], I32)))  # low bytes: the constant's is 0
        store_at(b, a[0], b.trunc(whole, ir.VectorType(I8, 16)))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16, types.float32, types.float32, types.intp), gen


@intrinsic
def round_e4m3(ty, values):
    """16 floats from -448 to 448 rounded to the nearest e4m3 numbers, ties to even; NaN stays.

    A mantissa is rounded in its place, which may carry into the exponent; below 2^-6 steps are equal.
    """

    def gen(c, b, s, a):
        bits = b.bitcast(a[0], V_I32)
        magnitude = b.and_(bits, fill(V_I32, 0x7FFFFFFF))
        odd = b.and_(b.lshr(bits, fill(V_I32, 20)), fill(V_I32, 1))
        normal = b.and_(b.add(b.add(bits, fill(V_I32, 0x7FFFF)), odd), fill(V_I32, -0x100000))
        shifter = fill(V_F32, 12582912.0 / 512)  # 1.5 * 2^23 steps of 2^-9: adding it rounds to a step
        shifted = b.fadd(b.bitcast(magnitude, V_F32), shifter, flags=AS_WRITTEN)
        steps = b.bitcast(b.fsub(shifted, shifter, flags=AS_WRITTEN), V_I32)
        below = b.or_(steps, b.and_(bits, fill(V_I32, -0x80000000)))
        small = b.icmp_unsigned("<", magnitude, fill(V_I32, (127 - 6) << 23))
        return b.bitcast(b.select(small, below, normal), V_F32)

    return f32x16(f32x16), gen


def _round32(x):
    return struct.unpack("f", struct.pack("f", x))[0]
