# mypy: ignore-errors
"""Numbers to 8 bits, int8 or fp8, by scales of rows, of groups in a row, or of all.

Algorithm: absmax quantization (round to nearest, ties to even), or with zero points; fp8 by the bits of float32, as
    older GPUs have no instruction for it.
Tile:
    program (row, group)    `size` values, B at a time: max |x|, or min and max -> scale -> codes
Bound: bytes, a row read twice; not measured by itself.
Tried: nothing else.
Twin: `octavo.ops.definition.quantize_int8`, `octavo.ops.definition.quantize_int8_zero`,
    `octavo.ops.definition.quantize_fp8`

Results are exact as written, so the same on every device.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it and taking it away rounds to the nearest integer, ties to even


@triton.jit
def fp8_bits(value, E5M2: tl.constexpr):
    """The byte of e4m3 or e5m2 nearest to a float32 within its range, ties to even.

    A mantissa is rounded in its place, which may carry into the exponent; below the smallest normal number, 2^LEAST,
    steps are equal.
    """
    KEPT: tl.constexpr = 2 if E5M2 else 3
    LEAST: tl.constexpr = -14 if E5M2 else -6
    DROPPED: tl.constexpr = 23 - KEPT
    BIAS: tl.constexpr = (127 - 1 + LEAST) << KEPT
    bits = value.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + ((1 << (DROPPED - 1)) - 1) + ((magnitude >> DROPPED) & 1)) >> DROPPED) - BIAS
    small = (tl.minimum(tl.abs(value), 1.0) * (1 << (KEPT - LEAST)) + ROUND - ROUND).to(tl.int32)
    code = tl.where(magnitude < ((127 + LEAST) << 23), small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.int8)


@triton.jit
def quantize8_kernel(
    x, x_stride, codes, scales, zeros, k, size, rows, top, KIND: tl.constexpr, GIVEN: tl.constexpr, B: tl.constexpr
):
    """Program (row, group): codes int8 [M, K] of `size` values of a row of x [M, K], any float type.

    scales  float32 [M / rows, groups]: each is that of `rows` rows
    zeros   int32 like the scales: zero points, with KIND "zero"
    KIND    "int8", the largest magnitude `top` steps; "zero", int8 with a zero point; "e4m3" or "e5m2", whose bits the
            codes are
    GIVEN   the scales are known; otherwise they are found here and stored
    """
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = row // rows * tl.num_programs(1) + group
    first = group * size
    end = tl.minimum(first + size, k)
    zero = 0.0
    if GIVEN:
        scale = tl.load(scales + place)
        if KIND == "zero":
            zero = tl.load(zeros + place).to(tl.float32) + 128.0
    else:
        low = tl.zeros((B,), tl.float32)
        high = tl.zeros((B,), tl.float32)
        for start in range(first, end, B):
            at = start + tl.arange(0, B)
            value = tl.load(x + row * x_stride + at, mask=at < end, other=0.0).to(tl.float32)  # [B]
            low, high = tl.minimum(low, value), tl.maximum(high, value)
        least, most = tl.min(low), tl.max(high)
        if KIND == "zero":
            scale = tl.div_rn(most, 255.0) - tl.div_rn(least, 255.0)
            zero = tl.div_rn(-least, tl.where(scale > 0, scale, 1.0)) + ROUND - ROUND
            zero = tl.minimum(tl.maximum(tl.where(scale > 0, zero, 0.0), 0.0), 255.0)
            tl.store(zeros + place, zero.to(tl.int32) - 128)
        else:
            scale = tl.div_rn(tl.maximum(-least, most), top)
        tl.store(scales + place, scale)
    divisor = tl.where(scale > 0, scale, 1.0)
    for start in range(first, end, B):
        at = start + tl.arange(0, B)
        value = tl.load(x + row * x_stride + at, mask=at < end, other=0.0).to(tl.float32)  # [B]
        value = tl.where(scale > 0, tl.div_rn(value, divisor), 0.0)
        if KIND == "zero":
            value = value + ROUND - ROUND
            code = (tl.minimum(tl.maximum(value + zero, 0.0), 255.0) - 128.0).to(tl.int8)
        else:
            value = tl.minimum(tl.maximum(value, -top), top)
            if KIND == "int8":
                code = (value + ROUND - ROUND).to(tl.int8)
            else:
                code = fp8_bits(value, KIND == "e5m2")
        tl.store(codes + row * k + at, code, mask=at < end)
