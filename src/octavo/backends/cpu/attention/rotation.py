# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Rotation of heads, as `formats.rotation` defines it, with its order of sums."""

from __future__ import annotations

from numba import float32

from octavo.jit.compile import exact
from octavo.jit.simd import f32_pointer


@exact
def sign_of(i):
    """1 or -1: -1 to the number of times that i, below 2^16, has two ones side by side in binary."""
    pairs = i & (i >> 1)
    pairs ^= pairs >> 8
    pairs ^= pairs >> 4
    pairs ^= pairs >> 2
    pairs ^= pairs >> 1
    return float32(1 - 2 * (pairs & 1))


@exact
def mix(y, dim, block):
    """`dim` floats at y times a Hadamard matrix over its square root, in blocks of `block`."""
    ys, apart = f32_pointer(y), 1
    while apart < block:
        for i in range(0, dim, 2 * apart):
            for j in range(i, i + apart):
                low, high = ys[j], ys[j + apart]
                ys[j], ys[j + apart] = low + high, low - high
        apart *= 2
    scale = float32(block**-0.5)
    for i in range(dim):
        ys[i] *= scale


@exact
def rotate(y, x, dim):
    """y [dim] = x rotated."""
    ys, xs = f32_pointer(y), f32_pointer(x)
    for i in range(dim):
        ys[i] = xs[i] * sign_of(i)
    mix(y, dim, dim & -dim)


@exact
def rotate_back(y, dim):
    """y [dim] as it was before it was rotated."""
    rotate_part_back(y, 0, dim, dim)


@exact
def rotate_part_back(y, start, size, dim):
    """y [size], values `start` on of `dim`, as they were before all were rotated: whole blocks."""
    mix(y, size, dim & -dim)
    ys = f32_pointer(y)
    for i in range(size):
        ys[i] *= sign_of(start + i)
