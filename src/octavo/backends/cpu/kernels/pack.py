"""Packing: rows of packed blocks to a tile of 16 rows in the layout that products read."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.layout import ROWS, SCALE_BYTES, STEP, Layout, ScaleKind
from octavo.backends.cpu.scale_map import SMALL
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import arg, load_u32, store_u32, u8_pointer, u32_pointer

SMALL_BYTES = SMALL.itemsize


@kernels
def pack_kernel(layout: Layout, n_pieces: int, mapped: bool) -> Any:
    """Task i packs rows 16 i to 16 i + 15; rows that there are not become zeros.

    Arguments: tiles, rows, bytes of a row, number of rows, values of a row, bytes of a block of codes, code words in
    it, pieces of each word (`probe.PIECE`), what words are XORed with; then of d and of the minima: address, bytes a
    row, bytes from one to the next, what flips the sign; then of the small scales and the small minima: address and
    bytes a row. Those are bytes in the order of K or, if `mapped`, the tables of `scale_map.SMALL` that get them out of
    the rows. Last, a byte that is set where a floating scale is NaN or Inf.
    """
    word, put = _word(n_pieces), _put(layout.bits)
    sets, groups, blocks, super_values = layout.sets, layout.groups, layout.super // STEP, layout.super
    super_bytes, head_bytes, block_bytes = layout.super_bytes, layout.head_bytes, layout.block_bytes
    codes_at = head_bytes + block_bytes - layout.code_bytes
    d_width = SCALE_BYTES[layout.scale]
    min_width = SCALE_BYTES[layout.minima] if layout.minima else 0
    two_level, has_min = layout.two_level, layout.minima is not None
    min_at, tile_rows = d_width * ROWS * sets, ROWS
    small_min_at, planes = ROWS * groups, 2 if layout.minima else 1
    move_float = _move_float(layout.scale)

    def pack(args, task):
        n_rows, supers = arg(args, 3), arg(args, 4) // super_values
        block_in, words, base = arg(args, 5), arg(args, 6), arg(args, 8)
        tile, odd = arg(args, 0) + task * supers * super_bytes, arg(args, 21)
        for s in range(supers):
            here = tile + s * super_bytes
            for r in range(tile_rows):
                row = task * tile_rows + r
                present = row < n_rows
                source = arg(args, 1) + row * arg(args, 2)
                for i in range(sets):
                    at = arg(args, 9) + row * arg(args, 10) + (s * sets + i) * arg(args, 11)
                    move_float(here + (i * 16 + r) * d_width, at, arg(args, 12), present, odd)
                    if has_min:
                        at = arg(args, 13) + row * arg(args, 14) + (s * sets + i) * arg(args, 15)
                        move_float(here + min_at + (i * 16 + r) * min_width, at, arg(args, 16), present, odd)
                for b in range(blocks):
                    if two_level:
                        small = here + head_bytes + b * block_bytes + r
                        for plane in range(planes):
                            for g in range(groups):
                                value = 0
                                if present and mapped:
                                    value = look_up_small(arg(args, 17 + 2 * plane) + (b * groups + g) * SMALL_BYTES,
                                                          source + s * block_in)  # fmt: skip
                                elif present:
                                    at = arg(args, 17 + 2 * plane) + row * arg(args, 18 + 2 * plane)
                                    value = u8_pointer(at)[(s * blocks + b) * groups + g]
                                u8_pointer(small + plane * small_min_at)[16 * g] = value
                    at = here + codes_at + b * block_bytes + 4 * r
                    if present:
                        first = (s * blocks + b) * 8
                        i = source + first // words * block_in
                        p = arg(args, 7) + first % words * (16 * n_pieces)
                        put(at, word(i, p, 0, base), word(i, p, 1, base), word(i, p, 2, base), word(i, p, 3, base),
                            word(i, p, 4, base), word(i, p, 5, base), word(i, p, 6, base),
                            word(i, p, 7, base))  # fmt: skip
                    else:
                        put(at, 0, 0, 0, 0, 0, 0, 0, 0)

    return pack


@inner
def look_up_small(entry, block):
    """A small scale of the block at an address, by an entry of `scale_map.SMALL`."""
    places = u32_pointer(entry)
    first, second = u8_pointer(entry + 8), u8_pointer(entry + 264)
    return first[u8_pointer(block)[places[0]]] ^ second[u8_pointer(block)[places[1]]]


def _move_float(kind: ScaleKind) -> Any:
    """A function that copies a scale, its sign flipped, and notes if it is NaN or Inf; zeros if there is none."""

    def move_float(to, source, flip, present, odd):
        if kind == "exponent":
            u8_pointer(to)[0] = u8_pointer(source)[0] if present else 0
        elif kind == "f16":
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


def _word(n_pieces: int) -> Any:
    """A function (block, pieces of the first word, w, base) -> code word w."""

    def word(block, pieces, w, base):
        v = 0
        for i in range(n_pieces):
            p = u32_pointer(pieces + (w * n_pieces + i) * 16)
            v |= ((load_u32(block + p[0]) >> p[1]) & p[2]) << p[3]
        return v ^ base

    return inner(word, n_pieces)


def _put(bits: int) -> Any:
    """A function that spreads 8 words of four codes over `bits` words 64 bytes apart (see `simd.load_codes`)."""
    low = bits if bits in (8, 6, 4, 2) else bits - 1

    def put(at, v0, v1, v2, v3, v4, v5, v6, v7):
        if bits == 8:
            store_u32(at, v0)
            store_u32(at + 64, v1)
            store_u32(at + 128, v2)
            store_u32(at + 192, v3)
            store_u32(at + 256, v4)
            store_u32(at + 320, v5)
            store_u32(at + 384, v6)
            store_u32(at + 448, v7)
        elif bits == 6:
            m = 0x03030303
            store_u32(at, v0 << 2 | (v3 >> 4 & m))
            store_u32(at + 64, v1 << 2 | (v3 >> 2 & m))
            store_u32(at + 128, v2 << 2 | (v3 & m))
            store_u32(at + 192, v4 << 2 | (v7 >> 4 & m))
            store_u32(at + 256, v5 << 2 | (v7 >> 2 & m))
            store_u32(at + 320, v6 << 2 | (v7 & m))
        elif low == 4:
            m = 0x0F0F0F0F
            store_u32(at, (v0 & m) | (v4 & m) << 4)
            store_u32(at + 64, (v1 & m) | (v5 & m) << 4)
            store_u32(at + 128, (v2 & m) | (v6 & m) << 4)
            store_u32(at + 192, (v3 & m) | (v7 & m) << 4)
        else:
            m = 0x03030303
            store_u32(at, (v0 & m) | (v2 & m) << 2 | (v4 & m) << 4 | (v6 & m) << 6)
            store_u32(at + 64, (v1 & m) | (v3 & m) << 2 | (v5 & m) << 4 | (v7 & m) << 6)
        if bits != low:
            m = 0x01010101
            word = (v0 >> low & m) | (v1 >> low & m) << 1 | (v2 >> low & m) << 2 | (v3 >> low & m) << 3
            word |= (v4 >> low & m) << 4 | (v5 >> low & m) << 5 | (v6 >> low & m) << 6
            store_u32(at + 64 * low, word | (v7 >> low & m) << 7)

    return inner(put, bits)
