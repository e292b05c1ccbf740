# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What the values of a row may be, and what the kernels of GPTQ have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from octavo.jit.compile import inner
from octavo.jit.simd import f32_pointer, fma, load_f32x16, mul_exact, splat, store_f32x16

Scale = Literal["f16", "bf16", "f32", "fixed"]


@dataclass(frozen=True)
class Grid:
    """What a row's values may be: d sc (level - zero) - dmin m.

    low, high  levels, or the ends of `table`
    table      the levels of a non-linear code
    group      values that share sc, m and zero; 0 where all of a row do
    supers     groups that share d and dmin
    integers   the least and the largest sc, and the largest m; None with one level
    has_min    there are minima
    scale      how d and dmin are stored; "fixed" ones stay as the encoder chose them
    """

    low: int
    high: int
    table: tuple[int, ...] | None
    group: int
    supers: int
    integers: tuple[int, int, int] | None
    has_min: bool
    scale: Scale


def _sum_rows(out, matrix, columns, rows, first, last, vectors):
    """out[j] = sum of matrix[j, i] * vectors[i] over `first` <= i < `last`; j < rows, a multiple of 4."""
    m = f32_pointer(matrix)
    for j in range(0, rows, 4):
        s0, s1, s2, s3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        row = j * columns
        for i in range(first, last):
            x = load_f32x16(vectors + 64 * i)  # [16]
            s0 = fma(splat(m[row + i]), x, s0)
            s1 = fma(splat(m[row + columns + i]), x, s1)
            s2 = fma(splat(m[row + 2 * columns + i]), x, s2)
            s3 = fma(splat(m[row + 3 * columns + i]), x, s3)
        store_f32x16(out + 64 * j, s0)
        store_f32x16(out + 64 * j + 64, s1)
        store_f32x16(out + 64 * j + 128, s2)
        store_f32x16(out + 64 * j + 192, s3)


sum_rows = inner(_sum_rows)


def spread_scales(grid: Grid) -> Any:
    """A function (a, tile) that sets what a level of each group is worth: step * level - shift."""
    group, supers = grid.group, grid.supers

    def spread(a, tile):
        groups = a.k // (group or a.k)
        at, top = 64 * tile * groups, 64 * tile * (groups // supers)
        for g in range(groups):
            above = top + 64 * (g // supers)
            step = mul_exact(load_f32x16(a.d + above), load_f32x16(a.sc + at + 64 * g))  # [16]
            low = mul_exact(load_f32x16(a.dmin + above), load_f32x16(a.m + at + 64 * g))
            store_f32x16(a.step + at + 64 * g, step)
            store_f32x16(a.shift + at + 64 * g, fma(step, load_f32x16(a.zero + at + 64 * g), low))

    return inner(spread, grid)
