# mypy: ignore-errors
"""Decoding attention, in portable Triton.

Algorithm: flash-decoding (split-KV): FlashAttention with a sequence's keys divided among programs.
Tile:
    pages of a sequence  | 0 1 2 | 3 4 5 | 6 7 8 |      a program a split and head of keys, for all its query heads
                             |       |       |
                          partial outputs, maxima and totals -> `combine_kernel`, a program a query head
Bound: bytes of the cache at depth, latency before: from float16 one sequence of 4,096 tokens takes 8.8 us on an H200,
    42% of the read limit, and one of 512 takes 4.6 us, 10% (bench/results/gpu-attention-2026-11-24.json).
Tried: docs/log.md: "Attention to a token's own row apart from the blocks gained nothing"; "One kernel for attention,
    rotation and cache writes is slower than three"; "A last program that finishes for others costs as much as a
    launch".
Twin: `octavo.backends.reference.ops.attention`

Splits fill a device that sequences and heads alone do not. What earlier steps wrote to the caches is loaded before the
previous kernel's results are waited for (PDL), all but the row of the token itself.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.attention.kernel import (
    LOG2E,
    MIN_SCALE,
    add_values,
    both_scales_of,
    head_scale_of,
    keys_of,
    row_of_block,
    scores_of,
    slope_of,
    values_of,
    visible_blocks,
    weigh,
    weighted_by_scales,
)
from octavo.backends.gpu.attention.rotation import rotate, rotate_back
from octavo.backends.gpu.matmul.activations import store_q8_1

FEW_SPLITS = tl.constexpr(8)
"""Splits that are combined with few loads, where a sequence uses no more of its own."""


@triton.jit
def decode_kernel(q, cache, positions, sinks, out, partial, scale, shape: tl.constexpr, PDL: tl.constexpr):
    """Program (sequence, K/V head, split) attends to its part of the blocks, for all query heads of the K/V head.

    q is float32 [sequences, heads * dim], cache a PagedCache, partial a PartialAttention, shape an AttentionShape; if
    it is `ahead`, the first block is read before all else.
    """
    if PDL:
        gdc_launch_dependents()
    DIM: tl.constexpr = shape.dim
    BLOCK_D: tl.constexpr = shape.block_d
    BLOCK_M: tl.constexpr = shape.block_m
    BLOCK_N: tl.constexpr = shape.block_n
    GROUP: tl.constexpr = shape.group
    SPLITS: tl.constexpr = shape.splits
    CODES: tl.constexpr = shape.grouped
    DYNAMIC: tl.constexpr = shape.scales == "dynamic"
    sequence, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    last = tl.load(positions + sequence)
    earliest, blocks = visible_blocks(last, shape)
    used = tl.minimum(blocks, SPLITS)  # by those that have blocks at all
    first = earliest + split * blocks // used
    stop = tl.where(split < used, earliest + (split + 1) * blocks // used, 0)
    if first < stop:  # programs without a part end here, and leave their place to those of the next kernel
        at, member, place = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
        row = row_of_block(cache, sequence, first, True, shape)
        position = place + first * BLOCK_N
        if shape.ahead:
            before = position < last
            k_old = keys_of(cache, place + row, before, head, shape)  # [BLOCK_N, BLOCK_D]
            v_old = values_of(cache, place + row, before, head, shape)  # [BLOCK_N, BLOCK_D]
            if DYNAMIC:
                k_scale_old, v_scale_old = both_scales_of(cache, place + row, before, head, shape)  # [BLOCK_N] each
        if PDL:
            gdc_wait()
        q_at = q.data + sequence * q.stride + (head * GROUP + member)[:, None] * DIM + at[None, :]
        q_mask = (member < GROUP)[:, None] & (at < DIM)[None, :]
        q_tile = tl.load(q_at, mask=q_mask, other=0.0)  # [BLOCK_M, BLOCK_D]
        if shape.rotated:
            q_tile = rotate(q_tile, BLOCK_M, BLOCK_D, DIM)
        now = (position == last) if shape.ahead else (position <= last)
        k = keys_of(cache, place + row, now, head, shape)  # [BLOCK_N, BLOCK_D]
        v = values_of(cache, place + row, now, head, shape)  # [BLOCK_N, BLOCK_D]
        if DYNAMIC:
            k_scale, v_scale = both_scales_of(cache, place + row, now, head, shape)  # [BLOCK_N] each
        if shape.ahead:
            k, v = tl.where(now[:, None], k, k_old), tl.where(now[:, None], v, v_old)
            if DYNAMIC:
                k_scale, v_scale = tl.where(now, k_scale, k_scale_old), tl.where(now, v_scale, v_scale_old)
        limit = tl.full((BLOCK_M,), 0, tl.int32) + last
        m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        scale *= head_scale_of(cache.k_scales, head, shape)
        unit = tl.full((), MIN_SCALE, tl.float32) if DYNAMIC else head_scale_of(cache.v_scales, head, shape)
        for i in tl.range(first + 1, stop + 1, num_stages=1):
            row = row_of_block(cache, sequence, i, i < stop, shape)
            coming = (place + i * BLOCK_N <= last) & (i < stop)
            k_next = keys_of(cache, place + row, coming, head, shape)  # [BLOCK_N, BLOCK_D]
            v_next = values_of(cache, place + row, coming, head, shape)  # [BLOCK_N, BLOCK_D]
            scores = scores_of(q_tile, k, shape, CODES)  # [BLOCK_M, BLOCK_N]
            if DYNAMIC:
                scores *= k_scale[None, :]
            if shape.alibi > 0:
                between = (last - position).to(tl.float32)  # [BLOCK_N]
                slope = slope_of(head * GROUP + member, shape)  # [BLOCK_M]
                scores -= between[None, :] * (slope * (LOG2E / scale))[:, None]
            p, m, total, acc = weigh(scores, position, limit, limit, m, total, acc, scale, shape)
            if DYNAMIC:
                p, unit, acc = weighted_by_scales(p, v_scale, unit, acc)
                k_scale, v_scale = both_scales_of(cache, place + row, coming, head, shape)  # [BLOCK_N] each
            acc = add_values(p, v, acc, shape, CODES)
            k, v, position = k_next, v_next, position + BLOCK_N
        inside = member < GROUP
        if partial is None:
            if sinks is not None:
                total += tl.exp2(tl.load(sinks + head * GROUP + member, mask=inside, other=0.0) * LOG2E - m)
            o_at = out.data + sequence * out.stride + (head * GROUP + member)[:, None] * DIM + at[None, :]
            value = acc * unit / total[:, None]  # [BLOCK_M, BLOCK_D]
            if shape.rotated:
                value = rotate_back(value, BLOCK_M, BLOCK_D, DIM)
            tl.store(o_at, value, mask=q_mask)
        else:
            line = (sequence * cache.heads * GROUP + head * GROUP + member) * SPLITS + split
            o_at = partial.outputs + line[:, None] * BLOCK_D + at[None, :]
            tl.store(o_at, acc * unit, mask=inside[:, None])  # [BLOCK_M, BLOCK_D]
            tl.store(partial.maxima + line, m, mask=inside)
            tl.store(partial.totals + line, total, mask=inside)


@triton.jit
def _combined(
    partial, row, used, start, sink, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, COUNT: tl.constexpr
):
    """SIZE values of a head, from `start` on, from the first `used` of COUNT splits, whose results are from `row` on;
    `sink` is a score without a value, or None."""
    at, split = start + tl.arange(0, SIZE), tl.arange(0, COUNT)
    m = tl.load(partial.maxima + row + split, mask=split < used, other=float("-inf"))  # [COUNT]
    total = tl.load(partial.totals + row + split, mask=split < used, other=0.0)  # [COUNT]
    values_at = partial.outputs + (row + split)[:, None] * BLOCK_D + at[None, :]
    values = tl.load(values_at, mask=(split < used)[:, None], other=0.0)  # [COUNT, SIZE]
    most = tl.max(m)
    weight = tl.exp2(m - most)
    whole = tl.sum(weight * total)
    if sink is not None:
        whole += tl.exp2(sink - most)
    return tl.sum(values * weight[:, None], 0) / whole


@triton.jit
def combine_kernel(
    partial, positions, sinks, out, quantized, ordered, heads, shape: tl.constexpr, PDL: tl.constexpr
):
    """Program (sequence, head, part): the head's result from all splits, or shape.part values of it.

    It is float32 in `out` [sequences, heads * dim], or if that is None as `store_q8_1` writes it to `quantized` and
    `ordered`. `sinks`, float32 [heads] or None, are scores without values.
    """
    if PDL:
        gdc_launch_dependents()
    DIM: tl.constexpr = shape.result_dim
    BLOCK_D: tl.constexpr = shape.block_d
    SPLITS: tl.constexpr = shape.splits
    SIZE: tl.constexpr = shape.part if shape.part else shape.block_d
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.program_id(2) * SIZE if shape.part else 0
    _, blocks = visible_blocks(tl.load(positions + sequence), shape)
    used = tl.minimum(blocks, SPLITS)
    if PDL:
        gdc_wait()
    sink = None
    if sinks is not None:
        sink = tl.load(sinks + head) * LOG2E
    row = (sequence * heads + head) * SPLITS
    if SPLITS > FEW_SPLITS:
        if used > FEW_SPLITS:
            value = _combined(partial, row, used, start, sink, SIZE, BLOCK_D, triton.next_power_of_2(SPLITS))
        else:
            value = _combined(partial, row, used, start, sink, SIZE, BLOCK_D, FEW_SPLITS)
    else:
        value = _combined(partial, row, used, start, sink, SIZE, BLOCK_D, triton.next_power_of_2(SPLITS))
    if shape.rotated:
        value = tl.reshape(rotate_back(tl.reshape(value, (1, SIZE)), 1, SIZE, shape.dim, start), (SIZE,))
    if out is None:
        first = head * (DIM // 32)
        groups = tl.reshape(value, (SIZE // 32, 32))
        end = first + DIM // 32
        store_q8_1(groups, quantized, ordered, sequence, first + start // 32, end, heads * DIM, SIZE // 32)
    else:
        at = start + tl.arange(0, SIZE)
        tl.store(out.data + sequence * out.stride + head * DIM + at, value, mask=at < DIM)
