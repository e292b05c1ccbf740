# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Integer sums of products of whole rows: weights in panels of 16 rows, or row by row, and 64 values of K at a time.

A byte of a weight is kept as itself plus an offset, since dot products take one factor unsigned: 128 for 8 bits and for
4 bits with scales of groups, 8 for plain 4 bits. Nothing here takes the offset off.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host_cpu
from octavo.jit.simd.codes import shift, shuffle
from octavo.jit.simd.dots import FEW, dot4
from octavo.jit.simd.emit import (
    F16,
    F32,
    I8,
    I32,
    I64,
    V_I32,
    V_U8,
    Block,
    f32x16,
    fill,
    i32x16,
    i64,
    literal,
    load_at,
    repeat,
    slice_lanes,
    store_at,
    to_float,
    widen_f16,
)

INT8, INT4, INT4_GROUPS = 0, 1, 2
"""Kinds of weights: bytes; 4 bits as `ops.w4a8` packs them; the same with an f16 scale for each 128 of them."""

OFFSETS = {INT8: 128, INT4: 8, INT4_GROUPS: 128}
"""What is added to a weight to make it a byte without sign."""

STEP = 64
"""Bytes of a row that are read at a time: 64 values of 8 bits, 128 of 4."""


@intrinsic(prefer_literal=True)
def zero_sums(ty, n):
    """n vectors of 16 integers, all 0; `n` is a constant."""
    block = Block(i32x16, literal(n))
    return block(n), lambda c, b, s, a: ir.Constant(block.llvm, None)


@intrinsic(prefer_literal=True)
def load_sums(ty, address, n):
    """n vectors of 16 integers, one after the other."""
    block = Block(i32x16, literal(n))

    def gen(c, b, s, a):
        return block.of(b, (load_at(b, a[0], V_I32, 64 * t) for t in range(block.n)))

    return block(types.intp, n), gen


@intrinsic
def store_row_sums(ty, address, block):
    """The sum of the lanes of vector t, an int32, to address + 64 t."""

    def gen(c, b, s, a):
        for t in range(s.args[1].n):
            store_at(b, a[0], _sum_of_lanes(b, b.extract_value(a[1], t)), 64 * t)
        return c.get_dummy_value()

    return types.void(types.intp, block), gen


def _sum_of_lanes(b, vector):
    while vector.type.count > 1:
        half = vector.type.count // 2
        vector = b.add(slice_lanes(b, vector, 0, half), slice_lanes(b, vector, half, half))
    return b.extract_element(vector, ir.Constant(I32, 0))


@intrinsic
def dot_panel(ty, sums, panel, x):
    """sums[t][r] += the dot product of row r and token t, for 64 values: 16 x 4 of 16 rows, n x 64 bytes."""

    def gen(c, b, s, a):
        acc = [b.extract_value(a[0], t) for t in range(s.args[0].n)]
        for j in range(16):
            w = load_at(b, a[1], V_U8, 64 * j)
            for t in range(len(acc)):
                four = b.bitcast(repeat(b, load_at(b, a[2], I32, 64 * t + 4 * j)), V_U8)
                acc[t] = dot4(b, acc[t], w, four)
        return sums.of(b, acc)

    return sums(sums, types.intp, types.intp), gen


@intrinsic(prefer_literal=True)
def dot_row(ty, sums, w, scale, x, x_stride, kind):
    """sums[t] += the products of 64 bytes of a row and of token t, lane by lane; `scale` is where their f16 lies."""
    weights = literal(kind)

    def gen(c, b, s, a):
        row = _bytes_of_row(b, weights, load_at(b, a[1], V_U8), a[2])
        acc = [b.extract_value(a[0], t) for t in range(s.args[0].n)]
        for t in range(len(acc)):
            token = b.add(a[3], b.mul(a[4], i64(t)))
            apart = len(row) > 1 and len(acc) <= FEW  # so that no dot product waits for that of the step before
            total = fill(V_I32, 0) if apart else acc[t]
            for i, codes in enumerate(row):
                total = dot4(b, total, codes, load_at(b, token, V_U8, 64 * i))
            acc[t] = b.add(acc[t], total) if apart else total
        return sums.of(b, acc)

    return sums(sums, *[types.intp] * 4, kind), gen


