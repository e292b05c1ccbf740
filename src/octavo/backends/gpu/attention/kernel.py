# mypy: ignore-errors
"""Prefill attention over a paged KV cache, in portable Triton.

Algorithm: FlashAttention (arXiv 2205.14135): online softmax (Milakov and Gimelshein, arXiv 1805.02867), so that scores
    never leave the program.
Tile:
    queries [block_m, D] of a head      keys and values of a page or a part of one, [block_n, D], in turn
              Q K^T                     scores [block_m, block_n]
              m = max(m, row max)       sums so far are scaled by exp2(old m - m)
              acc += exp2(S - m) V      divided by the totals at the end
Bound: instructions, of the tensor cores and for exponentials: each key and value is read once for block_m queries. From
    q8_0, with two dot products each, 152 TFLOPS at 8,192 tokens on an H200, 0.28 of what `prefill_hopper_kernel`
    reaches from float16 (bench/results/gpu-prefill-caches-2026-11-23.json).
Tried: nothing else.
Twin: `octavo.backends.reference.ops.attention`

A program keeps its queries and sums in registers. Other attention kernels take their cache readers and softmax from
here.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.attention.rotation import rotate, rotate_back
from octavo.backends.gpu.weights.decode_half import halves_of_fp8
from octavo.graph.node import PAGE_SIZE

PAGE = tl.constexpr(PAGE_SIZE)
LOG2E = tl.constexpr(1.4426950408889634)
MIN_SCALE = tl.constexpr(1e-30)


@triton.jit
def rows_of(data, scales, rows, seen, head, heads, shape: tl.constexpr):
    """[BLOCK_N, block_d] of a head of a cache `data` [all rows, heads, dim]; zeros for rows not `seen`, [BLOCK_N].

    They are float16 or float32 as the cache is. Of kinds "q8_0" and "int4", with `scales` float16
    [all rows, heads, dim / 32], the cache is codes, and they are float16; so they are of kinds "int8" and "fp8", as
    numbers without their scales. A byte of int4 has two codes that are 16 values apart, the first in its low bits.
    """
    DIM: tl.constexpr = shape.dim
    BLOCK_D: tl.constexpr = shape.block_d
    BLOCK_N: tl.constexpr = shape.block_n
    at = tl.arange(0, BLOCK_D)
    mask = seen[:, None] if DIM == BLOCK_D else seen[:, None] & (at < DIM)[None, :]
    place = rows.to(tl.int64) * heads * DIM
    if shape.kind == "int4":
        data += head * (DIM // 2)
        pair = at // 32 * 16 + at % 16
        both = tl.load(data + place[:, None] // 2 + pair[None, :], mask=mask, other=0)  # [BLOCK_N, BLOCK_D]
        value = tl.where((at % 32 < 16)[None, :], both << 4, both) >> 4
    else:
        data += head * DIM
        value = tl.load(data + place[:, None] + at[None, :], mask=mask, other=0)  # [BLOCK_N, BLOCK_D]
    if shape.kind == "int8":
        value = value.to(tl.float16)
    elif shape.kind == "fp8":
        value = halves_of_fp8(value)
    elif shape.grouped:
        group = tl.arange(0, BLOCK_D // 32)[None, :]
        exists = seen[:, None] & (group < DIM // 32)
        scales += head * (DIM // 32)
        scale = tl.load(scales + place[:, None] // 32 + group, mask=exists, other=0.0)  # [BLOCK_N, BLOCK_D / 32]
        groups = tl.reshape(value.to(tl.float16), (BLOCK_N, BLOCK_D // 32, 32)) * scale[:, :, None]
        value = tl.reshape(groups, (BLOCK_N, BLOCK_D))
    return value


@triton.jit
def row_scales_of(scales, rows, seen, head, heads, shape: tl.constexpr):
    """[BLOCK_N]: dynamic scales, float32 [pages, heads, PAGE], of the numbers of `rows_of`; 0 for rows not `seen`."""
    place = (rows.to(tl.int64) // PAGE * heads + head) * PAGE + rows % PAGE
    return tl.load(scales + place, mask=seen, other=0.0) * shape.unit


@triton.jit
def both_scales_of(cache, rows, seen, head, shape: tl.constexpr):
    """`row_scales_of` the keys and the values of a PagedCache."""
    k_scale = row_scales_of(cache.k_scales, rows, seen, head, cache.heads, shape)  # [BLOCK_N]
    return k_scale, row_scales_of(cache.v_scales, rows, seen, head, cache.heads, shape)


@triton.jit
def head_scale_of(scales, head, shape: tl.constexpr):
    """The static scale of a head's numbers; 1 where it has none."""
    return tl.load(scales + head) * shape.unit if shape.scales == "static" else 1.0


