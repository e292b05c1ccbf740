# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of int8 codes with scales of groups along K: integer sums of a group, float32 sums over groups.

Algorithm: dot products of rows as they lie, 16 lanes of partial sums, scaled group by group.
Tile:
    task   16 rows; a row | group | group | ...    n tokens: int32 dots [n, 16] -> float32 acc [n, 16] += dots * scales
Bound: instructions; not measured by itself.
Tried: nothing else.
Twin: `octavo.ops.definition.int8_gemm`
"""

from __future__ import annotations

from typing import Any

from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import (
    f32_pointer,
    fma_blocks,
    load_f32x16,
    scale_block,
    splat,
    stack,
    store_block,
    sum_lanes,
    zeros,
)
from octavo.jit.simd.integers import INT8, dot_row, load_sums
from octavo.jit.simd.pairs import to_floats

ROWS = 16
"""Rows of the weight that a task multiplies with all tokens."""

GROUPS = record("y y_stride", "x x_stride x_scales tokens", "w w_stride w_scales rows", "begins groups steps")
"""y                float32 [tokens, rows]
x, w             int8 codes of `groups` times `steps` times 64, and bytes from a row to the next; tokens are whole tiles
x_scales         float32 [tokens, groups], and w_scales [rows, groups]
begins           int32 [tiles, groups, tokens of a tile, 16]: -128 times the sum of the codes that a lane adds up
"""


@kernels(GROUPS)
def int8_groups_kernel(n: int) -> Any:
    """Task i makes `ROWS` columns of y, in tiles of n tokens."""
    room, kind, size = 64 * n, INT8, ROWS

    def product(a, task):
        groups, steps, sums = a.groups, a.steps, stack(room)
        for first in range(0, a.tokens, n):
            for row in range(task * size, min(task * size + size, a.rows)):
                w, x = a.w + row * a.w_stride, a.x + first * a.x_stride
                x_scales, w_scales = a.x_scales + first * groups * 4, a.w_scales + row * groups * 4
                begins, acc = a.begins + first * groups * 64, zeros(n)
                for group in range(groups):
                    dots = load_sums(begins, n)  # n x [16], to be added up
                    for _step in range(steps):
                        dots = dot_row(dots, w, w, x, a.x_stride, kind)
                        w, x = w + 64, x + 64
                    scaled = scale_block(to_floats(dots), x_scales + 4 * group, groups * 4)
                    acc = fma_blocks(acc, scaled, splat(f32_pointer(w_scales)[group]))  # n x [16]
                    begins += room
                store_block(sums, 64, acc)
                for t in range(n):
                    f32_pointer(a.y + (first + t) * a.y_stride)[row] = sum_lanes(load_f32x16(sums + 64 * t))

    return product