@intrinsic(prefer_literal=True)
def pack_panel(ty, panel, w, stride, last, scales, scales_stride, kind):
    """64 bytes of each of 16 rows as one or two panels for `dot_panel`.

    Rows lie `stride` bytes apart, their scales, f16, `scales_stride`; rows after row `last` are that row again.
    """
    weights = literal(kind)

    def gen(c, b, s, a):
        rows = []
        for r in range(16):
            number = b.select(b.icmp_signed("<", i64(r), a[3]), i64(r), a[3])
            packed = load_at(b, b.add(a[1], b.mul(number, a[2])), V_U8)
            rows.append(_bytes_of_row(b, weights, packed, b.add(a[4], b.mul(number, a[5]))))
        for i, columns in enumerate(zip(*rows, strict=True)):
            for j, vector in enumerate(_transposed([b.bitcast(v, V_I32) for v in columns], b)):
                store_at(b, a[0], vector, 1024 * i + 64 * j)
        return c.get_dummy_value()

    return types.void(*[types.intp] * 6, kind), gen


def _bytes_of_row(b, kind, packed, scale_at):
    """64 or 2 x 64 weights of a row, as bytes without sign."""
    if kind == INT8:
        return [b.xor(packed, fill(V_U8, 0x80))]
    low, high = (b.and_(shift(b, packed, -up), fill(V_U8, 15)) for up in (0, 4))
    if kind == INT4:
        return [b.xor(v, fill(V_U8, 8)) for v in (low, high)]
    scale = load_at(b, scale_at, F16)
    scale = b.extract_element(widen_f16(b, repeat(b, scale)), ir.Constant(I32, 0))
    if host_cpu.has_byte_shuffle():
        table = _rounded(b, ir.Constant(ir.VectorType(F32, 16), [*range(8), *range(-8, 0)]), scale)
        return [shuffle(b, table, v) for v in (low, high)]
    wide = ir.VectorType(F32, 64)
    signed = (b.sub(b.xor(v, fill(V_U8, 8)), fill(V_U8, 8)) for v in (low, high))
    return [_rounded(b, b.sitofp(v, wide), scale) for v in signed]


def _rounded(b, codes, scale):
    """round(code * scale) + 128 as bytes: adding 1.5 * 2^23 leaves whole numbers in the low bits."""
    lanes = codes.type.count
    product = b.fmul(codes, repeat(b, scale, lanes))
    shifted = b.fadd(product, fill(codes.type, 12582912.0))
    whole = b.trunc(b.bitcast(shifted, ir.VectorType(I32, lanes)), ir.VectorType(I8, lanes))
    return b.xor(whole, fill(whole.type, 0x80))


def _transposed(rows, b):
    """16 vectors of 16 words: word j of vector i and word i of vector j change places."""
    for distance in (1, 2, 4, 8):
        done = list(rows)
        for i in range(16):
            if not i & distance:
                x, y = rows[i], rows[i + distance]
                lanes = range(16)
                first = [j if not j & distance else 16 + j - distance for j in lanes]
                second = [j + distance if not j & distance else 16 + j for j in lanes]
                for at, places in ((i, first), (i + distance, second)):
                    done[at] = b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, 16), places))
        rows = done
    return rows


@intrinsic
def copy_and_sum(ty, out, x):
    """Copy 64 signed bytes, and return their sum."""

    def gen(c, b, s, a):
        values = load_at(b, a[1], V_U8)
        store_at(b, a[0], values)
        return b.sext(_sum_of_lanes(b, dot4(b, fill(V_I32, 0), fill(V_U8, 1), values)), I64)

    return types.intp(types.intp, types.intp), gen


@intrinsic
def sums_to_f32(ty, sums, begin, zero, columns):
    """float(sums + begin - zero * columns), of 16 int32 at `sums` and `columns`; modulo 2^32 up to the conversion."""

    def gen(c, b, s, a):
        begin, zero = (repeat(b, b.trunc(v, I32)) for v in (a[1], a[2]))
        total = b.add(load_at(b, a[0], V_I32), begin)
        return to_float(b, b.sub(total, b.mul(zero, load_at(b, a[3], V_I32))))

    return f32x16(*[types.intp] * 4), gen
