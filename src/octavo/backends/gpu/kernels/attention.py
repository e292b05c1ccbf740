"""Attention over a paged KV cache: soft-max and sums go along with reading keys and values once (arXiv 2205.14135)."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

PAGE = tl.constexpr(64)  # rows of the cache that belong together


@triton.jit
def _rows(cache, scales, rows, seen, head, heads, at, dim: tl.constexpr, BD: tl.constexpr, Q8: tl.constexpr):
    """float16 [PAGE, BD] of a head of a cache [all rows, heads, dim]; zeros for rows not `seen`, [PAGE, 1]."""
    mask = seen if dim == BD else seen & (at < dim)[None, :]
    place = (rows.to(tl.int64) * heads + head) * dim
    value = tl.load(cache + place[:, None] + at[None, :], mask=mask, other=0)
    if Q8:
        group = tl.arange(0, BD // 32)[None, :]
        scale = tl.load(scales + place[:, None] // 32 + group, mask=seen & (group < dim // 32), other=0.0)
        groups = tl.reshape(value.to(tl.float16), (PAGE, BD // 32, 32)) * scale[:, :, None]
        half = tl.reshape(groups, (PAGE, BD))
    else:
        half = value.to(tl.float16)
    return half


@triton.jit
def _step(
    q, k_cache, v_cache, k_scales, v_scales, page, first, limit, last, head, heads, at, m, total, acc, scale,
    dim: tl.constexpr, BD: tl.constexpr, Q8: tl.constexpr,
):  # fmt: skip
    """A page of keys and values: row i of q sees positions up to limit[i]; none past `last` are read.

    q is float32. Rounding it and the weights of the soft-max to float16 costs as much as rounding keys and values does;
    where codes times scales have been rounded already (Q8), what is lost of the others is made good by a second dot.
    """
    position = first + tl.arange(0, PAGE)
    rows = page * PAGE + tl.arange(0, PAGE)
    seen = (position <= last)[:, None]
    k = _rows(k_cache, k_scales, rows, seen, head, heads, at, dim, BD, Q8)
    near = q.to(tl.float16)
    scores = tl.dot(near, tl.trans(k))
    if Q8:
        scores = tl.dot((q - near.to(tl.float32)).to(tl.float16), tl.trans(k), scores)
    scores *= scale
    scores = tl.where(position[None, :] <= limit[:, None], scores, float("-inf"))
    new_m = tl.maximum(m, tl.max(scores, 1))
    shift = tl.where(new_m == float("-inf"), 0.0, new_m)
    p = tl.exp2(scores - shift[:, None])
    keep = tl.exp2(m - shift)
    total = total * keep + tl.sum(p, 1)
    v = _rows(v_cache, v_scales, rows, seen, head, heads, at, dim, BD, Q8)
    near = p.to(tl.float16)
    acc = tl.dot(near, v, acc * keep[:, None])
    if Q8:
        acc = tl.dot((p - near.to(tl.float32)).to(tl.float16), v, acc)
    return new_m, total, acc


@triton.jit
def decode_kernel(
    q, k_cache, v_cache, k_scales, v_scales, positions, pages, partial, maxima, sums, q_stride, width, kv_heads, scale,
    splits: tl.constexpr, group: tl.constexpr, BG: tl.constexpr, dim: tl.constexpr, BD: tl.constexpr,
    Q8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A token a sequence; program (sequence, K/V head, split) attends to its share of the pages.

    partial f32 [sequences, heads, splits, BD], maxima and sums f32 [sequences, heads, splits].
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    sequence, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    last = tl.load(positions + sequence)
    n_pages = last // PAGE + 1
    share = tl.cdiv(n_pages, splits)
    at, member = tl.arange(0, BD), tl.arange(0, BG)
    q_at = q + sequence * q_stride + (head * group + member)[:, None] * dim + at[None, :]
    q_tile = tl.load(q_at, mask=(member < group)[:, None] & (at < dim)[None, :], other=0.0)
    limit = tl.full((BG,), 0, tl.int32) + last
    m = tl.full((BG,), float("-inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    acc = tl.zeros((BG, BD), tl.float32)
    for i in range(split * share, tl.minimum(split * share + share, n_pages)):
        page = tl.load(pages + sequence * width + i)
        m, total, acc = _step(q_tile, k_cache, v_cache, k_scales, v_scales, page, i * PAGE, limit, last, head, kv_heads,
                              at, m, total, acc, scale, dim, BD, Q8)  # fmt: skip
    row = (sequence * kv_heads * group + head * group + member) * splits + split
    tl.store(partial + row[:, None] * BD + at[None, :], acc, mask=(member < group)[:, None])
    tl.store(maxima + row, m, mask=member < group)
    tl.store(sums + row, total, mask=member < group)


@triton.jit
def combine_kernel(
    partial, maxima, sums, out, out_stride, heads, splits: tl.constexpr, BS: tl.constexpr, dim: tl.constexpr,
    BD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [sequences, heads * dim] from the shares of all splits; program (sequence, head)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, split = tl.arange(0, BD), tl.arange(0, BS)
    row = (sequence * heads + head) * splits + split
    m = tl.load(maxima + row, mask=split < splits, other=float("-inf"))
    weight = tl.exp2(m - tl.max(m))
    whole = tl.sum(weight * tl.load(sums + row, mask=split < splits, other=0.0))
    shares = tl.load(partial + row[:, None] * BD + at[None, :], mask=(split < splits)[:, None], other=0.0)
    value = tl.sum(shares * weight[:, None], 0) / whole
    tl.store(out + sequence * out_stride + head * dim + at, value, mask=at < dim)


@triton.jit
def prefill_kernel(
    q, k_cache, v_cache, k_scales, v_scales, positions, starts, pages, out, q_stride, out_stride, width, kv_heads,
    group, scale, BM: tl.constexpr, dim: tl.constexpr, BD: tl.constexpr, Q8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (tile, head, sequence): BM queries of a sequence against all that they see."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tile, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    token = begin + tile * BM + tl.arange(0, BM)
    if begin + tile * BM < end:
        inside = token < end
        at = tl.arange(0, BD)
        mask = inside[:, None] & (at < dim)[None, :]
        q_at = q + token.to(tl.int64)[:, None] * q_stride + head * dim + at[None, :]
        q_tile = tl.load(q_at, mask=mask, other=0.0)
        limit = tl.load(positions + token, mask=inside, other=0)
        last = tl.max(limit)
        m = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, BD), tl.float32)
        for i in range(last // PAGE + 1):
            page = tl.load(pages + sequence * width + i)
            m, total, acc = _step(q_tile, k_cache, v_cache, k_scales, v_scales, page, i * PAGE, limit, last,
                                  head // group, kv_heads, at, m, total, acc, scale, dim, BD, Q8)  # fmt: skip
        o_at = out + token.to(tl.int64)[:, None] * out_stride + head * dim + at[None, :]
        tl.store(o_at, acc / total[:, None], mask=mask)
