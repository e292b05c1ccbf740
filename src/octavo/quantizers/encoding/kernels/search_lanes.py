# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Intrinsics on vectors whose 16 lanes are 16 groups of values; see `octavo.jit.simd` for the vectors.

Every operation is done as it is written, so kernels use them with `add_exact` and the like. Reordered sums, which the
flags of kernels allow, would undo the addition and subtraction that round to an integer, on some CPUs, not on others.
"""

from __future__ import annotations

from llvmlite import ir
from numba.extending import intrinsic

from octavo.jit.simd.emit import (
    AS_WRITTEN,
    I32,
    V_F32,
    V_I32,
    call_llvm,
    f32x16,
    fill,
    literal,
    narrow_f16,
    widen_f16,
)

SHIFTER = 12582912.0
"""1.5 * 2^23: adding it and taking it away rounds to an integer."""


def round_even(b, x):
    return b.fsub(b.fadd(x, fill(V_F32, SHIFTER), flags=AS_WRITTEN), fill(V_F32, SHIFTER), flags=AS_WRITTEN)


def clamp(b, x, low, high):
    x = b.select(b.fcmp_ordered(">", x, low), x, low)
    return b.select(b.fcmp_ordered("<", x, high), x, high)


@intrinsic
def minimum(ty, x, y):
    """The smaller of each lane's two."""
    return f32x16(f32x16, f32x16), lambda c, b, s, a: b.select(b.fcmp_ordered("<", a[0], a[1]), a[0], a[1])


@intrinsic
def where_less(ty, x, y, yes, no):
    """`yes` where x < y, else `no`."""
    signature = f32x16(f32x16, f32x16, f32x16, f32x16)
    return signature, lambda c, b, s, a: b.select(b.fcmp_ordered("<", a[0], a[1]), a[2], a[3])


@intrinsic
def magnitude(ty, x):
    """|x|."""

    def gen(c, b, s, a):
        return b.bitcast(b.and_(b.bitcast(a[0], V_I32), fill(V_I32, 0x7FFFFFFF)), V_F32)

    return f32x16(f32x16), gen


@intrinsic
def larger_magnitude(ty, x, y):
    """The larger of each lane's two magnitudes; NaN if one is: as integers, NaN is above infinity."""

    def gen(c, b, s, a):
        x, y = (b.and_(b.bitcast(v, V_I32), fill(V_I32, 0x7FFFFFFF)) for v in a)
        return b.bitcast(b.select(b.icmp_signed(">", x, y), x, y), V_F32)

    return f32x16(f32x16, f32x16), gen


@intrinsic
def square_root(ty, x):
    return f32x16(f32x16), lambda c, b, s, a: call_llvm(b, "llvm.sqrt.v16f32", V_F32, a[0])


@intrinsic
def clamp_round(ty, x, low, high):
    """The integer from low to high that is nearest to x; ties to even."""
    return f32x16(f32x16, f32x16, f32x16), lambda c, b, s, a: round_even(b, clamp(b, *a))


@intrinsic
def as_half(ty, x):
    """x as it is read back from an f16; what is neither 0 nor as large as the smallest f16 becomes that."""

    def gen(c, b, s, a):
        value = widen_f16(b, narrow_f16(b, a[0]))
        bits = b.bitcast(a[0], V_I32)
        sign = b.and_(bits, fill(V_I32, 0x80000000))
        least = b.bitcast(b.or_(sign, fill(V_I32, (127 - 24) << 23)), V_F32)
        lost = b.and_(b.fcmp_ordered("==", value, fill(V_F32, 0.0)), b.fcmp_ordered("!=", a[0], fill(V_F32, 0.0)))
        return b.select(lost, least, value)

    return f32x16(f32x16), gen


@intrinsic
def exponent(ty, x):
    """n of a power of two x = 2^n."""

    def gen(c, b, s, a):
        return b.sitofp(b.sub(b.lshr(b.bitcast(a[0], V_I32), fill(V_I32, 23)), fill(V_I32, 127)), V_F32)

    return f32x16(f32x16), gen


@intrinsic
def two_to(ty, n):
    """2^n for an integer n from -126 to 127."""

    def gen(c, b, s, a):
        return b.bitcast(b.shl(b.add(b.fptosi(a[0], V_I32), fill(V_I32, 127)), fill(V_I32, 23)), V_F32)

    return f32x16(f32x16), gen


@intrinsic
def power_above(ty, x):
    """2^n with 1 <= x * 2^n < 2, for x > 0 (2^127 for smaller ones than that reaches)."""

    def gen(c, b, s, a):
        exponent = b.lshr(b.bitcast(a[0], V_I32), fill(V_I32, 23))
        most = fill(V_I32, 253)
        exponent = b.select(b.icmp_signed("<", exponent, most), exponent, most)
        return b.bitcast(b.shl(b.sub(fill(V_I32, 254), exponent), fill(V_I32, 23)), V_F32)

    return f32x16(f32x16), gen


def _within(combine):
    @intrinsic(prefer_literal=True)
    def within(ty, x, lanes):
        count = literal(lanes)

        def gen(c, b, s, a):
            value, step = a[0], 1
            while step < count:
                order = ir.Constant(ir.VectorType(I32, 16), [i ^ step for i in range(16)])
                value = combine(b, value, b.shuffle_vector(value, value, order))
                step *= 2
            return value

        return f32x16(f32x16, lanes), gen

    return within


sum_within = _within(lambda b, x, y: b.fadd(x, y, flags=AS_WRITTEN))
"""In each lane the sum over its run of `lanes` lanes (1, 2, 4, 8 or 16)."""

max_within = _within(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))

min_within = _within(lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))
