# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Panels: n rows of sums, c vectors wide, for products of n rows of floats with a matrix read once, from top to bottom.

A panel is a block of n * c vectors; vector t * c + j holds columns 16 j to 16 j + 15 of row t.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.simd.emit import (
    F16,
    F32,
    I8,
    V_F32,
    V_I32,
    Block,
    f32x16,
    i64,
    literal,
    load_at,
    multiply_add,
    repeat,
    store_at,
    widen_f16,
)
from octavo.jit.simd.memory import finite_e4m3


def _places(b, address, stride, n, width):
    """The addresses of a panel's vectors: rows `stride` bytes apart, vectors 64."""
    for t in range(n):
        row = b.add(address, b.mul(stride, i64(t)))
        for j in range(width):
            yield t * width + j, b.add(row, i64(64 * j))


@intrinsic(prefer_literal=True)
def load_panel(ty, address, stride, n, width):
    """The floats of n rows that begin `stride` bytes apart, `width` vectors of each; n and width are constants."""
    rows, columns = literal(n), literal(width)
    block = Block(f32x16, rows * columns)

    def gen(c, b, s, a):
        return block.of(b, (load_at(b, place, V_F32) for _, place in _places(b, a[0], a[1], rows, columns)))

    return block(types.intp, types.intp, n, width), gen


@intrinsic(prefer_literal=True)
def store_panel(ty, address, stride, width, panel):
    """Each row of a panel to address + t * stride."""
    columns = literal(width)

    def gen(c, b, s, a):
        for i, place in _places(b, a[0], a[1], s.args[3].n // columns, columns):
            store_at(b, place, b.extract_value(a[3], i))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, width, panel), gen


@intrinsic(prefer_literal=True)
def scale_panel(ty, panel, width, address, stride):
    """Row t times the float at address + t * stride."""
    columns = literal(width)

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n // columns):
            x = repeat(b, load_at(b, b.add(a[2], b.mul(a[3], i64(t))), F32))
            for i in range(t * columns, (t + 1) * columns):
                value = b.insert_value(value, b.fmul(b.extract_value(a[0], i), x), i)
        return value

    return panel(panel, width, types.intp, types.intp), gen


def _fma_panel(nbytes, load):
    @intrinsic(prefer_literal=True)
    def fma_panel(ty, panel, row, width, x, stride):
        columns = literal(width)

        def gen(c, b, s, a):
            value = a[0]
            vectors = [load(b, b.add(a[1], i64(nbytes * 16 * j))) for j in range(columns)]
            for t in range(s.args[0].n // columns):
                factor = repeat(b, load_at(b, b.add(a[3], b.mul(a[4], i64(t))), F32))
                for j, vector in enumerate(vectors):
                    i = t * columns + j
                    value = b.insert_value(value, multiply_add(b, vector, factor, b.extract_value(value, i)), i)
            return value

        return panel(panel, types.intp, width, types.intp, types.intp), gen

    fma_panel.__doc__ = """panel[t] += row * x[t]: a matrix row of `width` vectors, the float x[t] at x + t * stride."""
    return fma_panel


def _load_s8(b, address):
    return b.sitofp(b.sext(load_at(b, address, ir.VectorType(I8, 16)), V_I32), V_F32)


fma_panel_f32 = _fma_panel(4, lambda b, address: load_at(b, address, V_F32))

fma_panel_f16 = _fma_panel(2, lambda b, address: widen_f16(b, load_at(b, address, ir.VectorType(F16, 16))))

fma_panel_s8 = _fma_panel(1, _load_s8)

fma_panel_e4m3 = _fma_panel(1, lambda b, address: finite_e4m3(b, load_at(b, address, ir.VectorType(I8, 16))))
"""Of the numbers over 256, of which none is NaN."""


@intrinsic(prefer_literal=True)
def scale_columns(ty, panel, width, address):
    """Column i times the float at address + 4 i."""
    columns = literal(width)

    def gen(c, b, s, a):
        value = a[0]
        for j in range(columns):
            scale = load_at(b, b.add(a[2], i64(64 * j)), V_F32)
            for i in range(j, s.args[0].n, columns):
                value = b.insert_value(value, b.fmul(b.extract_value(value, i), scale), i)
        return value

    return panel(panel, width, types.intp), gen


@intrinsic(prefer_literal=True)
def fma_columns_f16(ty, panel, other, width, address):
    """panel += other, column i times the f16 at address + 2 i."""
    columns = literal(width)

    def gen(c, b, s, a):
        value = a[0]
        for j in range(columns):
            scale = widen_f16(b, load_at(b, b.add(a[3], i64(32 * j)), ir.VectorType(F16, 16)))
            for i in range(j, s.args[0].n, columns):
                value = b.insert_value(
                    value, multiply_add(b, b.extract_value(a[1], i), scale, b.extract_value(value, i)), i
                )
        return value

    return panel(panel, other, width, types.intp), gen
