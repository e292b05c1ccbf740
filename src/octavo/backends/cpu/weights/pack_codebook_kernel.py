# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Packing rows of a format with a grid to tiles of 16 rows: numbers of points, marks and scales, rearranged."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.weights.codebook_map import PIECES
from octavo.backends.cpu.weights.layout import ROWS, STEP, Layout
from octavo.backends.cpu.weights.probe import PIECE
from octavo.jit.compile import inner, kernels
from octavo.jit.record import record
from octavo.jit.simd import load_u32, store_u32, u8_pointer, u32_pointer

PACK_POINTS = record("tiles rows k", "source row_bytes block_bytes", "numbers marks scales d", "renumbered", "odd")
"""tiles                      made: the layout of rows [rows, k]
source                     their packed blocks of 256 values, `row_bytes` a row, `block_bytes` a block
numbers, marks, scales, d  where their pieces lie (`grid_map.GridMap`)
renumbered                 uint32 for each number: what the layout has for it, and bit 15 for a mark that values share;
                           or, where that has codes, those of 4 values, a byte each
odd                        a byte, set to 1 where d is NaN or Inf
"""


SHARED_MARK = 1 << 15
"""The bit of what stands for a number that is its mark, where halves of points are looked up."""


@kernels(PACK_POINTS)
def pack_points_kernel(layout: Layout, even: bool) -> Any:
    """Task i packs rows 16 i to 16 i + 15; missing rows are zero-filled. `even` says that of 8 marks 7 are stored."""
    move_block, super_bytes, head_bytes = _move_block(layout, even), layout.super_bytes, layout.head_bytes
    block_bytes, blocks, tile_rows = layout.block_bytes, layout.super // STEP, ROWS

    def pack(a, task):
        for s in range(a.k // 256):
            here = a.tiles + (task * (a.k // 256) + s) * super_bytes
            for i in range(super_bytes):
                u8_pointer(here)[i] = 0
            for lane in range(min(tile_rows, a.rows - task * tile_rows)):
                source = a.source + (task * tile_rows + lane) * a.row_bytes + s * a.block_bytes
                d = value_of(a.d, 0, source)
                u8_pointer(here)[2 * lane], u8_pointer(here)[2 * lane + 1] = d & 255, d >> 8
                if d & 0x7C00 == 0x7C00:
                    u8_pointer(a.odd)[0] = 1
                for b in range(blocks):
                    move_block(a, here + head_bytes + b * block_bytes, source, lane, b)

    return pack


def _move_block(layout: Layout, even: bool) -> Any:
    """A function (a, block, source, lane, b) for what block b of a row's super-block is made of."""
    groups, small_bytes = layout.groups, layout.small_bytes
    move_codes = _move_numbers(layout, even) if layout.grid else _move_codes(layout, even)

    def move_block(a, block, source, lane, b):
        for g in range(groups):
            scale = value_of(a.scales, b * groups + g, source)
            u8_pointer(block)[g * small_bytes + lane % 8] |= scale << (lane // 8 * 4)
        move_codes(a, block, source, lane, b)

    return inner(move_block, layout, even, inline="always")


def _move_codes(layout: Layout, even: bool) -> Any:
    """`_move_block` for codes that numbers of points of 4 values become, with their marks above them."""
    codes_at, bits = layout.block_bytes - layout.code_bytes, layout.bits - 1

    def move_codes(a, block, source, lane, b):
        for i in range(8):
            codes = load_u32(a.renumbered + 4 * value_of(a.numbers, b * 8 + i, source))
            four = marks_of(a.marks, b * 4 + i // 2, source, even) >> (i % 2 * 4) & 15
            codes |= ((four | four << 7 | four << 14 | four << 21) & 0x01010101) << bits
            at = block + codes_at + i % 4 * 64 + 4 * lane
            store_u32(at, load_u32(at) | codes << (i // 4 * 4))

    return inner(move_codes, layout, even, inline="always")


def _move_numbers(layout: Layout, even: bool) -> Any:
    """`_move_block` for numbers of points and marks."""
    grid = layout.grid
    assert grid is not None
    marked, in_fours = grid.mark is not None, bool(grid.halves) and grid.width == 4
    codes_at, low_at = layout.block_bytes - layout.code_bytes, layout.block_bytes - grid.low_bytes
    count, place_high = STEP // grid.width, _place_for_halves(layout) if grid.halves else _place_high(layout)

    def move_numbers(a, block, source, lane, b):
        for i in range(count):
            number = load_u32(a.renumbered + 4 * value_of(a.numbers, b * count + i, source))
            u8_pointer(block + low_at)[i // 4 * 64 + lane * 4 + i % 4] = number & 255
            place_high(block, number, lane, i)
        if marked:
            word, marks = 0, u8_pointer(block + codes_at + 4 * lane)
            for i in range(4):
                word |= marks_of(a.marks, b * 4 + i, source, even) << (8 * i)
            for i in range(4):
                if in_fours:
                    marks[i] = of_every_other(word >> 4 * i) | of_every_other(word >> (4 * i + 1)) << 4
                else:
                    marks[i] = every_fourth(word >> i)

    return inner(move_numbers, layout, even, inline="always")


def _place_high(layout: Layout) -> Any:
    """A function (block, number, lane, i) for what number i of a lane has above eight bits."""
    grid = layout.grid
    assert grid is not None
    more, high_at = grid.more, layout.block_bytes - layout.code_bytes + grid.marks
    steps = max(more.bit_length() - 1, 0)  # it is a power of two, or 0

    def place_high(block, number, lane, i):
        if more > 0:
            place = lane * 4 + (i & 3)
            word, eight = i >> 2, place >> 3
            byte = (word * more + (eight & (more - 1))) * 8 + (place & 7)
            u8_pointer(block + high_at)[byte] |= (number >> 8) << ((eight >> steps) * more)

    return inner(place_high, layout, inline="always")


def _place_for_halves(layout: Layout) -> Any:
    """`_place_high` for numbers by which halves are looked up, and for a mark of a point."""
    grid = layout.grid
    assert grid is not None
    more, shared, groups, small_bytes = grid.more, grid.mark is None, layout.groups, layout.small_bytes
    marks_at = layout.block_bytes - layout.code_bytes
    high_at, above, vectors = marks_at + grid.marks, (1 << grid.more) - 1, 8 // grid.width

    def place_high(block, number, lane, i):
        place = lane * 4 + i % 4
        bit = (place // 8 * 8 * vectors + i // 4 * 8 + place % 8) * more
        u8_pointer(block + high_at)[bit // 8] |= (number >> 8 & above) << (bit % 8)
        if shared and number & SHARED_MARK:
            if i * groups % 4 == 0:
                u8_pointer(block + i * groups // 4 * small_bytes)[lane % 8] |= 8 << (lane // 8 * 4)
            elif groups == 2:
                u8_pointer(block + marks_at + i // 2 * 2)[lane // 8] |= 1 << (lane % 8)

    return inner(place_high, layout, inline="always")


PIECE_BYTES = PIECE.itemsize


@inner
def value_of(pieces, i, source):
    """Value i of a block."""
    value = 0
    for j in range(PIECES):
        p = u32_pointer(pieces + (i * PIECES + j) * PIECE_BYTES)
        if p[2] == 0:
            break
        value |= (load_u32(source + p[0]) >> p[1] & p[2]) << p[3]
    return value


@inner
def marks_of(pieces, i, source, even):
    """The marks of the i-th 8 values of a block; where their number is even, the eighth is not stored."""
    eight = value_of(pieces, i, source)
    return eight | parity(eight) << 7 if even else eight


@inner
def parity(bits):
    """1 where the number of bits set among eight is odd."""
    bits ^= bits >> 4
    bits ^= bits >> 2
    return (bits ^ bits >> 1) & 1


@inner
def every_fourth(word):
    """Bits 0, 4, 8 and so on of 32, side by side."""
    word &= 0x11111111
    word = (word | word >> 3) & 0x03030303
    word = (word | word >> 6) & 0x000F000F
    return (word | word >> 12) & 0xFF


@inner
def of_every_other(word):
    """Bits 0, 2, 16 and 18 of 32, side by side."""
    word &= 0x00050005
    word = (word | word >> 1) & 0x00030003
    return (word | word >> 14) & 15
