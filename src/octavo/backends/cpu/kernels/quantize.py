"""Activations to 8 bits: what a quantized product reads. Alone, or as the last step of a norm or of SwiGLU.

Tokens go in tiles of 8 (the last tile has the rest). A block of a tile of n tokens x 32 values is n x 32 codes, then n
scales d, n sums d * sum(codes), and n such sums of the first 16, float32; blocks of a tile follow one another in K.
q = round(x / d), d = max|x| / 127.
"""

from __future__ import annotations

from typing import Any, Literal

from octavo.backends.cpu.compile import kernels
from octavo.backends.cpu.kernels.math import rms_factor, silu
from octavo.backends.cpu.simd import (
    absolute,
    arg,
    arg_f32,
    f32_pointer,
    load_f32x16,
    max_lanes,
    maximum,
    mul,
    quantize16,
    splat,
)  # fmt: skip

Source = Literal["values", "rms_norm", "swiglu"]


@kernels
def quantize_kernel(source: Source, tile: int) -> Any:
    """Task t quantizes token t, in tiles of `tile`.

    Arguments: out, tokens, k, x, x stride, then weight and eps (norm), or up and its stride. Strides are in bytes.
    """
    normed, gated = source == "rms_norm", source == "swiglu"

    def quantize(args, task):
        tokens, k = arg(args, 1), arg(args, 2)
        first = task // tile * tile
        n = min(tile, tokens - first)
        out = arg(args, 0) + first * (k // 32 * 44)
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
            largest = max_lanes(maximum(absolute(low), absolute(high)))
            d = largest / 127.0
            inverse = splat(1.0 / d if d > 0 else 0.0)
            base = out + block * n * 44
            codes = base + (task - first) * 32
            half = quantize16(codes, mul(low, inverse))
            whole = half + quantize16(codes + 16, mul(high, inverse))
            floats = f32_pointer(base + n * 32 + (task - first) * 4)
            floats[0] = d
            floats[n] = d * whole
            floats[2 * n] = d * half

    return quantize
