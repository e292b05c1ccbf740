# mypy: ignore-errors
"""Attention where keys are values too.

Algorithm: multi-head latent attention with absorbed projections (DeepSeek-V2, arXiv 2405.04434), which is
    FlashAttention over one head of keys; split-KV for single tokens, as FlashMLA has it.
Tile:
    a key   | value_dim values: keys, and values too | rope's |      e.g. 512 and 64, read once, multiplied with twice
    rows    pairs of a token and a query head, all with the same head of keys
Bound: bytes of the cache for one token of 16 heads; instructions for 128 heads and for prompts, whose codes become
    float16 for both products. The share was not measured; times are in README.md beside this file.
Tried: docs/log.md: "A tile that a loop keeps for a product of shared memory may be wrong".
Twin: `octavo.backends.reference.ops.attention`

16 rows are a token's heads or those of four tokens with four heads each, so prompts and single tokens take the same
kernel. A key's two parts are two tiles. Where registers do not hold the query, a loop takes parts of it and of the
keys, and these are read a second time as values.

Scores of int8 and fp8 keys are multiplied by the keys' scales, and so are the weights of these as values. Keys of int4
stay rotated: queries come rotated, and the caller rotates results back.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.attention.kernel import (
    LOG2E,
    MIN_SCALE,
    add_values,
    row_of_block,
    row_scales_of,
    scores_of,
    seen_by,
    weigh,
    weighted_by_own_scales,
    weighted_by_scales,
)
from octavo.backends.gpu.weights.decode_half import halves_of, halves_of_both


@triton.jit
def codes_of(cache, rows, seen, head, start, stop, BLOCK: tl.constexpr, FULL: tl.constexpr, shape: tl.constexpr):
    """What lies in a PagedCache of values `start` to `stop` of keys, BLOCK of them if FULL, and the scales of 32.

    [BLOCK_N, BLOCK], of int4 [BLOCK_N, BLOCK / 2], and scales [BLOCK_N, BLOCK / 32] or 0. Zeros for rows not `seen`,
    [BLOCK_N, 1].
    """
    PER_BYTE: tl.constexpr = 2 if shape.kind == "int4" else 1
    place = (rows.to(tl.int64) * cache.heads + head)[:, None] * shape.dim
    at = start // PER_BYTE + tl.arange(0, BLOCK // PER_BYTE)[None, :]
    mask = seen if FULL else seen & (at < stop // PER_BYTE)
    codes = tl.load(cache.k + place // PER_BYTE + at, mask=mask, other=0)
    scales = 0.0
    if shape.grouped:
        group = start // 32 + tl.arange(0, BLOCK // 32)[None, :]
        scales = tl.load(cache.k_scales + place // 32 + group, mask=seen & (group < stop // 32), other=0.0)
    return codes, scales


@triton.jit
def numbers_of(codes, scales, BLOCK: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr):
    """[BLOCK_N, BLOCK] of `codes_of`: floats as they are; float16 of codes, times their scales where 32 share one."""
    BLOCK_N: tl.constexpr = shape.block_n
    if shape.kind == "":
        value = codes
    elif shape.kind == "int4":  # the low bits of 16 bytes are 16 values, the high bits the next
        low, high = halves_of_both(codes, ASM)
        both = tl.reshape(tl.join(low, high), (BLOCK_N, BLOCK // 32, 16, 2))
        value = tl.reshape(tl.permute(both, (0, 1, 3, 2)), (BLOCK_N, BLOCK))
    elif shape.kind == "q8_0":
        value = codes.to(tl.float16)
    else:
        value = halves_of(codes, shape.kind, ASM)
    if shape.grouped:
        groups = tl.reshape(value, (BLOCK_N, BLOCK // 32, 32)) * scales[:, :, None]
        value = tl.reshape(groups, (BLOCK_N, BLOCK))
    return value


@triton.jit
def _block_of(cache, sequence, block, exists, last, head, shape: tl.constexpr):
    """`codes_of` the values of a block's keys, of what else keys have, and `row_scales_of` them; zeros after position
    `last`, and of a block that does not exist."""
    DIM: tl.constexpr = shape.dim
    SIZE: tl.constexpr = shape.value_dim
    BLOCK_D: tl.constexpr = shape.block_d
    BLOCK_R: tl.constexpr = shape.block_r
    rows, position = _places_of(cache, sequence, block, exists, shape)
    seen = (position <= last) & exists
    codes, scales = codes_of(cache, rows, seen[:, None], head, 0, SIZE, BLOCK_D, SIZE == BLOCK_D, shape)
    rest, rest_scales, row_scale = 0.0, 0.0, 0.0
    if SIZE < DIM:
        rest, rest_scales = codes_of(cache, rows, seen[:, None], head, SIZE, DIM, BLOCK_R, DIM - SIZE == BLOCK_R, shape)
    if shape.scales == "dynamic":
        row_scale = row_scales_of(cache.k_scales, rows, seen, head, cache.heads, shape)  # [BLOCK_N]
    return codes, scales, rest, rest_scales, row_scale


@triton.jit
def _places_of(cache, sequence, block, exists, shape: tl.constexpr):
    """The rows of a cache that hold a block's positions, and these, [BLOCK_N] both."""
    place = tl.arange(0, shape.block_n)
    return place + row_of_block(cache, sequence, block, exists, shape), place + block * shape.block_n


