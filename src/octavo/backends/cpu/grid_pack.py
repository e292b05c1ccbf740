"""Rows of a format with a grid to the kernels' layout, and the tables that kernels look points up in."""

from __future__ import annotations

import numpy as np

from octavo.backends.cpu.grid_map import grid_map
from octavo.backends.cpu.kernels.pack_points import pack_points_kernel
from octavo.backends.cpu.layout import POINTS_AT, Layout, Points
from octavo.formats.grid import Grid
from octavo.formats.spec import U8, BlockFormat
from octavo.jit.program import LINE, KernelCall


def points_of(grid: Grid) -> Points:
    """What a layout says of a grid."""
    numbers = len(grid.keys) << grid.shared  # a shared mark is the highest bit of a number
    return Points(grid.width, (numbers - 1).bit_length() - 8, None if grid.shared else grid.bits)


def with_points(values: tuple[int, ...], offset: int, grid: Grid) -> U8:
    """What kernels look points up in: values, words, sizes and, with marks of values, tables; see `layout.Points`."""
    codes = grid.points
    if grid.shared:
        codes = np.concatenate([codes, codes | np.uint8(1 << grid.bits)])
    table = np.zeros(POINTS_AT, np.uint8)
    table[:16] = np.resize(np.array(values, np.int16) + offset, 16)
    sizes = _sizes(values, grid)[grid.points]
    if grid.width == 8:
        parts = [codes[:, :4] | (codes[:, 4:] << np.uint8(4)), sizes]
    else:
        parts = [codes, np.tile(sizes, 2)]
    if not grid.shared:
        parts += [_halves(codes), _meanings(table[: 2 << grid.bits])]
    return _aligned(np.concatenate([table, *(part.reshape(-1) for part in parts)]))


def _halves(codes: U8) -> U8:
    """Bytes of the first half of each point's codes, then of the last: [2, points]."""
    half = codes.shape[1] // 2
    shifts = (np.arange(half) * (8 // half)).astype(np.uint8)
    halves: U8 = np.bitwise_or.reduce(codes.reshape(-1, 2, half) << shifts, axis=2).T
    return halves


def _meanings(values: U8) -> U8:
    """What numbers of six bits stand for whose low bits are a size, and whose bit 3, 4 or 5 is the mark: [3, 64]."""
    numbers, bits = np.arange(64), len(values) // 2
    return np.stack([values[numbers % bits + bits * (numbers >> mark & 1)] for mark in (3, 4, 5)])


def _aligned(table: U8) -> U8:
    """The same bytes from where a cache line begins: so no load of 64 of them takes two."""
    room = np.empty(table.size + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    aligned = room[start : start + table.size]
    aligned[:] = table
    return aligned


def _sizes(values: tuple[int, ...], grid: Grid) -> U8:
    """What each size stands for: of values with a mark that are shared, how far they are above the least of all."""
    plain, marked = np.array(values).reshape(2, -1)
    sizes: U8 = (marked - min(values) if grid.shared else plain).astype(np.uint8)
    return sizes


def pack_points(fmt: BlockFormat, layout: Layout, rows: U8, out: U8) -> bool:
    """Pack rows uint8 [rows, bytes] to tiles uint8 [tiles, bytes of a tile]; False if a scale is NaN or Inf."""
    assert fmt.grid is not None
    found, odd = grid_map(fmt), np.zeros(1, np.uint8)
    KernelCall(
        pack_points_kernel(layout, fmt.grid.even), len(out), (rows,),
        tiles=out, rows=len(rows), k=rows.shape[1] // fmt.block_bytes * fmt.block,
        source=rows, row_bytes=rows.shape[1], block_bytes=fmt.block_bytes,
        numbers=found.numbers, marks=found.marks, scales=found.scales, d=found.d, odd=odd,
    ).run()  # fmt: skip
    return not odd[0]
