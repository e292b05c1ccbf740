# mypy: ignore-errors
"""Activations on their way into a product: read from a Source, and kept as q8_1 or as floats.

Algorithm: llama.cpp's `quantize_q8_1` (a scale and a sum for 32 values), fused with the RMS norm or pointwise op
    before.
Tile:
    program (token, part)   B values of a row    | 32 codes | 32 codes | ...    int8 [T, K]
                                                 | d, sum, 2 sums of 16 | ...   float32 [K / 32, T]
Bound: latency: 1.4 us each, norm included, of 61 us a layer of Llama 3 8B in Q4_K in a decode step on an H200
    (bench/results/gpu-layers-h200-2026-11-27.json).
Tried: docs/log.md: "Several programs to a norm take as long as one"; "A norm that each program makes for itself costs
    more than its launch"; "A program that fills a multiprocessor keeps the next kernel away from it".
Twin: `octavo.backends.reference.ops.quantize`, `octavo.backends.reference.ops.rms_norm`

A Source is values as they are, or what a norm or a pointwise op makes of them: the KIND is "values", "rms_norm", or
the op's expression.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.w8a8.quantize_kernel import ROUND


@triton.jit
def nearest(x):
    """The nearest integer, halves away from zero, in float32. (Kernels that must round as written are compiled without
    fused multiply-adds.)"""
    whole = tl.where(x < 0, tl.ceil(x), tl.floor(x))
    step = tl.where(tl.abs(x - whole) >= 0.5, 1.0, 0.0)
    return whole + tl.where(x < 0, -step, step)


@triton.jit
def weight_of(source, at, mask, KIND: tl.constexpr):
    """A norm's weight, which need not wait for an earlier kernel; without a norm anything."""
    return tl.load(source.other.data + at, mask=mask, other=0.0) if KIND == "rms_norm" else 1.0


@triton.jit
def read(source, weight, token, at, mask, k, KIND: tl.constexpr):
    """float32 values `at` of a token's row of a Source, which has k values; `weight` is what `weight_of` gives."""
    value = tl.load(source.x.data + token * source.x.stride + at, mask=mask, other=0.0)  # [B]
    if KIND == "rms_norm":
        mean = tl.sum(value * value) / k
        value = value * (1 / tl.sqrt_rn(mean + source.eps)) * weight
    elif KIND != "values":
        if source.other is None:
            value = KIND(value, *source.numbers)
        else:
            other = tl.load(source.other.data + token * source.other.stride + at, mask=mask, other=0.0)
            if source.biases is not None:
                bias = tl.load(source.biases.ids + token).to(tl.int64) * k + at
                value += tl.load(source.biases.x + bias, mask=mask, other=0.0)
                other += tl.load(source.biases.other + bias, mask=mask, other=0.0)
            value = KIND(value, other, *source.numbers)
    return value


