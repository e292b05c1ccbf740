# mypy: ignore-errors
"""Digits to the base 3 made bytes in registers; `layout` says how they lie.

Four bytes are two words of two numbers below 2^16, even and odd bytes. 3 times what is left of a number has the next
digit above its low byte, for two numbers at once, and a byte permutation takes those of both words.

`load_piece` and `codes_of_piece` are for kernels whose threads hold a piece each: a lane's chunks of both tiles of a
block. `digits_of_words` is for those that Triton distributes words of codes for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.weights.loads import load_or_zero

EACH = tl.constexpr(0x00FF00FF)


@triton.jit
def _split(word):
    """Even and odd bytes of a word, each as the low half of 16 bits."""
    return word & EACH, (word >> 8) & EACH


@triton.jit
def _digit(even, odd, ASM: tl.constexpr):
    """The next digit of each of four numbers, as the bytes of a word."""
    even, odd = even * 3, odd * 3
    if ASM == "ptx":
        word = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x7351;", "=r,r,r", [even, odd], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        word = ((even >> 8) & EACH) | (odd & -0x00FF0100)
    return word


@triton.jit
def _power(count):
    """3^count, 0 to 4."""
    return tl.where(count == 4, 81, (0x1B090301 >> (8 * count)) & 255)


@triton.jit
def load_piece(w, row, piece, mask):
    """The words of a piece, that of lane piece % 4 of block piece // 4 of each row in `row`: its own, and the last."""
    BLOCKS: tl.constexpr = w.layout.kp // 256
    own = w.digits + row * (13 * BLOCKS) + piece
    out = ()
    for j in tl.static_range(3):
        out = out + (load_or_zero(own + j * 4 * BLOCKS, mask),)  # noqa: RUF005
    last = load_or_zero(w.digits + row * (13 * BLOCKS) + 12 * BLOCKS + piece // 4, mask)
    return out + (last,)  # noqa: RUF005


@triton.jit
def codes_of_piece(loaded, t, FIRST: tl.constexpr, ASM: tl.constexpr):
    """Four words of codes, from word FIRST of 16 on, of what `load_piece` has of lane t of a block."""
    words = ()
    for s in tl.static_range(FIRST, FIRST + 4):
        even, odd = _split(loaded[s // 5])
        if s == 15:
            power = _power(t)
            even, odd = (even * power) & EACH, (odd * power) & EACH
        else:
            for _ in tl.static_range(s % 5):
                even, odd = (even * 3) & EACH, (odd * 3) & EACH
        words = words + (_digit(even, odd, ASM),)  # noqa: RUF005
    return words


@triton.jit
def _word(w, row, block, t, s, mask, ASM: tl.constexpr):
    """Word s of 16 of lane t of a block."""
    BLOCKS: tl.constexpr = w.layout.kp // 256
    last = s == 15
    place = tl.where(last, 12 * BLOCKS + block, s // 5 * (4 * BLOCKS) + block * 4 + t)
    even, odd = _split(load_or_zero(w.digits + row * (13 * BLOCKS) + place, mask))
    power = _power(tl.where(last, t, s % 5))
    return _digit((even * power) & EACH, (odd * power) & EACH, ASM)


@triton.jit
def digits_of_words(w, row, word, mask, ASM: tl.constexpr):
    """Low and high codes 4 * (word % 16) and on of tile word // 16 of `row`, as the bytes of two words."""
    tile, rest = word // 16, word % 16
    s = tile % 2 * 8 + rest % 4
    low = _word(w, row, tile // 2, rest // 4, s, mask, ASM)
    return low, _word(w, row, tile // 2, rest // 4, s + 4, mask, ASM)
