# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Packing: rows of packed blocks to a tile of 16 rows in the layout that products read.

Algorithm: a transposition of 16 rows' blocks to one stream, with bits moved by a map that `probe.py` finds.
Tile:
    task i   rows 16 i to 16 i + 15    | block | block | ...   each as in the file
             tile                      | 16 scales | 16 x 32 codes | 16 x 32 codes | ...
Bound: bytes, of the file and of the packed weights: models load in 0.9 to 2.0 s a GB on two cores
    (bench/results/cpu-load-2026-11-21.json).
Tried: docs/log.md: "Unpacking weights with NumPy on threads does not scale"; "Python's anonymous `mmap` is shared
    memory, which gets no large pages".
Twin: `octavo.formats.codec.dequantize`
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.weights.layout import ROWS, SCALE_BYTES, STEP, MinimumKind, TiledLayout
from octavo.backends.cpu.weights.probe import PIECE
from octavo.backends.cpu.weights.scale_map import SMALL
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import load_u32, store_u32, u8_pointer, u32_pointer
from octavo.jit.simd.code_rows import move_code_row

SMALL_BYTES = SMALL.itemsize


PACK = record(
    "tiles rows k",
    "source row_bytes block_bytes block_words pieces base",
    "d d_row_bytes d_bytes d_flip",
    "minima minima_row_bytes minima_bytes minima_flip",
    "small small_row_bytes small_minima small_minima_row_bytes",
    "odd",
)
"""tiles             made: the layout of rows [rows, k]
source            their packed blocks, `row_bytes` a row
block_bytes       of a block, with `block_words` words of four codes
pieces, base      where the bits of each word lie (`probe.PIECE`), and what words are XORed with
d, minima         floating scales and minima: bytes a row, bytes from one to the next, and what flips the sign
small,
small_minima      scales and minima under those, and bytes a row: a byte each, in the order of K; or, if they are
                  `mapped`, the tables of `scale_map.SMALL` that get them out of the rows
odd               a byte, set to 1 where a floating scale is NaN or Inf
"""


@kernels(PACK)
def pack_kernel(layout: TiledLayout, n_pieces: int, runs: bool, mapped: bool) -> Any:
    """Task i packs rows 16 i to 16 i + 15; missing rows are zero-filled."""
    move_floats, move_codes = _move_floats(layout), _move_codes(layout, n_pieces, runs)
    move_small, two_level, has_min = _move_small(layout, mapped), layout.two_level, layout.minima is not None
    blocks, super_values, tile_rows = layout.super // STEP, layout.super, ROWS
    super_bytes, head_bytes, block_bytes = layout.super_bytes, layout.head_bytes, layout.block_bytes
    small_minima_at, codes_at = ROWS * layout.groups, layout.block_bytes - layout.code_bytes

    def pack(a, task):
        supers = a.k // super_values
        tile = a.tiles + task * supers * super_bytes
        for s in range(supers):
            here = tile + s * super_bytes
            for lane in range(tile_rows):
                row = task * tile_rows + lane
                present = row < a.rows
                source = a.source + row * a.row_bytes
                move_floats(a, here, row, lane, s, present)
                for b in range(blocks):
                    block = here + head_bytes + b * block_bytes
                    if two_level:
                        here_in = source + s * a.block_bytes
                        move_small(block + lane, a.small + row * a.small_row_bytes, here_in, s, b, present)
                        if has_min:
                            table = a.small_minima + row * a.small_minima_row_bytes
                            move_small(block + small_minima_at + lane, table, here_in, s, b, present)
                    move_codes(a, block + codes_at + 4 * lane, source, s * blocks + b, present)

    return pack


def _move_floats(layout: TiledLayout) -> Any:
    """A function (a, super-block, row, lane, s, present) for the floating scales and minima of super-block s."""
    sets, has_min = layout.sets, layout.minima is not None
    d_width, min_width = SCALE_BYTES[layout.scale], SCALE_BYTES[layout.minima] if layout.minima else 0
    min_at, tile_rows = d_width * ROWS * sets, ROWS
    move_float, move_minimum = _move_float(layout.scale), _move_float(layout.minima or layout.scale)

    def move_floats(a, here, row, lane, s, present):
        for i in range(sets):
            place = i * tile_rows + lane
            d = a.d + row * a.d_row_bytes + (s * sets + i) * a.d_bytes
            move_float(here + place * d_width, d, a.d_flip, present, a.odd)
            if has_min:
                minimum = a.minima + row * a.minima_row_bytes + (s * sets + i) * a.minima_bytes
                move_minimum(here + min_at + place * min_width, minimum, a.minima_flip, present, a.odd)

    return inner(move_floats, layout, inline="always")


def _move_small(layout: TiledLayout, mapped: bool) -> Any:
    """A function (to, from, source, s, b, present) for the small scales of block b of super-block s of a row.

    They are bytes at `from`; if `mapped`, that is a table, and `source` is the packed super-block.
    """
    groups, blocks, tile_rows = layout.groups, layout.super // STEP, ROWS

    def move_small(to, values, source, s, b, present):
        for g in range(groups):
            value = 0
            if present and mapped:
                value = look_up_small(values + (b * groups + g) * SMALL_BYTES, source)
            elif present:
                value = u8_pointer(values)[(s * blocks + b) * groups + g]
            u8_pointer(to)[tile_rows * g] = value

    return inner(move_small, layout, mapped, inline="always")


def _move_codes(layout: TiledLayout, n_pieces: int, runs: bool) -> Any:
    """A function (a, to, source, block, present) for the 32 codes of a block of a row that begins at `source`."""
    word_bytes, bits, in_runs = n_pieces * PIECE.itemsize, layout.bits, int(runs)

    def move_codes(a, to, source, block, present):
        if present:
            first = block * 8
            i = source + first // a.block_words * a.block_bytes
            move_code_row(to, i, a.pieces + first % a.block_words * word_bytes, a.base, bits, n_pieces, in_runs)
        else:
            for word in range(bits):
                store_u32(to + 64 * word, 0)

    return inner(move_codes, layout, n_pieces, runs, inline="always")


@inner
def look_up_small(entry, block):
    """A small scale of the block at an address, by an entry of `scale_map.SMALL`."""
    places = u32_pointer(entry)
    first, second = u8_pointer(entry + 8), u8_pointer(entry + 264)
    return first[u8_pointer(block)[places[0]]] ^ second[u8_pointer(block)[places[1]]]


def _move_float(kind: MinimumKind) -> Any:
    """A function that copies a scale, its sign flipped, and notes if it is NaN or Inf; zeros if there is none."""
    is_byte, is_half = kind in ("exponent", "zero"), kind == "f16"  # text compared in a kernel takes seconds to compile

    def move_float(to, source, flip, present, odd):
        if is_byte:
            u8_pointer(to)[0] = u8_pointer(source)[0] if present else 0
        elif is_half:
            bits = (u8_pointer(source)[0] | u8_pointer(source)[1] << 8) ^ flip if present else 0
            u8_pointer(to)[0], u8_pointer(to)[1] = bits & 255, bits >> 8
            if bits & 0x7C00 == 0x7C00:
                u8_pointer(odd)[0] = 1
        else:
            bits = load_u32(source) if present else 0
            store_u32(to, bits)
            if bits & 0x7F800000 == 0x7F800000:
                u8_pointer(odd)[0] = 1

    return inner(move_float, kind)
