"""The inner loop of packing: codes of 16 rows x 32 values to `bits` x 64 bytes, as `simd.load_codes` reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends.cpu.compile import host_functions, inner
from octavo.backends.cpu.simd import load_u32, store_u32


@host_functions
def interleave_codes(bits: int) -> Any:
    """A function that writes the codes of planes: see `interleave` in it."""
    put = _put(bits)

    def interleave(q, out, tile_bytes, supers, blocks, super_bytes, codes_at, block_bytes, tiles):
        """q: uint32 [16 tiles, k / 4], four codes each, out: address of the tiles."""
        words = supers * blocks * 8
        for tile in range(tiles):
            for s in range(supers):
                for b in range(blocks):
                    at = out + tile * tile_bytes + s * super_bytes + codes_at + b * block_bytes
                    for r in range(16):
                        i = q + ((tile * 16 + r) * words + (s * blocks + b) * 8) * 4
                        put(at + 4 * r, load_u32(i), load_u32(i + 4), load_u32(i + 8), load_u32(i + 12),
                            load_u32(i + 16), load_u32(i + 20), load_u32(i + 24), load_u32(i + 28))  # fmt: skip

    return interleave


@host_functions
def gather_codes(bits: int, n_pieces: int) -> Any:
    """A function that writes codes straight from packed blocks, through a `probe.CodeMap`."""
    put = _put(bits)
    two = n_pieces == 2

    def word(block, pieces, w):
        p = pieces[w * n_pieces]
        v = (load_u32(block + p.offset) >> p.right & p.mask) << p.left
        if two:
            p = pieces[w * n_pieces + 1]
            v |= (load_u32(block + p.offset) >> p.right & p.mask) << p.left
        return v

    word = inner(word, bits, n_pieces, inline="always")

    def gather(rows, row_bytes, n_rows, block_bytes_in, words, pieces, base, out, tile_bytes, supers, blocks,
               super_bytes, codes_at, block_bytes, tiles):  # fmt: skip
        """rows: address of n_rows packed rows; words: code words in a packed block; out: address of the tiles."""
        for tile in range(tiles):
            for r in range(min(16, n_rows - tile * 16)):
                row = rows + (tile * 16 + r) * row_bytes
                for s in range(supers):
                    for b in range(blocks):
                        at = out + tile * tile_bytes + s * super_bytes + codes_at + b * block_bytes + 4 * r
                        first = (s * blocks + b) * 8
                        i = row + first // words * block_bytes_in
                        w = first % words
                        put(at, word(i, pieces, w) ^ base, word(i, pieces, w + 1) ^ base,
                            word(i, pieces, w + 2) ^ base, word(i, pieces, w + 3) ^ base,
                            word(i, pieces, w + 4) ^ base, word(i, pieces, w + 5) ^ base,
                            word(i, pieces, w + 6) ^ base, word(i, pieces, w + 7) ^ base)  # fmt: skip

    return gather


def _put(bits: int) -> Any:
    """A function that spreads 8 words of four codes over `bits` words 64 bytes apart."""
    low = bits if bits in (8, 4, 2) else 2 if bits == 3 else 4
    high = bits - low
    u32 = np.uint32

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
        elif low == 4:
            m, s = u32(0x0F0F0F0F), u32(4)
            store_u32(at, (v0 & m) | (v4 & m) << s)
            store_u32(at + 64, (v1 & m) | (v5 & m) << s)
            store_u32(at + 128, (v2 & m) | (v6 & m) << s)
            store_u32(at + 192, (v3 & m) | (v7 & m) << s)
        else:
            m = u32(0x03030303)
            store_u32(at, (v0 & m) | (v2 & m) << u32(2) | (v4 & m) << u32(4) | (v6 & m) << u32(6))
            store_u32(at + 64, (v1 & m) | (v3 & m) << u32(2) | (v5 & m) << u32(4) | (v7 & m) << u32(6))
        if high == 1:
            m, s = u32(0x01010101), u32(low)
            word = (v0 >> s & m) | (v1 >> s & m) << u32(1) | (v2 >> s & m) << u32(2) | (v3 >> s & m) << u32(3)
            word |= (v4 >> s & m) << u32(4) | (v5 >> s & m) << u32(5) | (v6 >> s & m) << u32(6)
            store_u32(at + 64 * low, word | (v7 >> s & m) << u32(7))
        elif high == 2:
            m, s = u32(0x03030303), u32(low)
            even = (v0 >> s & m) | (v2 >> s & m) << u32(2) | (v4 >> s & m) << u32(4) | (v6 >> s & m) << u32(6)
            odd = (v1 >> s & m) | (v3 >> s & m) << u32(2) | (v5 >> s & m) << u32(4) | (v7 >> s & m) << u32(6)
            store_u32(at + 64 * low, even)
            store_u32(at + 64 * low + 64, odd)

    return inner(put, bits, inline="always")