@triton.jit
def _scores_by_parts(q_at, inside, cache, rows, seen, head, shape: tl.constexpr, ASM: tl.constexpr):
    """[BLOCK_M, BLOCK_N]: queries at `q_at`, where `inside`, times keys, some values of both at a time."""
    DIM: tl.constexpr = shape.dim
    PART: tl.constexpr = shape.part
    scores = tl.zeros((shape.block_m, shape.block_n), tl.float32)
    for start in range(0, DIM, PART):
        at = start + tl.arange(0, PART)[None, :]
        q = tl.load(q_at[:, None] + at, mask=inside[:, None] & (at < DIM), other=0.0)  # [BLOCK_M, PART]
        codes, scales = codes_of(cache, rows, seen[:, None], head, start, DIM, PART, DIM % PART == 0, shape)
        k = numbers_of(codes, scales, PART, shape, ASM)  # [BLOCK_N, PART]
        scores += _scores_of(q, k, shape)  # [BLOCK_M, BLOCK_N]
    return scores


@triton.jit
def _scores_of(q, k, shape: tl.constexpr):
    """As `scores_of`, in most cases keys times queries: tensor cores take 64 rows and any 8 columns."""
    CODES: tl.constexpr = shape.kind == "q8_0"
    if shape.precision is not None or CODES:
        scores = scores_of(q, k, shape, CODES)
    else:
        scores = tl.trans(tl.dot(k, tl.trans(q.to(tl.float16))))  # [BLOCK_N, BLOCK_D] @ [BLOCK_D, BLOCK_M]
    return scores


@triton.jit
def _add_values(p, v, acc, shape: tl.constexpr):
    """As `add_values`, in the order of `_scores_of`."""
    CODES: tl.constexpr = shape.kind == "q8_0"
    if shape.precision is not None or CODES:
        acc = add_values(p, v, acc, shape, CODES)
    else:  # [BLOCK_D, BLOCK_N] @ [BLOCK_N, BLOCK_M]
        acc = tl.trans(tl.dot(tl.trans(v), tl.trans(p.to(tl.float16)), tl.trans(acc)))
    return acc


