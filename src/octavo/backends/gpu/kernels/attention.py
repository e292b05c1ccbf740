"""Attention over a paged KV cache: soft-max and sums go along with reading keys and values once (arXiv 2205.14135)."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.graph.node import PAGE_SIZE

PAGE = tl.constexpr(PAGE_SIZE)


@triton.jit
def rows_of(cache, scales, rows, seen, head, heads, at, dim: tl.constexpr, BD: tl.constexpr, Q8: tl.constexpr):
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
def weigh(q, k, position, limit, m, total, acc, scale, Q8: tl.constexpr):
    """Weights of a page with keys k float16 [PAGE, BD], and maxima, totals and sums made ready for them.

    Row i of q sees positions up to limit[i]. q is float32: rounding it and the weights to float16 costs as much as
    rounding keys and values does; where codes times scales have been rounded already (Q8), what is lost of the others
    is made good by a second dot.
    """
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
    return p, new_m, total * keep + tl.sum(p, 1), acc * keep[:, None]


@triton.jit
def add_values(p, v, acc, Q8: tl.constexpr):
    """acc + p v, the weights float32, the values float16 [PAGE, BD]."""
    near = p.to(tl.float16)
    acc = tl.dot(near, v, acc)
    if Q8:
        acc = tl.dot((p - near.to(tl.float32)).to(tl.float16), v, acc)
    return acc


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
            position, rows = tl.arange(0, PAGE) + i * PAGE, tl.arange(0, PAGE) + page * PAGE
            seen = (position <= last)[:, None]
            k = rows_of(k_cache, k_scales, rows, seen, head // group, kv_heads, at, dim, BD, Q8)
            p, m, total, acc = weigh(q_tile, k, position, limit, m, total, acc, scale, Q8)
            v = rows_of(v_cache, v_scales, rows, seen, head // group, kv_heads, at, dim, BD, Q8)
            acc = add_values(p, v, acc, Q8)
        o_at = out + token.to(tl.int64)[:, None] * out_stride + head * dim + at[None, :]
        tl.store(o_at, acc / total[:, None], mask=mask)
