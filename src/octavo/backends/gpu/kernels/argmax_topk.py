"""Top-k of logits in two launches: of each part of a row, then of all parts. Values that are not finite are counted.

A value and its index are one int64 key: the higher the key the larger the value, and of equal values the lower index.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LAST_INDEX = tl.constexpr(0x7FFFFFFF)
LEAST = tl.constexpr(-(1 << 63))  # below the key of any value
EXPONENT = tl.constexpr(0x7F800000)


@triton.jit
def _turned(bits):
    """The bits of a float32 as an integer of the same order, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def topk_parts_kernel(
    x, keys, bad, x_stride, n, parts, K: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Program (token, part): the K largest keys of a part of B values, [T, parts, K], and how many are not finite."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * B + tl.arange(0, B)
    value = tl.load(x + token * x_stride + at, mask=at < n, other=0.0)  # [B]
    bits = tl.where(value == 0, 0.0, value).to(tl.int32, bitcast=True)
    key = tl.where(at < n, (_turned(bits).to(tl.int64) << 32) | (-at + LAST_INDEX).to(tl.int64), LEAST)
    for i in range(K):
        best = tl.max(key)
        tl.store(keys + (token * parts + part) * K + i, best)
        key = tl.where(key == best, LEAST, key)
    tl.store(bad + token * parts + part, tl.sum(((bits & EXPONENT) == EXPONENT).to(tl.int32)))


@triton.jit
def topk_merge_kernel(
    keys, bad, out, parts, K: tl.constexpr, B: tl.constexpr, BP: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Program (token): out int32 [T, 1 + 2K] from the keys of all parts; B and BP hold all keys and parts."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    at, part = tl.arange(0, B), tl.arange(0, BP)
    row = out + token * (1 + 2 * K)
    tl.store(row, tl.sum(tl.load(bad + token * parts + part, mask=part < parts, other=0)))
    key = tl.load(keys + token * parts * K + at, mask=at < parts * K, other=LEAST)  # [B]
    for i in range(K):
        best = tl.max(key)
        tl.store(row + 1 + i, -(best & 0x7FFFFFFF).to(tl.int32) + LAST_INDEX)
        tl.store(row + 1 + K + i, _turned((best >> 32).to(tl.int32)))
        key = tl.where(key == best, LEAST, key)
