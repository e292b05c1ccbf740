"""Rotation of heads, as `formats.rotation` defines it, with its order of sums."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _signs(SIZE: tl.constexpr):
    """1 or -1 [SIZE]: -1 to the number of times that i, below 2^16, has two ones side by side in binary."""
    at = tl.arange(0, SIZE)
    pairs = at & (at >> 1)
    pairs ^= pairs >> 8
    pairs ^= pairs >> 4
    pairs ^= pairs >> 2
    pairs ^= pairs >> 1
    return (1 - 2 * (pairs & 1)).to(tl.float32)


@triton.jit
def _added_and_taken(x, ROWS: tl.constexpr, SIZE: tl.constexpr, APART: tl.constexpr):
    """Of x [ROWS, SIZE], the sum and the difference of each two that are APART from each other, in their places."""
    pairs = tl.reshape(x, (ROWS, SIZE // (2 * APART), 2, APART))
    low, high = tl.split(tl.permute(pairs, (0, 1, 3, 2)))  # [ROWS, SIZE / (2 * APART), APART] each
    both = tl.join(low + high, low - high)
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), (ROWS, SIZE))


@triton.jit
def _mixed(x, ROWS: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr):
    """x [ROWS, SIZE] times a Hadamard matrix over its square root, in blocks; heads have DIM values, then zeros."""
    BLOCK: tl.constexpr = DIM & -DIM
    for i in tl.static_range(9):
        if (1 << i) < BLOCK:
            x = _added_and_taken(x, ROWS, SIZE, 1 << i)
    return x * BLOCK**-0.5


@triton.jit
def rotate(x, ROWS: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr):
    """x [ROWS, SIZE] rotated; heads have DIM values, up to 512, and then zeros."""
    return _mixed(x * _signs(SIZE)[None, :], ROWS, SIZE, DIM)


@triton.jit
def rotate_back(x, ROWS: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr):
    """What `rotate` makes x [ROWS, SIZE] of."""
    return _mixed(x, ROWS, SIZE, DIM) * _signs(SIZE)[None, :]