@triton.jit
def reordered(value):
    """value [B] as `w4a16.hopper_kernel` wants it: of each 16 number 4t + b + 2c at place 8b + 2t + c, b and c 0 or
    1."""
    B: tl.constexpr = value.shape[0]
    return tl.reshape(tl.permute(tl.reshape(value, (B // 16, 4, 2, 2)), (0, 3, 1, 2)), (B,))


@triton.jit
def store_ordered(value, ordered, first, end):
    """Write float32 [B] as float16 to `ordered` from place `first` on, before place `end`, in the order of `reordered`:
    four neighbours become two pairs, each where it belongs, and nothing moves between threads."""
    B: tl.constexpr = value.shape[0]
    bits = value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    even, odd = tl.split(tl.reshape(bits, (B // 4, 2, 2)))  # [B / 4, 2] each
    four = tl.arange(0, B // 4)
    at = first // 2 + four // 4 * 8 + four % 4  # of words
    words = ordered.to(tl.pointer_type(tl.int32)) + at
    tl.store(words, _pair(even), mask=at < end // 2)
    tl.store(words + 4, _pair(odd), mask=at < end // 2)


@triton.jit
def _pair(bits):
    """The lower halves of two neighbours [N, 2] in an int32 [N]."""
    low, high = tl.split(bits)
    return (low & 0xFFFF) | (high << 16)


@triton.jit
def store_q8_1(value, out, ordered, token, first, end, kp, N: tl.constexpr):
    """Write N groups of a token, float32 [N, 32], to `out`, a Q8Activation: groups from `first` to `end`; and to
    `ordered`, float16 [T, kp], as `reordered` gives them. Either may be None.

    Scales have 22 bits (see `codes.scaled`). A group's four numbers are one store: they are stored straight from
    registers.
    """
    if ordered is not None:
        store_ordered(tl.reshape(value, (N * 32,)), ordered + token * kp, first * 32, end * 32)
    if out is not None:
        _store_codes(value, out, token, first, end, kp, N)


@triton.jit
def _store_codes(value, out, token, first, end, kp, N: tl.constexpr):
    largest = tl.max(tl.abs(value), 1)
    inverse = tl.where(largest > 0, 127.0 / tl.where(largest > 0, largest, 1.0), 0.0)
    rounded = value * inverse[:, None] + ROUND  # whose low bits are the code
    code = rounded - ROUND
    scale = ((largest / 127.0).to(tl.int32, bitcast=True) & -4).to(tl.float32, bitcast=True)
    halves = tl.sum(tl.reshape(code, (N, 2, 16)), 2) * scale[:, None]  # [N, 2]
    at = first * 32 + tl.arange(0, N * 32)
    codes = tl.reshape(rounded, (N * 32,)).to(tl.int32, bitcast=True).to(tl.int8)
    tl.store(out.codes + token * kp + at, codes, mask=at < end * 32)
    both = tl.join(
        tl.join(scale, tl.sum(halves, 1)), halves
    )  # [N, 2, 2]: scale, sum of the first half; sum, of the second
    group, second = first + tl.arange(0, N)[:, None, None], tl.arange(0, 2)[None, :, None]
    at = group * out.stride + token
    whole = tl.where(second == 0, (out.scale + at).to(tl.int64), (out.sums + at).to(tl.int64))
    of_half = (out.sums16 + (group * 2 + second) * out.stride + token).to(tl.int64)
    where = tl.where(tl.arange(0, 2)[None, None, :] == 0, whole, of_half).to(tl.pointer_type(tl.float32))
    tl.store(where, both, mask=group < end)


@triton.jit
def quantize_kernel(source, out, ordered, k, kp, KIND: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr):
    """What `store_q8_1` makes of a token's values, B at a time; a norm needs the whole row at once."""
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * B
    at = first + tl.arange(0, B)
    weight = weight_of(source, at, at < k, KIND)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    value = tl.reshape(read(source, weight, token, at, at < k, k, KIND), (B // 32, 32))
    store_q8_1(value, out, ordered, token, first // 32, kp // 32, kp, B // 32)


@triton.jit
def float_kernel(
    source, out, ordered, k, kp, KIND: tl.constexpr, B: tl.constexpr, PLANES: tl.constexpr, PDL: tl.constexpr
):
    """The values in the type of `out`, [T, kp], zeros from k on, or [T, PLANES, kp / PLANES] with neighbours in
    different planes; and in `ordered`, float16 [T, kp], as `reordered` gives them, unless it is None."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    weight = weight_of(source, at, at < k, KIND)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    value = read(source, weight, token, at, at < k, k, KIND)
    if out is not None:
        place = at % PLANES * (kp // PLANES) + at // PLANES
        tl.store(out.data + token * out.stride + place, value.to(out.data.dtype.element_ty), mask=at < kp)
    if ordered is not None:
        store_ordered(value, ordered + token * kp, tl.program_id(1) * B, kp)
