"""Attention where keys are values too (arXiv 2405.04434): a block of keys is read once, and multiplied with twice.

Rows of a tile are pairs of a token and a query head, which all share the head of keys: 16 rows are a token's heads or
those of four tokens with four heads each. So prompts and single tokens take the same kernel. A key's first values,
those that are values too, and the others are two tiles. Where registers do not hold the query, a loop takes parts of it
and of the keys, and these are read a second time as values.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.attention import (
    LOG2E,
    add_values,
    row_of_block,
    scores_of,
    seen_by,
    weigh,
)


@triton.jit
def columns_of(cache, rows, seen, head, start, stop, BLOCK: tl.constexpr, FULL: tl.constexpr, shape: tl.constexpr):
    """[BLOCK_N, BLOCK]: values `start` to `stop` of keys of a PagedCache, BLOCK of them if FULL.

    Zeros for rows not `seen`, [BLOCK_N, 1]. They are float16 or float32 as the cache is, float16 of codes.
    """
    BLOCK_N: tl.constexpr = shape.block_n
    at = start + tl.arange(0, BLOCK)[None, :]
    place = (rows.to(tl.int64) * cache.heads + head) * shape.dim
    mask = seen if FULL else seen & (at < stop)
    value = tl.load(cache.k + place[:, None] + at, mask=mask, other=0)  # [BLOCK_N, BLOCK]
    if cache.k_scales is not None:
        group = start // 32 + tl.arange(0, BLOCK // 32)[None, :]
        scale_at = cache.k_scales + place[:, None] // 32 + group
        scale = tl.load(scale_at, mask=seen & (group < stop // 32), other=0.0)  # [BLOCK_N, BLOCK / 32]
        groups = tl.reshape(value.to(tl.float16), (BLOCK_N, BLOCK // 32, 32)) * scale[:, :, None]
        value = tl.reshape(groups, (BLOCK_N, BLOCK))
    return value


@triton.jit
def _scores_of(q, k, shape: tl.constexpr, CODES: tl.constexpr):
    """As `scores_of`. Floats are multiplied as keys and queries: tensor cores take 64 rows and any 8 columns."""
    if CODES or shape.precision is not None:
        scores = scores_of(q, k, shape, CODES)
    else:
        scores = tl.trans(tl.dot(k, tl.trans(q.to(tl.float16))))  # [BLOCK_N, BLOCK_D] @ [BLOCK_D, BLOCK_M]
    return scores


@triton.jit
def _add_values(p, v, acc, shape: tl.constexpr, CODES: tl.constexpr):
    """As `add_values`, and floats as `_scores_of` has them."""
    if CODES or shape.precision is not None:
        acc = add_values(p, v, acc, shape, CODES)
    else:  # [BLOCK_D, BLOCK_N] @ [BLOCK_N, BLOCK_M]
        acc = tl.trans(tl.dot(tl.trans(v), tl.trans(p.to(tl.float16)), tl.trans(acc)))
    return acc


@triton.jit
def latent_kernel(q, cache, positions, starts, sinks, out, partial, scale, shape: tl.constexpr, PDL: tl.constexpr):
    """Program (tile, split and K/V head, sequence): block_m rows against its part of the blocks that they see.

    q is float32 [T, heads * dim], cache a PagedCache whose keys are values too, shape an AttentionShape. The
    result is in `out` [T, heads * value_dim], with `sinks`, float32 [heads] or None, in its totals; or that of each
    split is in `partial`, a PartialAttention, and each sequence has one token. The other of the two is None, and so are
    `starts` where each sequence has one token.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    DIM: tl.constexpr = shape.dim
    SIZE: tl.constexpr = shape.value_dim
    BLOCK_D: tl.constexpr = shape.block_d
    BLOCK_R: tl.constexpr = shape.block_r
    PART: tl.constexpr = shape.part
    BLOCK_M: tl.constexpr = shape.block_m
    BLOCK_N: tl.constexpr = shape.block_n
    GROUP: tl.constexpr = shape.group
    SPLITS: tl.constexpr = shape.splits
    CODES: tl.constexpr = shape.kind == "q8_0"
    tile, sequence = tl.program_id(0), tl.program_id(2).to(tl.int64)
    split, kv_head = tl.program_id(1) % SPLITS, tl.program_id(1) // SPLITS
    if starts is None:
        begin, end = sequence, sequence + 1
    else:
        begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    if tile * BLOCK_M < (end - begin) * GROUP:
        member = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = member < (end - begin) * GROUP
        token, head = begin + member // GROUP, kv_head * GROUP + member % GROUP
        limit, end_seen, last, earliest = seen_by(
            positions, token, inside, begin + tile * BLOCK_M // GROUP, end, shape
        )  # [BLOCK_M] twice
        blocks = last // BLOCK_N + 1 - earliest
        used = tl.minimum(blocks, SPLITS)  # by those that have blocks at all
        first = earliest + tl.minimum(split, used) * blocks // used
        stop = earliest + tl.minimum(split + 1, used) * blocks // used
        at, rest, place = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_N)
        q_at = q.data + token.to(tl.int64) * q.stride + head * DIM  # [BLOCK_M]
        if not PART:
            q_mask = inside[:, None] & (at < SIZE)[None, :]
            q_tile = tl.load(q_at[:, None] + at[None, :], mask=q_mask, other=0.0)  # [BLOCK_M, BLOCK_D]
            rest_mask = inside[:, None] & (rest < DIM - SIZE)[None, :]
            q_rest = tl.load(q_at[:, None] + SIZE + rest[None, :], mask=rest_mask, other=0.0)  # [BLOCK_M, BLOCK_R]
        m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        for i in tl.range(first, stop, disable_licm=True):  # which moves places of loads out of it, into registers
            row = row_of_block(cache, sequence, i, True, shape)
            position = place + i * BLOCK_N
            seen = (position <= last)[:, None]
            if PART:
                scores = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                for start in range(0, DIM, PART):
                    some = start + tl.arange(0, PART)
                    some_mask = inside[:, None] & (some < DIM)[None, :]
                    q_some = tl.load(q_at[:, None] + some[None, :], mask=some_mask, other=0.0)  # [BLOCK_M, PART]
                    k_some = columns_of(
                        cache, place + row, seen, kv_head, start, DIM, PART, DIM % PART == 0, shape
                    )  # [BLOCK_N, PART]
                    scores += _scores_of(q_some, k_some, shape, CODES)  # [BLOCK_M, BLOCK_N]
            k = columns_of(
                cache, place + row, seen, kv_head, 0, SIZE, BLOCK_D, SIZE == BLOCK_D, shape
            )  # [BLOCK_N, BLOCK_D]
            if not PART:
                scores = _scores_of(q_tile, k, shape, CODES)  # [BLOCK_M, BLOCK_N]
                if SIZE < DIM:
                    k_rest = columns_of(
                        cache, place + row, seen, kv_head, SIZE, DIM, BLOCK_R, DIM - SIZE == BLOCK_R, shape
                    )  # [BLOCK_N, BLOCK_R]
                    scores += _scores_of(q_rest, k_rest, shape, CODES)  # [BLOCK_M, BLOCK_N]
            p, m, total, acc = weigh(scores, position, limit, end_seen, m, total, acc, scale, shape)
            acc = _add_values(p, k, acc, shape, CODES)  # [BLOCK_M, BLOCK_D]
        if partial is None:
            if sinks is not None:
                total += tl.exp2(tl.load(sinks + head, mask=inside, other=0.0) * LOG2E - m)
            o_at = out.data + token.to(tl.int64) * out.stride + head * SIZE
            o_mask = inside[:, None] & (at < SIZE)[None, :]
            tl.store(o_at[:, None] + at[None, :], acc / total[:, None], mask=o_mask)  # [BLOCK_M, BLOCK_D]
        elif split < used:
            part = (sequence * cache.heads * GROUP + head) * SPLITS + split
            tl.store(partial.outputs + part[:, None] * BLOCK_D + at[None, :], acc, mask=inside[:, None])
            tl.store(partial.maxima + part, m, mask=inside)
            tl.store(partial.totals + part, total, mask=inside)
