# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Activations with a scale for each token: int8 codes as `int8_gemm` reads them, or values rounded to e4m3.

Algorithm: absmax quantization per token or per group; static scales.
Tile:
    task t   a token: | 16 | 16 | ...  -> max |x| -> scale; again -> codes (once only where the scale is given)
Bound: instructions; not measured by itself.
Tried: nothing else.
Twin: `octavo.ops.definition.quantize_int8`, `octavo.backends.reference.ops.quantize`

Alone, or as the last step of a norm or a pointwise op. Codes are round(x / scale), halves to even, with the scale
max|x| / 127; or the scale is given, values are read once, and what is beyond the codes is cut off.
`quantize_groups_kernel` makes those of `octavo.ops.definition`, to the bit.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.backends.cpu.matmul.quantize_kernel import Source, expression_of
from octavo.backends.cpu.matmul.w8a8.int8_kernel import NARROW, WIDE
from octavo.backends.cpu.pointwise.math import rms_factor
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add_exact,
    div,
    div_exact,
    f32_pointer,
    fma,
    i8_pointer,
    i32_pointer,
    largest_magnitude,
    max_lanes,
    maximum,
    minimum,
    mul,
    mul_exact,
    quantize16,
    round16,
    round_e4m3,
    splat,
    stack,
    sub,
    sum_lanes,
)
from octavo.jit.simd.lanes import F32_KIND, load_lanes, store_lanes

CHUNK = 64
"""Codes of a token that lie together."""


QUANTIZE_TOKEN = record(
    "codes wide_tokens tiled", "scales begins_8 begins_4", "k x x_stride", "other other_stride eps:f4", "given:f4 least"
)
"""codes                tiles of n tokens [K / 64, n, 64], K filled up with zeros
wide_tokens          tokens in wide tiles; the others are in narrow ones
tiled                0: a token is a tile
scales               float32, made: the scale of each token
begins_8, begins_4   int32, made: -128 and -8 times the sum of each token's codes
x, x_stride          a token's k values, and bytes from one token's to the next one's
other, other_stride  the norm's weight, with its `eps`; or the second input of a pointwise op, a row a token
given                the scale, where it is static
least                magnitudes of tokens that have values elsewhere too, float32 [tokens]: none is scaled by less; or 0
"""


