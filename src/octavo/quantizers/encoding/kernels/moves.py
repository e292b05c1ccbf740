# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Groups to lanes and back, and codes to packed blocks."""

from __future__ import annotations

from functools import cache

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.jit.simd.emit import (
    I8,
    I32,
    I64,
    V_F32,
    V_I32,
    f32x16,
    literal,
    load_at,
    pointer_at,
    store_at,
)


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
