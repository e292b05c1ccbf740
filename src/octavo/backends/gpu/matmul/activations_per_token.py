# mypy: ignore-errors
"""Activations of 8 bits with a scale for each token, int8 or e4m3: alone, or after a norm or an activation.

Algorithm: dynamic per-token quantization, as vLLM's and compressed-tensors' W8A8 schemes have it; or by a static scale.
Tile:
    program token    B >= K values of a row -> max |x| -> scale -> K codes
    long rows        program (token, part): max |x| of B values, in a launch of its own; all parts' -> scale -> B codes
Bound: latency, of a row's maximum and the launch; not measured by itself.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.quantize`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.activations import read, weight_of
from octavo.backends.gpu.matmul.w8a8.quantize_kernel import ROUND, fp8_bits


@triton.jit
def token_maxima_kernel(source, maxima, k, KIND: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr):
    """Program (token, part): the largest magnitude of B values, int32 bits [T, parts], of which those of NaN are the
    largest."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * B + tl.arange(0, B)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    value = read(source, None, token, at, at < k, k, KIND)
    bits = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.store(maxima + token * tl.num_programs(1) + part, tl.max(bits))


@triton.jit
def token_codes_kernel(
    source, codes, scales, k, top, given, least, maxima, KIND: tl.constexpr, CODE: tl.constexpr, B: tl.constexpr,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):
    """Program token: its codes, bytes [T, K], and its scale, float32 [T]: max|value| / top, or `given`. B >= K.

    `least`, float32 [T], are magnitudes of tokens that have values elsewhere too: none is scaled by less.
    With `maxima` of `token_maxima_kernel` program (token, part) has B values, one of PARTS parts.

    KIND is that of the Source. CODE: "int8", round(value / scale), halves to even; or "e4m3", the nearest number. A
    token with NaN has the scale NaN, so that it is not lost. With a scale that is given, values beyond the codes are
    cut off, and one of Inf counts as NaN.
    """
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    weight = weight_of(source, at, at < k, KIND)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    value = read(source, weight, token, at, at < k, k, KIND)
    low = -top
    if given is None:
        if maxima is not None:
            which = tl.arange(0, 32)
            bits = tl.load(maxima + token * PARTS + which, mask=which < PARTS, other=0)
            largest = tl.max(bits).to(tl.float32, bitcast=True)
            odd = (largest != largest).to(tl.int32)  # noqa: PLR0124 - NaN
        else:
            odd = tl.max((value != value).to(tl.int32), 0)  # noqa: PLR0124 - NaN
            largest = tl.max(tl.abs(value), 0)
        if least is not None:
            largest = tl.maximum(largest, tl.load(least + token))
        scale = tl.div_rn(largest, top)
    else:
        odd = tl.max((value - value != 0).to(tl.int32), 0)
        scale = given
        if CODE == "int8":
            low = low - 1
    value = tl.div_rn(value, tl.where(scale > 0, scale, 1.0))
    value = tl.minimum(tl.maximum(value, low), top)
    if CODE == "int8":
        code = (value + ROUND - ROUND).to(tl.int8)
    else:
        code = fp8_bits(value, False)
    tl.store(codes.data + token * codes.stride + at, code, mask=at < k)
    tl.store(scales + token, tl.where(odd > 0, float("nan"), scale))
