"""The inner loop of packing: codes of 16 rows x 32 values to `bits` x 64 bytes, as `simd.load_codes` reads them."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def interleave_codes(q, out, bits, supers, blocks, super_bytes, head_bytes, block_bytes, codes_at):
    """q: uint32 [16 tiles, k / 4], four codes each; out: uint8 [tiles, bytes of a tile]."""
    low = bits if bits in (8, 4, 2) else (2 if bits == 3 else 4)
    for tile in range(out.shape[0]):
        words = out[tile].view(np.uint32)
        for s in range(supers):
            for b in range(blocks):
                at = (s * super_bytes + head_bytes + b * block_bytes + codes_at) // 4
                for r in range(16):
                    four = q[tile * 16 + r, (s * blocks + b) * 8 : (s * blocks + b) * 8 + 8]
                    put(words, at + r, four, low, 0)
                    if bits != low:
                        put(words, at + r + 16 * low, four, bits - low, low)


@njit(cache=True, nogil=True, inline="always")
def put(words, at, four, width, shift):
    """`width` bits, from bit `shift` of each code on, of 8 x 4 codes to `width` words 64 bytes apart."""
    mask = np.uint32(((1 << width) - 1) * 0x01010101)
    for w in range(width):
        word = np.uint32(0)
        for j in range(w, 8, width):
            word |= ((four[j] >> np.uint32(shift)) & mask) << np.uint32(width * (j // width))
        words[at + 16 * w] = word