@kernels(QUANTIZE_TOKEN)
def quantize_token_kernel(source: Source, static: bool = False) -> Any:
    """Task i writes the codes of token i, its scale, and -128 and -8 times the sum of its codes.

    A token with NaN has the scale NaN; one with Inf too.
    """
    normed, gated, wide, narrow, chunk_bytes = source == "rms_norm", expression_of(source)[1] == 2, WIDE, NARROW, CHUNK
    value, largest_of = _value(source), _largest(source)

    def quantize(a, task):
        k, x = a.k, a.x + task * a.x_stride
        other = a.other + (task * a.other_stride if gated else 0)
        factor = rms_factor(x, k, a.eps) if normed else 1.0
        least = f32_pointer(a.least)[task] if a.least != 0 else 0.0
        scale = a.given if static else largest_of(x, other, k, factor, least) / 127.0
        divisor = splat(scale if scale > 0 else 1.0)
        chunks = (k + chunk_bytes - 1) // chunk_bytes
        first, tile = (task // wide * wide, wide) if task < a.wide_tokens else (0, narrow)
        if task >= a.wide_tokens:
            first = a.wide_tokens + (task - a.wide_tokens) // narrow * narrow
        if a.tiled == 0:
            first, tile = task, 1
        out = a.codes + first * chunks * chunk_bytes + (task - first) * chunk_bytes
        total, none, odd = 0.0, splat(0.0), splat(0.0)
        for chunk in range(chunks):
            for j in range(0, chunk_bytes, 16):
                v = value(x, other, chunk * chunk_bytes + j, k, factor)
                code = div(v, divisor)
                if static:
                    odd = add_exact(odd, mul_exact(v, none))  # NaN of NaN and of Inf
                    code = minimum(maximum(code, splat(-128.0)), splat(127.0))
                total += quantize16(out + j, code)
            out += tile * chunk_bytes
        f32_pointer(a.scales)[task] = scale + sum_lanes(odd) if static else scale
        i32_pointer(a.begins_8)[task] = -128 * int(total)
        i32_pointer(a.begins_4)[task] = -8 * int(total)

    return quantize


def _largest(source: Source) -> Any:
    """A function that gives the largest magnitude of a token's k values, NaN if one is, or `least` if that is more."""
    value = _value(source)

    def largest_of(x, other, k, factor, least):
        largest = least
        for i in range(0, k, 32):
            low, high = value(x, other, i, k, factor), value(x, other, i + 16, k, factor)
            here = largest_magnitude(low, high)
            if not math.isnan(largest) and not here <= largest:  # NaN stays
                largest = here
        return largest

    return inner(largest_of, source)


def _value(source: Source) -> Any:
    """A function that gives values i to i + 15 of a token, 0 from k on."""
    normed, (expression, inputs) = source == "rms_norm", expression_of(source)
    alone, gated = inputs == 1, inputs == 2

    def value(x, other, i, k, factor):
        lanes = min(max(k - i, 0), 16)
        v = load_lanes(x + i * 4, lanes, F32_KIND)  # [16]
        if normed:
            v = mul(mul(v, splat(factor)), load_lanes(other + i * 4, lanes, F32_KIND))
        if alone:
            v = expression(v)
        if gated:
            v = expression(v, load_lanes(other + i * 4, lanes, F32_KIND))
        return v

    return inner(value, source)


QUANTIZE_GROUPS = record("codes scales zeros", "x k group symmetric")
"""codes, scales, zeros  made: int8 [rows, k], float32 and int32 [rows, k / group]
x                     [rows, k], contiguous
symmetric             1: codes from -127 on with the zero point 0; 0: codes from -128 on
"""


@kernels(QUANTIZE_GROUPS)
def quantize_groups_kernel(kind: int) -> Any:
    """Task i quantizes row i, each `group` values of it with a scale of their own; one that is not finite is made NaN.

    Codes are round(x / scale) + zero; `kind` is that of x.
    """
    item = 4 if kind == F32_KIND else 2

    def quantize(a, task):
        k, group, symmetric = a.k, a.group, a.symmetric
        spare, lowest = stack(64), -127 if symmetric else -128
        for first in range(0, k, group):
            x = a.x + (task * k + first) * item
            out, g = a.codes + task * k + first, (task * k + first) // group
            none, low, high, odd = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
            for i in range(0, group, 16):
                v = load_lanes(x + i * item, min(group - i, 16), kind)  # [16]
                low, high = maximum(low, sub(none, v)), maximum(high, v)
                odd = fma(v, none, odd)  # NaN of NaN and of Inf
            below, above, zero = splat(max_lanes(low)), splat(max_lanes(high)), 0
            if symmetric:
                wide = div_exact(maximum(below, above), splat(127.0))
            else:
                wide = add_exact(div_exact(above, splat(255.0)), div_exact(below, splat(255.0)))
            scale = max_lanes(wide)
            divisor = splat(scale if scale > 0 else math.inf)
            if not symmetric:
                round16(spare, div_exact(below, divisor), 0.0, 255.0, -128)
                zero = i8_pointer(spare)[0]
            f32_pointer(a.scales)[g] = scale + sum_lanes(odd)
            i32_pointer(a.zeros)[g] = zero
            for i in range(0, group, 16):
                lanes = min(group - i, 16)
                at = out + i if lanes == 16 else spare
                round16(at, div_exact(load_lanes(x + i * item, lanes, kind), divisor), lowest - zero, 127 - zero, zero)
                for j in range(lanes if lanes < 16 else 0):
                    i8_pointer(out + i)[j] = i8_pointer(spare)[j]

    return quantize


ROUND_FP8 = record("out k", "x x_stride", "given:f4 least")


@kernels(ROUND_FP8)
def round_fp8_kernel(static: bool = False) -> Any:
    """Task i writes token i rounded to e4m3 under a scale of its own, max|x| / 448, to row i of `out` [tokens, k].

    static  under the scale that is given; what is beyond the numbers is cut off, and Inf becomes NaN
    least   as of QUANTIZE_TOKEN
    """
    largest_of = _largest("values")

    def round_fp8(a, task):
        k, x, out = a.k, a.x + task * a.x_stride, a.out + task * a.k * 4
        least = f32_pointer(a.least)[task] if a.least != 0 else 0.0
        scale = a.given if static else largest_of(x, 0, k, 1.0, least) / 448.0
        divisor, factor, none = splat(scale if scale > 0 else 1.0), splat(scale), splat(0.0)
        for i in range(0, k, 16):
            lanes = min(k - i, 16)
            v = div_exact(load_lanes(x + i * 4, lanes, F32_KIND), divisor)  # [16]
            if static:
                odd = mul_exact(v, none)  # NaN of NaN and of Inf
                v = add_exact(minimum(maximum(v, splat(-448.0)), splat(448.0)), odd)
            store_lanes(out + i * 4, lanes, mul_exact(round_e4m3(v), factor), F32_KIND)

    return round_fp8
