# mypy: ignore-errors
"""Rotation of heads, as `formats.rotation` defines it, with its order of sums.

Algorithm: random signs, then the fast Walsh-Hadamard transform, as QuaRot rotates keys and queries (arXiv 2404.00456).
Tile:
    program (token, head)    x [BLOCK]  -> signs -> butterflies of distance 1, 2, 4, ... -> times BLOCK^-1/2
                             |a b|c d|e f|g h|  ->  |a+b a-b|c+d c-d| ...  ->  |a+b+c+d ...
Bound: latency: a token's heads are a few KiB; not measured by itself.
Tried: nothing else.
Twin: `octavo.formats.rotation.rotate`, `octavo.formats.rotation.rotate_back`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _signs(first, SIZE: tl.constexpr):
    """1 or -1 [SIZE]: -1 to the number of times that i, from `first` on and below 2^16, has two ones side by side in
    binary."""
    at = first + tl.arange(0, SIZE)
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
    """x [ROWS, SIZE] rotated; heads have DIM values, in blocks of up to 512, and then zeros."""
    return _mixed(x * _signs(0, SIZE)[None, :], ROWS, SIZE, DIM)


@triton.jit
def rotate_back(x, ROWS: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, first=0):
    """What `rotate` makes x [ROWS, SIZE] of; x may be whole blocks of a head, from value `first` on."""
    return _mixed(x, ROWS, SIZE, DIM) * _signs(first, SIZE)[None, :]


@triton.jit
def rotate_heads_kernel(
    x, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, BACK: tl.constexpr, PDL: tl.constexpr
):
    """Program (token, head): out [T, heads * SIZE] = the heads of x rotated, or (BACK) rotated back; it may be x.

    SIZE is the number of values, the first of heads that have DIM, BLOCK the power of two that holds them.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, head, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK)
    value = tl.load(x.data + token * x.stride + head * SIZE + at, mask=at < SIZE, other=0.0)[None, :]  # [1, BLOCK]
    value = rotate_back(value, 1, BLOCK, DIM) if BACK else rotate(value, 1, BLOCK, DIM)
    tl.store(out.data + token * out.stride + head * SIZE + at[None, :], value, mask=(at < SIZE)[None, :])