@triton.jit
def weighted_by_scales(p, scales, most, acc):
    """Weights [BLOCK_M, BLOCK_N] times the values' scales [BLOCK_N], over the largest so far; that, and acc over it.

    So what is rounded to float16 is at most 1, however small values are.
    """
    new = tl.maximum(most, tl.max(scales, 0))
    return p * (scales / new)[None, :], new, acc * (most / new)


@triton.jit
def weighted_by_own_scales(p, scales, most, acc):
    """`weighted_by_scales`, each query over the largest that it gives weight to, [BLOCK_M, 1], so that what
    others see makes no difference."""
    new = tl.maximum(most, tl.max(tl.where(p > 0, scales[None, :], 0.0), 1)[:, None])
    return p * scales[None, :] * (1 / new), new, acc * tl.div_rn(most, new)


@triton.jit
def keys_of(cache, rows, seen, head, shape: tl.constexpr):
    """`rows_of` the keys of a PagedCache."""
    return rows_of(cache.k, cache.k_scales, rows, seen, head, cache.heads, shape)


@triton.jit
def values_of(cache, rows, seen, head, shape: tl.constexpr):
    """`rows_of` the values of a PagedCache."""
    return rows_of(cache.v, cache.v_scales, rows, seen, head, cache.heads, shape)


@triton.jit
def visible_blocks(last, shape: tl.constexpr):
    """The first block of block_n positions that a query at position `last` sees, and how many there are from it on."""
    if shape.chunked:
        first = last // shape.window * shape.window // shape.block_n
    elif shape.window:
        first = tl.maximum(last + 1 - shape.window, 0) // shape.block_n
    else:
        first = 0
    return first, last // shape.block_n + 1 - first


@triton.jit
def seen_by(positions, token, inside, first, end, shape: tl.constexpr):
    """What the queries of a tile see: the position of each `token`, [BLOCK_M], the last that each sees, the last that
    any sees, and the first block. `first` is the first token of the tile, `end` the first of the next sequence."""
    limit = tl.load(positions + token, mask=inside, other=0)  # [BLOCK_M]
    last = tl.max(limit)
    if shape.window:  # rows beyond the end see something too, and no 0 / 0 comes out
        limit = tl.where(inside, limit, last)
    end_seen = limit
    if shape.reach:
        final = tl.load(positions + end - 1)
        end_seen, last = tl.minimum(limit + shape.reach, final), tl.minimum(last + shape.reach, final)
    earliest, _ = visible_blocks(tl.load(positions + first), shape)
    return limit, end_seen, last, earliest


