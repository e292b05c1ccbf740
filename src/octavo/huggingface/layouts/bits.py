"""Codes of a few bits out of words: little-endian streams of bits, the lowest bits of the first word first."""

from __future__ import annotations

import numpy as np

from octavo.formats.group import widths
from octavo.formats.spec import U8, AnyArray


def codes_of(words: AnyArray, bits: int) -> U8:
    """Codes uint8 [..., W * 32 / bits] of words of 32 bits [..., W], or of bytes [..., B], of `bits` each, 1 to 8.

    A code may lie in two words. The last bits of a row that make no code are left out.
    """
    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return raw
    if bits in (1, 2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = raw[..., None] >> shifts & np.uint8((1 << bits) - 1)
        return codes.reshape(*raw.shape[:-1], -1)
    count = raw.shape[-1] * 8 // bits
    single = np.unpackbits(raw, axis=-1, count=count * bits, bitorder="little").reshape(*raw.shape[:-1], count, bits)
    return np.packbits(single, axis=-1, bitorder="little")[..., 0]


def planar_codes_of(words: AnyArray, bits: int) -> U8:
    """Codes uint8 [..., W * 32 / bits] of words of 32 bits [..., W], of `bits` each, 2 to 8, in planes.

    Of each 32 codes the lower 4 bits come first, then the next 2, then 1, as far as there are any, each as a stream.
    """
    blocks, taken = words.reshape(*words.shape[:-1], -1, bits), 0
    codes: U8 = np.zeros((*blocks.shape[:-1], 32), np.uint8)
    for width in widths(bits):
        codes |= codes_of(blocks[..., taken : taken + width], width) << np.uint8(taken)
        taken += width
    return codes.reshape(*words.shape[:-1], -1)
