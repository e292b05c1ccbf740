"""Rows of a format with a grid to the kernels' layout: numbers of points, marks and scales, rearranged."""

from __future__ import annotations

import numpy as np

from octavo.backends.cpu.layout import POINTS_AT, ROWS, Layout, Points
from octavo.backends.cpu.probe import fields
from octavo.formats.grid import Grid
from octavo.formats.spec import U8, AnyArray, BlockFormat, Indexed

BLOCKS = 8  # of 32 values, in a super-block


def points_of(grid: Grid) -> Points:
    """What a layout says of a grid."""
    numbers = len(grid.keys) << grid.shared  # a shared mark is the highest bit of a number
    return Points(grid.width, (numbers - 1).bit_length() - 8, None if grid.shared else grid.bits)


def with_points(values: tuple[int, ...], grid: Grid) -> U8:
    """What kernels look points up in: values, words, sizes and, of points of 4 values, pairs; see `layout.Points`."""
    codes = grid.points
    if grid.shared:
        codes = np.concatenate([codes, codes | np.uint8(1 << grid.bits)])
    table = np.zeros(POINTS_AT, np.uint8)
    table[:16] = np.resize(np.array(values, np.int16) + 128, 16)
    sizes = _sizes(values, grid)[grid.points]
    if grid.width == 8:
        parts = [codes[:, :4] | (codes[:, 4:] << np.uint8(4)), sizes]
    else:
        parts = [codes, np.tile(sizes, 2), (codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))).T]
    return np.concatenate([table, *(part.reshape(-1) for part in parts)])


def _sizes(values: tuple[int, ...], grid: Grid) -> U8:
    """What each size stands for: of values with a mark that are shared, how far they are above the least of all."""
    plain, marked = np.array(values).reshape(2, -1)
    sizes: U8 = (marked - min(values) if grid.shared else plain).astype(np.uint8)
    return sizes


def pack_points(fmt: BlockFormat, layout: Layout, rows: U8, out: U8) -> bool:
    """Pack rows uint8 [rows, bytes] to tiles uint8 [tiles, bytes of a tile]; False if a scale is NaN or Inf."""
    assert fmt.indexed is not None
    assert layout.grid is not None
    padded = np.zeros((len(out) * ROWS, rows.shape[1]), np.uint8)
    padded[: len(rows)] = rows
    stored = fmt.indexed(fields(fmt, padded.reshape(len(padded), -1, fmt.block_bytes)))
    supers = stored.d.shape[1]
    tiles = out.reshape(len(out), supers, layout.super_bytes)
    by_row = (len(out), ROWS, supers)
    d = stored.d.reshape(by_row).astype(np.float16)
    tiles[:, :, : 2 * ROWS] = _bytes(d.transpose(0, 2, 1))
    numbers = _numbers(stored, layout.grid).reshape(*by_row, BLOCKS, -1, 4)  # [tile, row, super, block, vector, i]
    head = layout.head_bytes
    if layout.grid.more:
        tiles[:, :, 2 * ROWS : head] = _high_bits(numbers, layout.grid.more)
    blocks = tiles[:, :, head:].reshape(len(out), supers, BLOCKS, layout.block_bytes)
    codes_at = layout.block_bytes - layout.code_bytes
    blocks[..., :codes_at] = _scales(stored.sc.reshape(*by_row, BLOCKS, -1))
    low = numbers.astype(np.uint8).transpose(0, 2, 3, 4, 1, 5)
    low_at = layout.block_bytes - low[0, 0, 0].size
    blocks[..., low_at:] = low.reshape(*blocks.shape[:-1], -1)
    if layout.grid.mark is not None:
        blocks[..., codes_at:low_at] = _marks(stored.marks.reshape(*by_row, BLOCKS, 4))
    return bool(np.isfinite(d).all())


def _bytes(a: AnyArray) -> U8:
    """[tile, super, ...] as bytes [tile, super, n]."""
    return np.ascontiguousarray(a).reshape(*a.shape[:2], -1).view(np.uint8)


def _numbers(stored: Indexed, grid: Points) -> AnyArray:
    """Numbers of points, with a mark that values share above them."""
    if grid.mark is not None:
        return stored.index
    return stored.index | ((stored.marks & 1).astype(np.uint16) << np.uint16(grid.more + 7))


def _high_bits(numbers: AnyArray, more: int) -> U8:
    """Bits above eight of [tile, row, super, block, vector, i], block b's in bit b: [tile, super, bytes]."""
    of_block = np.arange(BLOCKS, dtype=np.uint16)[:, None, None]
    planes = [
        np.bitwise_or.reduce(((numbers >> np.uint16(8 + p)) & 1) << of_block, axis=3).astype(np.uint8)
        for p in range(more)
    ]
    return _bytes(np.stack(planes, axis=4).transpose(0, 2, 3, 4, 1, 5))  # [tile, super, vector, plane, row, i]


def _scales(sc: AnyArray) -> U8:
    """Odd scales [tile, row, super, block, group] as half bytes: [tile, super, block, bytes]."""
    s = (sc.view(np.uint8) >> np.uint8(1)).transpose(0, 2, 3, 4, 1)  # [tile, super, block, group, row]
    pairs = s[..., 0::2] | (s[..., 1::2] << np.uint8(4))
    return pairs.reshape(*pairs.shape[:3], -1)


def _marks(marks: U8) -> U8:
    """Marks [tile, row, super, block, byte], bit k of the four bytes for value k: [tile, super, block, bytes].

    A row's word gets the mark of value 4 j + i in bit j of byte i.
    """
    words = np.ascontiguousarray(marks).view("<u4")[..., 0]
    out = np.empty((*words.shape, 4), np.uint8)
    for i in range(4):
        x = (words >> np.uint32(i)) & np.uint32(0x11111111)  # bit 4 j
        x = (x | (x >> np.uint32(3))) & np.uint32(0x03030303)
        x = (x | (x >> np.uint32(6))) & np.uint32(0x000F000F)
        out[..., i] = (x | (x >> np.uint32(12))) & np.uint32(0xFF)
    by_block = np.ascontiguousarray(out.transpose(0, 2, 3, 1, 4))  # [tile, super, block, row, i]
    return by_block.reshape(*by_block.shape[:3], -1)