@triton.jit
def row_of_block(cache, sequence, block, exists, shape: tl.constexpr):
    """The first row of the cache that holds a block of a sequence; of a block that does not exist, any."""
    page = tl.load(cache.pages + sequence * cache.width + block // shape.parts, mask=exists, other=0)
    return page * PAGE + (block % shape.parts) * shape.block_n


@triton.jit
def scores_of(q, k, shape: tl.constexpr, CODES: tl.constexpr):
    """[BLOCK_M, BLOCK_N]: q times keys k [BLOCK_N, BLOCK_D].

    q is float32: rounding it and the weights to float16 costs as much as rounding keys and values does. Where codes
    times scales have been rounded already (CODES), a second dot adds what rounding takes from the others. With keys and
    values in float32 nothing is rounded.
    """
    if shape.precision is not None:
        scores = tl.dot(q, tl.trans(k), input_precision=shape.precision)  # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
    else:
        near = q.to(tl.float16)
        scores = tl.dot(near, tl.trans(k))  # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        if CODES:
            scores = tl.dot((q - near.to(tl.float32)).to(tl.float16), tl.trans(k), scores)  # [BLOCK_M, BLOCK_N]
    return scores


@triton.jit
def slope_of(head, shape: tl.constexpr):
    """What the scores of a head lose for each position between query and key."""
    after = head - shape.sloped
    return tl.exp2(-shape.alibi * tl.where(after < 0, head + 1.0, after + 0.5))


@triton.jit
def weigh(scores, position, limit, end, m, total, acc, scale, shape: tl.constexpr):
    """Weights of a block with `scores` [BLOCK_M, BLOCK_N], and maxima, totals and sums rescaled for them.

    Row i is at position limit[i] and sees the window's positions up to end[i]. `scale` has a factor of log2(e).
    """
    scores *= scale
    if shape.cap > 0:  # cap * tanh(x / cap), of x = scores / log2(e)
        scores = shape.cap * LOG2E * (1 - 2 / (1 + tl.exp2(scores * (2 / shape.cap))))
    visible = position[None, :] <= end[:, None]  # [BLOCK_M, BLOCK_N]
    if shape.chunked:
        visible &= position[None, :] >= (limit // shape.window * shape.window)[:, None]
    elif shape.window:
        visible &= position[None, :] > limit[:, None] - shape.window
    scores = tl.where(visible, scores, float("-inf"))
    new_m = tl.maximum(m, tl.max(scores, 1))
    shift = tl.where(new_m == float("-inf"), 0.0, new_m)
    p = tl.exp2(scores - shift[:, None])
    keep = tl.exp2(m - shift)
    return p, new_m, total * keep + tl.sum(p, 1), acc * keep[:, None]


@triton.jit
def add_values(p, v, acc, shape: tl.constexpr, CODES: tl.constexpr):
    """acc + p v, the weights float32, the values [BLOCK_N, BLOCK_D]; rounded as in `scores_of`."""
    if shape.precision is not None:
        acc = tl.dot(p, v, acc, input_precision=shape.precision)  # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
    else:
        near = p.to(tl.float16)
        acc = tl.dot(near, v, acc)  # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        if CODES:
            acc = tl.dot((p - near.to(tl.float32)).to(tl.float16), v, acc)  # [BLOCK_M, BLOCK_D]
    return acc


@triton.jit
def prefill_kernel(q, cache, positions, starts, sinks, out, scale, shape: tl.constexpr, PDL: tl.constexpr):
    """Program (tile, head, sequence): block_m queries of a sequence against all that they see.

    q and out are float32 [T, heads * dim]; the tokens of a sequence are those from its `starts` on. cache is a
    PagedCache, sinks float32 [heads] or None, shape an AttentionShape.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    DIM: tl.constexpr = shape.dim
    BLOCK_D: tl.constexpr = shape.block_d
    BLOCK_M: tl.constexpr = shape.block_m
    BLOCK_N: tl.constexpr = shape.block_n
    CODES: tl.constexpr = shape.grouped
    tile, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    token = begin + tile * BLOCK_M + tl.arange(0, BLOCK_M)
    if begin + tile * BLOCK_M < end:
        inside = token < end
        at = tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (at < DIM)[None, :]
        q_at = q.data + token.to(tl.int64)[:, None] * q.stride + head * DIM + at[None, :]
        q_tile = tl.load(q_at, mask=mask, other=0.0)  # [BLOCK_M, BLOCK_D]
        if shape.rotated:
            q_tile = rotate(q_tile, BLOCK_M, BLOCK_D, DIM)
        limit, end_seen, last, earliest = seen_by(
            positions, token, inside, begin + tile * BLOCK_M, end, shape
        )  # [BLOCK_M] twice
        m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        scale *= head_scale_of(cache.k_scales, head // shape.group, shape)
        unit = head_scale_of(cache.v_scales, head // shape.group, shape)
        if shape.own_scales:
            unit = tl.full((BLOCK_M, 1), MIN_SCALE, tl.float32)
        elif shape.scales == "dynamic":
            unit = tl.full((), MIN_SCALE, tl.float32)
        for i in range(earliest, last // BLOCK_N + 1):
            row = row_of_block(cache, sequence, i, True, shape)
            position, rows = tl.arange(0, BLOCK_N) + i * BLOCK_N, tl.arange(0, BLOCK_N) + row
            seen = position <= last
            k = keys_of(cache, rows, seen, head // shape.group, shape)  # [BLOCK_N, BLOCK_D]
            scores = scores_of(q_tile, k, shape, CODES)  # [BLOCK_M, BLOCK_N]
            if shape.scales == "dynamic":
                k_scale = row_scales_of(
                    cache.k_scales, rows, seen, head // shape.group, cache.heads, shape
                )  # [BLOCK_N]
                scores *= k_scale[None, :]
            if shape.alibi > 0:
                between = tl.abs(position[None, :] - limit[:, None]).to(tl.float32)  # [BLOCK_M, BLOCK_N]
                scores -= between * (slope_of(head, shape) * LOG2E / scale)
            p, m, total, acc = weigh(scores, position, limit, end_seen, m, total, acc, scale, shape)
            v = values_of(cache, rows, seen, head // shape.group, shape)  # [BLOCK_N, BLOCK_D]
            if shape.scales == "dynamic":
                v_scale = row_scales_of(
                    cache.v_scales, rows, seen, head // shape.group, cache.heads, shape
                )  # [BLOCK_N]
                if shape.own_scales:
                    p, unit, acc = weighted_by_own_scales(p, v_scale, unit, acc)
                else:
                    p, unit, acc = weighted_by_scales(p, v_scale, unit, acc)
            acc = add_values(p, v, acc, shape, CODES)
        if sinks is not None:
            total += tl.exp2(tl.load(sinks + head) * LOG2E - m)
        o_at = out.data + token.to(tl.int64)[:, None] * out.stride + head * DIM + at[None, :]
        value = acc * unit / total[:, None]  # [BLOCK_M, BLOCK_D]
        if shape.rotated:
            value = rotate_back(value, BLOCK_M, BLOCK_D, DIM)
        tl.store(o_at, value, mask=mask)
