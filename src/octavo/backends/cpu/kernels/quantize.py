"""Activations to 8 bits: what a quantized product reads. Alone, or as the last step of a norm or of SwiGLU.

q = round(x / d), d = max|x| / 127, for each 32 values. Tokens go in tiles of `TILES[0]`, and the rest in smaller ones.
A block of a tile of n tokens x 32 values is

    n x 32 codes, int8
    n scales d, n sums d * sum(codes), n such sums of the first 16, float32
    n times -128 * sum(codes), and n each of the first and of the last 16, int32

and blocks of a tile follow one another in K. The last three are where dot products with codes of offset 128 begin.
"""

from __future__ import annotations

from typing import Any, Literal

from octavo.backends.cpu import host
from octavo.backends.cpu.compile import kernels
from octavo.backends.cpu.kernels.math import rms_factor, silu
from octavo.backends.cpu.simd import (
    arg,
    arg_f32,
    f32_pointer,
    i32_pointer,
    largest_magnitude,
    load_f32x16,
    mul,
    quantize16,
    splat,
)  # fmt: skip

Source = Literal["values", "rms_norm", "swiglu"]

TOKEN_BYTES = 32 + 6 * 4
"""Bytes of a token in a block of activations."""

TILES = (16, 8, 4, 2, 1) if host.level() == "avx512vnni" else (4, 2, 1)
"""Tokens of a tile: as many as the registers hold sums for, then halves of that for the rest."""


@kernels
def quantize_kernel(source: Source, tile: int) -> Any:
    """Task t quantizes token t, in tiles of `tile`.

    Arguments: out, tokens, k, x, x stride, then weight and eps (norm), or up and its stride. Strides are in bytes.
    """
    token_bytes = TOKEN_BYTES
    normed, gated = source == "rms_norm", source == "swiglu"

    def quantize(args, task):
        tokens, k = arg(args, 1), arg(args, 2)
        first, n = task // tile * tile, tile
        while first + n > tokens:  # the tile of the rest that this token is in
            n //= 2
            if first + n <= tokens and task >= first + n:
                first += n
        out = arg(args, 0) + first * (k // 32 * token_bytes)
        x = arg(args, 3) + task * arg(args, 4)
        other = arg(args, 5) + (task * arg(args, 6) if gated else 0)
        factor = splat(rms_factor(x, k, arg_f32(args, 6)) if normed else 1.0)
        for block in range(k // 32):
            at = block * 128
            low, high = load_f32x16(x + at), load_f32x16(x + at + 64)
            if normed:
                low = mul(mul(low, factor), load_f32x16(other + at))
                high = mul(mul(high, factor), load_f32x16(other + at + 64))
            if gated:
                low = mul(silu(low), load_f32x16(other + at))
                high = mul(silu(high), load_f32x16(other + at + 64))
            largest = largest_magnitude(low, high)
            d = largest / 127.0
            inverse = splat(1.0 / d if d > 0 else 0.0)
            base = out + block * n * token_bytes
            codes = base + (task - first) * 32
            half = quantize16(codes, mul(low, inverse))
            whole = half + quantize16(codes + 16, mul(high, inverse))
            floats = f32_pointer(base + n * 32 + (task - first) * 4)
            floats[0] = d
            floats[n] = d * whole
            floats[2 * n] = d * half
            begins = i32_pointer(base + n * 44 + (task - first) * 4)
            begins[0] = -128 * int(whole)
            begins[n] = -128 * int(half)
            begins[2 * n] = -128 * int(whole - half)

    return quantize
