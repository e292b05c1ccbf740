# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What kernels do with 16 lanes beside arithmetic: rounding to codes, sums within blocks, groups to lanes and back."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.jit.simd.emit import (
    AS_WRITTEN,
    I8,
    I32,
    I64,
    V_F32,
    V_I32,
    call_llvm,
    f32x16,
    fill,
    literal,
    load_at,
    narrow_f16,
    pointer_at,
    store_at,
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


@cache
def to_level(low, high, table):
    """An intrinsic: the level nearest to x, an integer from low to high, or an entry of a table.

    A table ascends, or its first half ascends from 0 and the second is its negative.
    """

    @intrinsic
    def level(ty, x):
        def gen(c, b, s, a):
            if table is None:
                return round_even(b, clamp(b, a[0], fill(V_F32, float(low)), fill(V_F32, float(high))))
            return _nearest(b, a[0], table, table)

        return f32x16(f32x16), gen

    return level


@cache
def to_code(low, high, table):
    """An intrinsic: the code of the level that `to_level` gives, counted from 0."""

    @intrinsic
    def code(ty, x):
        def gen(c, b, s, a):
            if table is None:
                level = round_even(b, clamp(b, a[0], fill(V_F32, float(low)), fill(V_F32, float(high))))
                return b.fadd(level, fill(V_F32, float(-low)), flags=AS_WRITTEN)
            return _nearest(b, a[0], table, range(len(table)))

        return f32x16(f32x16), gen

    return code


def _nearest(b, x, table, results):
    """results[i] for the entry i of the table that is nearest to x; for 0, the first of two."""
    half = len(table) // 2
    if table[half] > table[0]:
        return _steps(b, x, table, results)
    size = b.bitcast(b.and_(b.bitcast(x, V_I32), fill(V_I32, 0x7FFFFFFF)), V_F32)
    positive = _steps(b, size, table[:half], results[:half])
    negative = _steps(b, size, table[:half], results[half:])
    is_zero = b.fcmp_ordered("==", positive, fill(V_F32, float(results[0])))
    return b.select(b.or_(b.fcmp_ordered(">=", x, fill(V_F32, 0.0)), is_zero), positive, negative)


def _steps(b, x, table, results):
    """results[i] for the entry i of an ascending table that is nearest to x: a sum of the steps that x is above."""
    value = fill(V_F32, float(results[0]))
    zero = fill(V_F32, 0.0)
    for (below, above), (first, second) in zip(pairwise(table), pairwise(results), strict=True):
        passed = b.fcmp_ordered(">", x, fill(V_F32, (below + above) / 2))
        value = b.fadd(value, b.select(passed, fill(V_F32, float(second - first)), zero), flags=AS_WRITTEN)
    return value


def _transpose(b, rows):
    """16 vectors of 16: lane j of vector i to lane i of vector j."""
    step = 1
    while step < 16:
        low = ir.Constant(ir.VectorType(I32, 16), [j if not j & step else j - step + 16 for j in range(16)])
        high = ir.Constant(ir.VectorType(I32, 16), [j + step if not j & step else j + 16 for j in range(16)])
        out = list(rows)
        for i in range(16):
            if not i & step:
                out[i] = b.shuffle_vector(rows[i], rows[i + step], low)
                out[i + step] = b.shuffle_vector(rows[i], rows[i + step], high)
        rows, step = out, step * 2
    return rows


@intrinsic(prefer_literal=True)
def load_transposed(ty, to, addresses, values):
    """`values` vectors to `to`: lane j of vector i is the i-th float at the j-th of 16 int64 `addresses`."""
    count = literal(values)

    def gen(c, b, s, a):
        lanes = [b.load(pointer_at(b, a[1], I64, 8 * j)) for j in range(16)]
        for start in range(0, count, 16):
            for i, row in enumerate(_transpose(b, [load_at(b, lane, V_F32, 4 * start) for lane in lanes])):
                store_at(b, a[0], row, 64 * (start + i))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, values), gen


@intrinsic(prefer_literal=True)
def store_codes_transposed(ty, to, codes, values):
    """`values` vectors of integers at `codes` as bytes: the i-th vector's lane j to byte `values` * j + i of `to`."""
    count = literal(values)

    def gen(c, b, s, a):
        for start in range(0, count, 16):
            rows = _transpose(b, [load_at(b, a[1], V_F32, 64 * (start + i)) for i in range(16)])
            for j, row in enumerate(rows):
                store_at(b, a[0], b.trunc(b.fptosi(row, V_I32), ir.VectorType(I8, 16)), count * j + start)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, values), gen


@intrinsic
def store_bytes(ty, to, x):
    """16 integers as 16 bytes; negative ones in two's complement."""

    def gen(c, b, s, a):
        store_at(b, a[0], b.trunc(b.fptosi(a[1], V_I32), ir.VectorType(I8, 16)))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16), gen


@cache
def emit_block(layout):
    """An intrinsic that puts a block's bytes together: see `packing.BlockLayout`."""

    @intrinsic
    def emit(ty, to, source):
        def gen(c, b, s, a):
            cached = {}
            for word in layout.words:
                total = ir.Constant(I32, word.base)
                for piece in word.pieces:
                    if piece.source not in cached:
                        cached[piece.source] = load_at(b, a[1], I32, piece.source)
                    value = b.and_(cached[piece.source], ir.Constant(I32, piece.mask))
                    if piece.left > 0:
                        value = b.shl(value, ir.Constant(I32, piece.left))
                    elif piece.left < 0:
                        value = b.lshr(value, ir.Constant(I32, -piece.left))
                    total = b.xor(total, value)
                store_at(b, a[0], total, word.offset)
            return c.get_dummy_value()

        return types.void(types.intp, types.intp), gen

    return emit


@intrinsic
def copy_bytes(ty, to, source, nbytes):
    """Copy bytes from one place to another."""

    def gen(c, b, s, a):
        pointers = [pointer_at(b, p, I8) for p in a[:2]]
        memcpy = ir.FunctionType(ir.VoidType(), [*(p.type for p in pointers), I64, ir.IntType(1)])
        function = cgutils.get_or_insert_function(b.module, memcpy, "llvm.memcpy.p0.p0.i64")
        b.call(function, [*pointers, a[2], ir.Constant(ir.IntType(1), 0)])
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), gen
