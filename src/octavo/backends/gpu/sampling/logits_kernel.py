# mypy: ignore-errors
"""Logits before a token is chosen: the sum of all, changes to some of them, and masks; and the draw of a token.

Algorithm: log-sum-exp by parts (online softmax's join); inverse transform sampling behind top-k, top-p and min-p.
Tile:
    logits   | B | B | B | ...   program (token, part): largest, sum of exp -> `log_sum_kernel`: one number a token
    draw     K candidates, largest first, in registers: shares -> cumulative sums -> the first above the random number
Bound: latency, of launches: a token drawn among 64 candidates of 151,936 takes 5 us more than the likeliest
    (docs/log.md, "Where the rest of a decode step goes").
Tried: nothing else.
Twin: `octavo.backends.reference.ops.log_sum_exp`, `octavo.backends.reference.ops.adjust`,
    `octavo.backends.reference.ops.mask`, `octavo.backends.reference.ops.draw`,
    `octavo.backends.reference.ops.local_places`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def sum_exp_kernel(x, sums, x_stride, n, parts, B: tl.constexpr, PDL: tl.constexpr):
    """Program (token, part): of B values the largest, and the sum of exp of what they are below it; [T, parts, 2]."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * B + tl.arange(0, B)
    value = tl.load(x + token * x_stride + at, mask=at < n, other=-float("inf"))  # [B]
    top = tl.max(value)
    place = sums + (token * parts + part) * 2
    tl.store(place, top)
    tl.store(place + 1, tl.sum(tl.exp(value - top)))


@triton.jit
def log_sum_kernel(sums, out, parts, B: tl.constexpr, PDL: tl.constexpr):
    """Program (token): out [T, 1], ln of the sum of exp, from what `sum_exp_kernel` made of B parts or fewer."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, part = tl.program_id(0).to(tl.int64), tl.arange(0, B)
    place = sums + (token * parts + part) * 2
    tops = tl.load(place, mask=part < parts, other=-float("inf"))  # [B]
    totals = tl.load(place + 1, mask=part < parts, other=0.0)  # [B]
    top = tl.max(tops)
    tl.store(out + token, top + tl.log(tl.sum(totals * tl.exp(tops - top))))


@triton.jit
def adjust_kernel(x, places, changes, x_stride, n, B: tl.constexpr, PDL: tl.constexpr):
    """B places (row, column) of x, each with its change (scale, add); row -1: none."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    i = tl.program_id(0) * B + tl.arange(0, B)
    row = tl.load(places + 2 * i, mask=i < n, other=-1)  # [B]
    real = row >= 0
    column = tl.load(places + 2 * i + 1, mask=real, other=0)
    scale = tl.load(changes + 2 * i, mask=real, other=1.0)
    more = tl.load(changes + 2 * i + 1, mask=real, other=0.0)
    at = x + row.to(tl.int64) * x_stride + column
    value = tl.load(at, mask=real, other=0.0)
    tl.store(at, tl.where(value > 0, tl.div_rn(value, scale), value * scale) + more, mask=real)


@triton.jit
def local_places_kernel(places, out, n, first, count, B: tl.constexpr, PDL: tl.constexpr):
    """B places (row, column) as `adjust_kernel` takes them for columns first to first + count - 1; else row -1."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    i = tl.program_id(0) * B + tl.arange(0, B)
    row = tl.load(places + 2 * i, mask=i < n, other=-1)  # [B]
    column = tl.load(places + 2 * i + 1, mask=i < n, other=0) - first
    tl.store(out + 2 * i, tl.where((column >= 0) & (column < count), row, -1), mask=i < n)
    tl.store(out + 2 * i + 1, column, mask=i < n)


@triton.jit
def mask_kernel(x, rows, masks, x_stride, n, masks_stride, B: tl.constexpr, PDL: tl.constexpr):
    """Program (mask, part): -inf in those of B values of row rows[mask] whose bit is not set; row -1: none."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    mask, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + mask).to(tl.int64)
    at = part * B + tl.arange(0, B)
    inside = (at < n) & (row >= 0)
    bits = tl.load(masks + mask * masks_stride + at // 32, mask=inside, other=-1)  # [B]
    out = ((bits >> (at % 32)) & 1) == 0
    tl.store(x + row * x_stride + at, tl.full([B], -float("inf"), tl.float32), mask=inside & out)


@triton.jit
def draw_kernel(found, settings, out, K: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr):
    """Program (token): out int32 [T, 3] of op `draw`, from K candidates, largest first, and 6 float64 of settings."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, at = tl.program_id(0).to(tl.int64), tl.arange(0, B)
    row, inside = found + token * (1 + 2 * K), at < K
    place = tl.load(row + 1 + at, mask=inside, other=0)  # [B]
    value = tl.load(row + 1 + K + at, mask=inside, other=0).to(tl.float32, bitcast=True)  # [B]
    numbers = settings.to(tl.pointer_type(tl.float64)) + token * 6
    k, top_p, min_p = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    temperature, uniform, known = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    largest = tl.load(row + 1 + K).to(tl.float32, bitcast=True)
    below = value.to(tl.float64) - largest.to(tl.float64)
    share = tl.where(inside & (at < k), tl.exp(below), 0.0)
    sums = tl.cumsum(share)
    kept = (share > 0) & (sums - share < top_p * tl.max(sums)) & (share >= min_p)
    sums = tl.cumsum(tl.where(kept, tl.exp(below / temperature), 0.0))
    passed = tl.sum((inside & (sums <= uniform * tl.max(sums))).to(tl.int32))
    column = tl.minimum(passed, tl.max(tl.where(kept, at, 0)))
    tl.store(out + token * 3, tl.load(row))
    tl.store(out + token * 3 + 1, tl.sum(tl.where(at == column, place, 0)))
    tl.store(out + token * 3 + 2, tl.sum((inside & (place >= known)).to(tl.int32)))
