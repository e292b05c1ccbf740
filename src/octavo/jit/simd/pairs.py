# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Panels of integer sums: products of pairs of 16-bit numbers with a matrix of signed bytes, which are exact.

A row of the matrix has two bytes a column, side by side, so that an instruction multiplies both and adds them to the
column's sum. A sum is right as long as it fits 32 bits. Bytes that many vectors are multiplied with become numbers of
16 bits beforehand.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host_cpu
from octavo.jit.simd.dots import pair_products
from octavo.jit.simd.emit import (
    AS_WRITTEN,
    I8,
    I16,
    I32,
    V_F32,
    V_I16,
    V_I32,
    Block,
    by_parts,
    call_llvm,
    f32x16,
    fill,
    i32x16,
    i64,
    literal,
    load_at,
    repeat,
    store_at,
    to_float,
)


@intrinsic(prefer_literal=True)
def zero_sums(ty, n):
    """n vectors of 16 integers, all 0; `n` is a constant."""
    block = Block(i32x16, literal(n))
    return block(n), lambda c, b, s, a: ir.Constant(block.llvm, None)


@intrinsic(prefer_literal=True)
def add_pairs(ty, sums, row, width, x, stride):
    """sums[t] += row * x[t]: a row of `width` vectors of 16 pairs of bytes, the pair of 16-bit numbers x[t] at
    x + t * stride."""
    columns = literal(width)

    def gen(c, b, s, a):
        value = a[0]
        bytes_ = (load_at(b, a[1], ir.VectorType(I8, 32), 32 * j) for j in range(columns))
        vectors = [b.sext(v, V_I16) for v in bytes_]
        for t in range(s.args[0].n // columns):
            pair = b.bitcast(repeat(b, load_at(b, b.add(a[3], b.mul(a[4], i64(t))), I32)), V_I16)
            for j, vector in enumerate(vectors):
                i = t * columns + j
                value = b.insert_value(value, add_products(b, b.extract_value(value, i), vector, pair), i)
        return value

    return sums(sums, types.intp, width, types.intp, types.intp), gen


def add_products(b, total, x, y):
    """total + x[2i] y[2i] + x[2i + 1] y[2i + 1], of 16-bit numbers; emitted, not called."""
    level = host_cpu.level()
    if level == "avx512vnni":
        words = (b.bitcast(v, V_I32) for v in (x, y))
        return call_llvm(b, "llvm.x86.avx512.vpdpwssd.512", V_I32, total, *words)
    if level == "avxvnni":
        return by_parts(b, "llvm.x86.avx512.vpdpwssd.256", V_I32, 8, total, b.bitcast(x, V_I32), b.bitcast(y, V_I32))
    return b.add(total, pair_products(b, x, y))


@intrinsic
def to_floats(ty, sums):
    """A panel of floats of a panel of integers."""
    block = Block(f32x16, sums.n)

    def gen(c, b, s, a):
        return block.of(b, (to_float(b, b.extract_value(a[0], i)) for i in range(block.n)))

    return block(sums), gen


def _rounded(b, x):
    """Floats as words whose low 16 bits are the nearest integers, ties to even."""
    return b.bitcast(b.fadd(x, fill(V_F32, 12582912.0), flags=AS_WRITTEN), V_I32)


@intrinsic
def store_s16x16(ty, address, values):
    """16 floats rounded to integers (nearest, ties to even) of 16 bits, which they have to fit."""

    def gen(c, b, s, a):
        store_at(b, a[0], b.trunc(_rounded(b, a[1]), ir.VectorType(I16, 16)))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16), gen


@intrinsic
def add_splat_pairs(ty, sums, vec, address, stride):
    """sums[t] += the 16 pairs of 16-bit numbers at `vec` times the pair at address + t * stride."""

    def gen(c, b, s, a):
        value, pairs = a[0], load_at(b, a[1], V_I16)
        for t in range(s.args[0].n):
            pair = b.bitcast(repeat(b, load_at(b, b.add(a[2], b.mul(a[3], i64(t))), I32)), V_I16)
            value = b.insert_value(value, add_products(b, b.extract_value(value, t), pairs, pair), t)
        return value

    return sums(sums, types.intp, types.intp, types.intp), gen


@intrinsic
def store_pairs(ty, address, first, second):
    """Two vectors of floats as 16 pairs of 16-bit numbers, rounded as by `store_s16x16`."""

    def gen(c, b, s, a):
        low, high = (_rounded(b, x) for x in a[1:])
        words = b.or_(b.and_(low, fill(V_I32, 0xFFFF)), b.shl(high, fill(V_I32, 16)))
        store_at(b, a[0], words)
        return c.get_dummy_value()

    return types.void(types.intp, f32x16, f32x16), gen


@intrinsic
def widen_bytes(ty, to, address):
    """32 signed bytes as numbers of 16 bits, as they lie."""

    def gen(c, b, s, a):
        store_at(b, a[0], b.sext(load_at(b, a[1], ir.VectorType(I8, 32)), V_I16))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp), gen


@intrinsic
def part_pairs(ty, to, other, address):
    """32 pairs of signed bytes as numbers of 16 bits: the first ones to `to`, the second ones to `other`."""

    def gen(c, b, s, a):
        pairs, byte = load_at(b, a[2], V_I16), fill(V_I16, 8)
        store_at(b, a[0], b.ashr(b.shl(pairs, byte), byte))
        store_at(b, a[1], b.ashr(pairs, byte))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), gen