@triton.jit
def latent_kernel(
    q, cache, positions, starts, sinks, out, partial, scale, shape: tl.constexpr, PDL: tl.constexpr, ASM: tl.constexpr
):
    """Program (tile, split and K/V head, sequence): block_m rows against its part of the blocks that they see.

    q is float32 [T, heads * dim], rotated if the cache is; cache is a PagedCache whose keys are values too, shape an
    AttentionShape; if it is `ahead`, codes of the next block are read, and made float16 at its end, during a block. The
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
    DYNAMIC: tl.constexpr = shape.scales == "dynamic"
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
        at, after = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_R)
        q_at = q.data + token.to(tl.int64) * q.stride + head * DIM  # [BLOCK_M]
        if not PART:
            q_mask = inside[:, None] & (at < SIZE)[None, :]
            q_tile = tl.load(q_at[:, None] + at[None, :], mask=q_mask, other=0.0)  # [BLOCK_M, BLOCK_D]
            rest_mask = inside[:, None] & (after < DIM - SIZE)[None, :]
            q_rest = tl.load(q_at[:, None] + SIZE + after[None, :], mask=rest_mask, other=0.0)  # [BLOCK_M, BLOCK_R]
        m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        if shape.own_scales:
            unit = tl.full((BLOCK_M, 1), MIN_SCALE, tl.float32)
        else:
            unit = tl.full((), MIN_SCALE if DYNAMIC else 1.0, tl.float32)
        if shape.ahead:
            codes, scales, rest, rest_scales, k_scale = _block_of(
                cache, sequence, first, first < stop, last, kv_head, shape
            )
            k = numbers_of(codes, scales, BLOCK_D, shape, ASM)  # [BLOCK_N, BLOCK_D]
            if SIZE < DIM:
                k_rest = numbers_of(rest, rest_scales, BLOCK_R, shape, ASM)  # [BLOCK_N, BLOCK_R]
        for i in tl.range(first, stop, disable_licm=True):  # which moves places of loads out of it, into registers
            if PART:
                rows, position = _places_of(cache, sequence, i, True, shape)
                scores = _scores_by_parts(
                    q_at, inside, cache, rows, position <= last, kv_head, shape, ASM
                )  # [BLOCK_M, BLOCK_N]
            if shape.ahead:
                codes, scales, rest, rest_scales, next_scale = _block_of(
                    cache, sequence, i + 1, i + 1 < stop, last, kv_head, shape
                )
            else:
                codes, scales, rest, rest_scales, k_scale = _block_of(cache, sequence, i, True, last, kv_head, shape)
                k = numbers_of(codes, scales, BLOCK_D, shape, ASM)  # [BLOCK_N, BLOCK_D]
                if SIZE < DIM:
                    k_rest = numbers_of(rest, rest_scales, BLOCK_R, shape, ASM)  # [BLOCK_N, BLOCK_R]
            if not PART:
                scores = _scores_of(q_tile, k, shape)  # [BLOCK_M, BLOCK_N]
                if SIZE < DIM:
                    scores += _scores_of(q_rest, k_rest, shape)  # [BLOCK_M, BLOCK_N]
            if DYNAMIC:
                scores *= k_scale[None, :]
            position = i * BLOCK_N + tl.arange(0, BLOCK_N)
            p, m, total, acc = weigh(scores, position, limit, end_seen, m, total, acc, scale, shape)
            if shape.own_scales:
                p, unit, acc = weighted_by_own_scales(p, k_scale, unit, acc)
            elif DYNAMIC:
                p, unit, acc = weighted_by_scales(p, k_scale, unit, acc)
            acc = _add_values(p, k, acc, shape)  # [BLOCK_M, BLOCK_D]
            if shape.ahead:
                k = numbers_of(codes, scales, BLOCK_D, shape, ASM)  # [BLOCK_N, BLOCK_D]
                if SIZE < DIM:
                    k_rest = numbers_of(rest, rest_scales, BLOCK_R, shape, ASM)  # [BLOCK_N, BLOCK_R]
                if DYNAMIC:
                    k_scale = next_scale
        if partial is None:
            if sinks is not None:
                total += tl.exp2(tl.load(sinks + head, mask=inside, other=0.0) * LOG2E - m)
            o_at = out.data + token.to(tl.int64) * out.stride + head * SIZE
            o_mask = inside[:, None] & (at < SIZE)[None, :]
            tl.store(o_at[:, None] + at[None, :], acc * unit / total[:, None], mask=o_mask)  # [BLOCK_M, BLOCK_D]
        elif split < used:
            part = (sequence * cache.heads * GROUP + head) * SPLITS + split
            tl.store(partial.outputs + part[:, None] * BLOCK_D + at[None, :], acc * unit, mask=inside[:, None])
            tl.store(partial.maxima + part, m, mask=inside)
            tl.store(partial.totals + part, total, mask=inside)
