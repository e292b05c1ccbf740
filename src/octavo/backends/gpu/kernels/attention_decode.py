"""Attention of one token a sequence: its pages are divided among programs, and a second launch combines their shares.

What earlier steps have written to the caches is on its way before an earlier kernel's results are waited for; only the
row of the token itself is not.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.activations import store_q8_1
from octavo.backends.gpu.kernels.attention import PAGE, add_values, rows_of, weigh


@triton.jit
def decode_kernel(
    q, k_cache, v_cache, k_scales, v_scales, positions, pages, partial, maxima, sums, q_stride, width, kv_heads, scale,
    splits: tl.constexpr, group: tl.constexpr, BG: tl.constexpr, dim: tl.constexpr, BD: tl.constexpr,
    AHEAD: tl.constexpr, Q8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence, K/V head, split) attends to its share of the pages; AHEAD: the first comes before all else.

    partial f32 [sequences, heads, splits, BD], maxima and sums f32 [sequences, heads, splits].
    """
    if PDL:
        gdc_launch_dependents()
    sequence, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    last = tl.load(positions + sequence)
    n_pages = last // PAGE + 1
    used = tl.minimum(n_pages, splits)  # by those that have pages at all
    first, stop = split * n_pages // used, tl.where(split < used, (split + 1) * n_pages // used, 0)
    at, member, place = tl.arange(0, BD), tl.arange(0, BG), tl.arange(0, PAGE)
    page = tl.load(pages + sequence * width + first, mask=first < stop, other=0)
    position = place + first * PAGE
    if AHEAD:
        before = ((position < last) & (first < stop))[:, None]
        k_old = rows_of(k_cache, k_scales, place + page * PAGE, before, head, kv_heads, at, dim, BD, Q8)
        v_old = rows_of(v_cache, v_scales, place + page * PAGE, before, head, kv_heads, at, dim, BD, Q8)
    if PDL:
        gdc_wait()
    if first < stop:
        q_at = q + sequence * q_stride + (head * group + member)[:, None] * dim + at[None, :]
        q_tile = tl.load(q_at, mask=(member < group)[:, None] & (at < dim)[None, :], other=0.0)
        now = ((position == last) if AHEAD else (position <= last))[:, None]
        k = rows_of(k_cache, k_scales, place + page * PAGE, now, head, kv_heads, at, dim, BD, Q8)
        v = rows_of(v_cache, v_scales, place + page * PAGE, now, head, kv_heads, at, dim, BD, Q8)
        if AHEAD:
            k, v = tl.where(now, k, k_old), tl.where(now, v, v_old)
        limit = tl.full((BG,), 0, tl.int32) + last
        m = tl.full((BG,), float("-inf"), tl.float32)
        total = tl.zeros((BG,), tl.float32)
        acc = tl.zeros((BG, BD), tl.float32)
        for i in tl.range(first + 1, stop + 1, num_stages=1):
            page = tl.load(pages + sequence * width + i, mask=i < stop, other=0)
            coming = ((place + i * PAGE <= last) & (i < stop))[:, None]
            k_next = rows_of(k_cache, k_scales, place + page * PAGE, coming, head, kv_heads, at, dim, BD, Q8)
            v_next = rows_of(v_cache, v_scales, place + page * PAGE, coming, head, kv_heads, at, dim, BD, Q8)
            p, m, total, acc = weigh(q_tile, k, position, limit, m, total, acc, scale, Q8)
            acc = add_values(p, v, acc, Q8)
            k, v, position = k_next, v_next, position + PAGE
        row = (sequence * kv_heads * group + head * group + member) * splits + split
        tl.store(partial + row[:, None] * BD + at[None, :], acc, mask=(member < group)[:, None])
        tl.store(maxima + row, m, mask=member < group)
        tl.store(sums + row, total, mask=member < group)


@triton.jit
def combine_kernel(
    partial, maxima, sums, positions, out, codes, d, s, s16, out_stride, heads, tp,
    splits: tl.constexpr, BS: tl.constexpr, dim: tl.constexpr, BD: tl.constexpr, QUANTIZE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head): the head's result from all shares, f32 in `out`, or with QUANTIZE as q8_1."""
    if PDL:
        gdc_launch_dependents()
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, split = tl.arange(0, BD), tl.arange(0, BS)
    used = tl.minimum(tl.load(positions + sequence) // PAGE + 1, splits)
    if PDL:
        gdc_wait()
    row = (sequence * heads + head) * splits + split
    m = tl.load(maxima + row, mask=split < used, other=float("-inf"))
    total = tl.load(sums + row, mask=split < used, other=0.0)
    shares = tl.load(partial + row[:, None] * BD + at[None, :], mask=(split < used)[:, None], other=0.0)
    weight = tl.exp2(m - tl.max(m))
    value = tl.sum(shares * weight[:, None], 0) / tl.sum(weight * total)
    if QUANTIZE:
        first = head * (dim // 32)
        store_q8_1(tl.reshape(value, (BD // 32, 32)), codes, d, s, s16, sequence, first, first + dim // 32, out_stride,
                   tp, BD // 32)  # fmt: skip
    else:
        tl.store(out + sequence * out_stride + head * dim + at, value, mask=at < dim)
