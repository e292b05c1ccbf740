# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Panels of integer sums: products with codes of four bits, two in a byte, which are exact."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host_cpu
from octavo.jit.simd.codes import shift
from octavo.jit.simd.dots import FEW, dot4, in_order, pair_products
from octavo.jit.simd.emit import (
    I16,
    I32,
    V_I16,
    V_I32,
    V_U8,
    Block,
    by_parts,
    fill,
    i32x16,
    i64,
    literal,
    load_at,
    repeat,
    store_at,
)
from octavo.jit.simd.pairs import add_products

MAX_CODE = 15
assert 32767 // (2 * 128 * MAX_CODE) >= 8  # of 32 codes, 16 bits hold the sums of all


@intrinsic(prefer_literal=True)
def load_sums(ty, address, stride, n, width):
    """n rows of `width` vectors, row t of the int32 at address + t * stride; n and width are constants."""
    rows, columns = literal(n), literal(width)
    block = Block(i32x16, rows * columns)

    def gen(c, b, s, a):
        firsts = (repeat(b, load_at(b, b.add(a[0], b.mul(a[1], i64(t))), I32)) for t in range(rows))
        return block.of(b, (first for first in firsts for _ in range(columns)))

    return block(types.intp, types.intp, n, width), gen


@intrinsic(prefer_literal=True)
def add_nibble_dots(ty, sums, codes, width, x, stride):
    """sums[t] += 32 codes from 0 to 15 of each column times the 32 signed bytes at x + t * stride.

    Four rows of codes, 256 bytes apart, have four bytes a column: row j codes 4 j to 4 j + 3 in the low four bits, and
    those 16 later in the high ones. `width` vectors of 16 columns are taken.
    """
    columns, run = literal(width), host_cpu.products_of_16_bits(MAX_CODE)

    def gen(c, b, s, a):
        n, mask = s.args[0].n, fill(V_U8, MAX_CODE)
        totals = [fill(V_I16, 0)] * n if run else [b.extract_value(a[0], i) for i in range(n)]
        for row in range(4):
            bytes_ = [load_at(b, a[1], V_U8, 256 * row + 64 * j) for j in range(columns)]
            for half in (0, 1):
                codes = [b.and_(shift(b, v, -4 * half), mask) for v in bytes_]
                for t in range(n // columns):
                    place = b.add(a[3], b.mul(a[4], i64(t)))
                    four = b.bitcast(repeat(b, load_at(b, place, I32, 16 * half + 4 * row)), V_U8)
                    for j, vector in enumerate(codes):
                        i = t * columns + j
                        totals[i] = _add_bytes(b, totals[i], vector, four, run)
                totals = in_order(b, totals) if run and n > FEW else totals
        if run:
            pairs = (pair_products(b, total, fill(V_I16, 1)) for total in totals)
            totals = [b.add(b.extract_value(a[0], i), more) for i, more in enumerate(pairs)]
        return s.args[0].of(b, totals)

    return sums(sums, types.intp, width, types.intp, types.intp), gen


def _add_bytes(b, total, codes, four, run):
    """Sums of four products of bytes added to 32 bits, or of two to 16, as the CPU does it best."""
    if not run:
        return dot4(b, total, codes, four)
    return b.add(total, by_parts(b, "llvm.x86.avx2.pmadd.ub.sw", V_I16, 16, codes, four))


@intrinsic
def add_nibble_pairs(ty, sums, codes, x, stride):
    """sums[t] += 4 rows of 32 columns of codes from -8 to 7, times the four 16-bit numbers at x + t * stride.

    sums has two vectors for each t. 64 bytes of codes have four of each of 16 columns: of rows 0, 2, 1 and 3; the
    low four bits are the column's, the high ones those of the column 16 later.
    """

    def gen(c, b, s, a):
        value, words = a[0], load_at(b, a[1], V_I16)
        for part in range(4):  # of rows 0 and 1 columns to 15, columns from 16 on; of rows 2 and 3
            raised = b.shl(words, fill(V_I16, 12 - 4 * part)) if part < 3 else words
            codes = b.ashr(raised, fill(V_I16, 12))
            for t in range(s.args[0].n // 2):
                place = b.add(a[2], b.mul(a[3], i64(t)))
                pair = b.bitcast(repeat(b, load_at(b, place, I32, 4 * (part // 2))), V_I16)
                i = 2 * t + part % 2
                value = b.insert_value(value, add_products(b, b.extract_value(value, i), codes, pair), i)
        return value

    return sums(sums, types.intp, types.intp, types.intp), gen


@intrinsic
def store_nibble_pairs(ty, to, address, at):
    """Of each of 16 words the 4 bits from bit `at` on and those 8 bits later, less 8, as a pair of 16-bit numbers."""

    def gen(c, b, s, a):
        words = _shifted(b, a[1], a[2])
        low, high = fill(V_I32, MAX_CODE), fill(V_I32, MAX_CODE << 16)
        pairs = b.or_(b.and_(words, low), b.and_(b.shl(words, fill(V_I32, 8)), high))
        store_at(b, a[0], b.sub(b.bitcast(pairs, V_I16), fill(V_I16, 8)))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), gen


@intrinsic
def store_nibbles(ty, to, address, at):
    """4 bits of each of 16 words, from bit `at` on, less 8, as 16-bit numbers."""

    def gen(c, b, s, a):
        codes = b.sub(b.and_(_shifted(b, a[1], a[2]), fill(V_I32, MAX_CODE)), fill(V_I32, 8))
        store_at(b, a[0], b.trunc(codes, ir.VectorType(I16, 16)))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), gen


def _shifted(b, address, at):
    """16 words, `at` bits to the right."""
    return b.lshr(load_at(b, address, V_I32), repeat(b, b.trunc(at, I32)))
