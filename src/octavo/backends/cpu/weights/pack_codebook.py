"""Rows of a format with a grid to the kernels' layout, and the tables that kernels look points up in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.backends.cpu.weights.codebook_halves import halves_of, numbers_of, tables_of
from octavo.backends.cpu.weights.codebook_map import grid_map
from octavo.backends.cpu.weights.layout import POINTS_AT, Layout, Points
from octavo.backends.cpu.weights.pack_codebook_kernel import SHARED_MARK, pack_points_kernel
from octavo.formats.codebook import Codebook
from octavo.formats.spec import U8, BlockFormat
from octavo.jit import host
from octavo.jit.program import LINE, KernelCall

BEHIND_SIZES = np.zeros(8, np.uint8)
"""What may be read behind the sizes of the last point."""


def points_of(grid: Codebook, group: int, *, by_halves: bool | None = None) -> Points:
    """What a layout says of a grid whose values have a scale for `group`; by halves where the CPU is fast at that."""
    if host.has_byte_permutation() if by_halves is None else by_halves:
        halves = halves_of(grid)
        if grid.shared:
            return Points(grid.width, halves.more, None, halves, marks=0 if group > 16 else 4)
        return Points(grid.width, halves.more, grid.bits, halves, marks=64)
    numbers = len(grid.keys) << grid.shared  # a shared mark is the highest bit of a number
    more = (numbers - 1).bit_length() - 8
    return Points(grid.width, more, None if grid.shared else grid.bits, None, marks=0 if grid.shared else 64)


def with_points(values: tuple[int, ...], offset: int, grid: Codebook, points: Points) -> U8:
    """What kernels look points up in: values, then words and sizes, or tables of halves; see `layout.Points`."""
    codes = grid.entries
    if grid.shared:
        codes = np.concatenate([codes, codes | np.uint8(1 << grid.bits)])
    table = np.zeros(POINTS_AT, np.uint8)
    table[:16] = np.resize(np.array(values, np.int16) + offset, 16)
    sizes = _sizes(values, grid)[grid.entries]
    parts: list[U8]
    if points.halves is not None:
        parts = [*tables_of(grid), _meanings(table[: 2 << grid.bits], grid)]
    elif grid.width == 8:
        parts = [codes[:, :4] | (codes[:, 4:] << np.uint8(4)), sizes, BEHIND_SIZES]
    else:
        parts = [codes, np.tile(sizes, 2), BEHIND_SIZES]
    return _aligned(np.concatenate([table, *(part.reshape(-1) for part in parts)]))


def _meanings(values: U8, grid: Codebook) -> U8:
    """What numbers of six bits stand for, by their low bits; see `simd.load_halves_of`: [tables, 64]."""
    numbers, sizes = np.arange(64), len(values) // 2
    if grid.shared:  # the values without a mark
        return values[None, numbers % sizes]
    if grid.width == 4:
        return values[None, numbers % len(values)]
    return np.stack([values[numbers % sizes + sizes * (numbers >> mark & 1)] for mark in (3, 4, 5)])


def _aligned(table: U8) -> U8:
    """The same bytes from where a cache line begins: so no load of 64 of them takes two."""
    room = np.empty(table.size + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    aligned = room[start : start + table.size]
    aligned[:] = table
    return aligned


def _sizes(values: tuple[int, ...], grid: Codebook) -> U8:
    """What each size stands for: of values with a mark that are shared, how far they are above the least of all."""
    plain, marked = np.array(values).reshape(2, -1)
    sizes: U8 = (marked - min(values) if grid.shared else plain).astype(np.uint8)
    return sizes


def pack_points(fmt: BlockFormat, layout: Layout, rows: U8, out: U8) -> bool:
    """Pack rows uint8 [rows, bytes] to tiles uint8 [tiles, bytes of a tile]; False if a scale is NaN or Inf."""
    assert fmt.codebook is not None
    found, odd = grid_map(fmt), np.zeros(1, np.uint8)
    KernelCall(
        pack_points_kernel(layout, fmt.codebook.even), len(out), (rows,),
        tiles=out, rows=len(rows), k=rows.shape[1] // fmt.block_bytes * fmt.block,
        source=rows, row_bytes=rows.shape[1], block_bytes=fmt.block_bytes,
        numbers=found.numbers, marks=found.marks, scales=found.scales, d=found.d, odd=odd,
        renumbered=_renumbered(fmt.codebook, layout),
    ).run()
    return not odd[0]


def _renumbered(grid: Codebook, layout: Layout) -> npt.NDArray[np.uint32]:
    """What a layout has for each number of a grid, with a mark that is shared above its bits: uint32 [numbers]."""
    if layout.grid is None:
        return np.ascontiguousarray(grid.entries).view("<u4")[:, 0]
    if layout.grid.halves is None:
        return np.arange(len(grid.keys) << grid.shared, dtype=np.uint32)
    numbers = numbers_of(grid).astype(np.uint32)
    return np.concatenate([numbers, numbers | np.uint32(SHARED_MARK)]) if grid.shared else numbers
