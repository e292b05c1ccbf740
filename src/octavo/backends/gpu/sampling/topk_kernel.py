# mypy: ignore-errors
"""Top-k of logits.

Algorithm: one value by a reduction in two launches; many by maxima of groups: the k largest values lie in the k groups
    whose own largest are the largest, and both are ranked by pairwise comparison.
Tile:
    logits    | group g: values g, groups + g, 2 groups + g, ... |      largest key of each group
    groups    rank of each among all by comparison -> the k best
    values    of these k groups, those not below the k-th key -> ranked
Bound: latency, of launches: with embedding and last row the choice of the likeliest takes 6 to 8 us of a step
    (docs/log.md, "Where the rest of a decode step goes").
Tried: nothing else.
Twin: `octavo.backends.reference.ops.top_candidates`, `octavo.backends.reference.ops.merge_candidates`

A value and its index are one int64 key: the higher the key the larger the value, and of equal values the lower index.
Values that are not finite are counted.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LAST_INDEX = tl.constexpr(0x7FFFFFFF)
MIN_KEY = tl.constexpr(-(1 << 63))  # below the key of any value
EXPONENT = tl.constexpr(0x7F800000)


@triton.jit
def _ordered_bits(bits):
    """The bits of a float32 as an integer of the same order, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _bits_and_keys(x, at, inside):
    """The bits of values x[at], zeros of one sign, and their keys; MIN_KEY where `inside` is false."""
    value = tl.load(x + at, mask=inside, other=0.0)
    bits = tl.where(value == 0, 0.0, value).to(tl.int32, bitcast=True)
    return bits, tl.where(inside, (_ordered_bits(bits).to(tl.int64) << 32) | (-at + LAST_INDEX).to(tl.int64), MIN_KEY)


@triton.jit
def _count_of_odd(bits):
    return tl.sum(((bits & EXPONENT) == EXPONENT).to(tl.int32))


@triton.jit
def _store_result(row, rank, key, mask, K: tl.constexpr):
    """Index and value of keys that have a rank, in a row int32 [1 + 2K]."""
    tl.store(row + 1 + rank, -(key & 0x7FFFFFFF).to(tl.int32) + LAST_INDEX, mask=mask)
    tl.store(row + 1 + K + rank, _ordered_bits((key >> 32).to(tl.int32)), mask=mask)


@triton.jit
def best_parts_kernel(x, keys, bad, x_stride, n, parts, B: tl.constexpr, PDL: tl.constexpr):
    """Program (token, part): the largest key of a part of B values, [T, parts], and how many are not finite."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * B + tl.arange(0, B)
    bits, key = _bits_and_keys(x + token * x_stride, at, at < n)
    tl.store(keys + token * parts + part, tl.max(key))
    tl.store(bad + token * parts + part, _count_of_odd(bits))


@triton.jit
def best_merge_kernel(keys, bad, out, parts, B: tl.constexpr, PDL: tl.constexpr):
    """Program (token): out int32 [T, 3] from the keys of all parts; B holds all parts."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, part = tl.program_id(0).to(tl.int64), tl.arange(0, B)
    key = tl.max(tl.load(keys + token * parts + part, mask=part < parts, other=MIN_KEY))
    tl.store(out + token * 3, tl.sum(tl.load(bad + token * parts + part, mask=part < parts, other=0)))
    _store_result(out + token * 3, 0, key, None, 1)


@triton.jit
def group_maxima_kernel(
    x, keys, bad, x_stride, n, groups, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Program (token, block): the largest keys of BLOCK groups, [T, groups], and how many of their values are not
    finite. Group g has the values g, groups + g, ..., SIZE or fewer; `groups` is a multiple of BLOCK."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = block * BLOCK + tl.arange(0, BLOCK)
    at = tl.arange(0, SIZE)[:, None] * groups + group[None, :]
    bits, key = _bits_and_keys(x + token * x_stride, at, at < n)  # [SIZE, BLOCK]
    tl.store(keys + token * groups + group, tl.max(key, 0))
    tl.store(bad + token * tl.num_programs(1) + block, _count_of_odd(bits))


@triton.jit
def rank_groups_kernel(
    keys, chosen, groups, K: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr
):
    """Program (token, block): of BLOCK groups those whose keys are among the K largest; `chosen` int64 [T, K] has these
    keys in their order. There are K groups or more."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    row, group = keys + token * groups, tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(row + group, mask=group < groups, other=MIN_KEY)  # [BLOCK]
    larger = tl.zeros((BLOCK, STEP), tl.int32)
    for first in range(0, groups, STEP):
        other = first + tl.arange(0, STEP)
        key = tl.load(row + other, mask=other < groups, other=MIN_KEY)  # [STEP]
        larger += (key[None, :] > mine[:, None]).to(tl.int32)
    rank = tl.sum(larger, 1)
    tl.store(chosen + token * K + rank, mine, mask=(rank < K) & (group < groups))


@triton.jit
def topk_of_groups_kernel(
    x, chosen, bad, scratch, out, n, groups,
    K: tl.constexpr, SIZE: tl.constexpr, MOST: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):
    """Program (token): out int32 [T, 1 + 2K], from the groups of `rank_groups_kernel`.

    Values below the least of the K keys are left out. What is left is mostly few more than K, which are ranked; if
    there are more than MOST, the largest is found again and again. `scratch` is int64 [T, MOST], `bad` [T, BLOCKS].
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    row, scratch, chosen = out + token * (1 + 2 * K), scratch + token * MOST, chosen + token * K
    block = tl.arange(0, triton.next_power_of_2(BLOCKS))
    tl.store(row, tl.sum(tl.load(bad + token * BLOCKS + block, mask=block < BLOCKS, other=0)))
    least = tl.load(chosen + K - 1)
    which = tl.arange(0, SIZE * triton.next_power_of_2(K))
    holder = tl.load(chosen + which // SIZE, mask=which // SIZE < K, other=0)
    first = (-(holder & 0x7FFFFFFF).to(tl.int32) + LAST_INDEX) % groups
    at = first + which % SIZE * groups
    _, key = _bits_and_keys(x.data + token * x.stride, at, (which // SIZE < K) & (at < n))
    kept = key >= least
    place = tl.cumsum(kept.to(tl.int32)) - 1
    count = tl.max(place) + 1
    if count <= MOST:
        tl.store(scratch + place, key, mask=kept)
        tl.debug_barrier()
        left = tl.arange(0, MOST)
        mine = tl.load(scratch + left, mask=left < count, other=MIN_KEY)  # [MOST]
        rank = tl.sum((mine[None, :] > mine[:, None]).to(tl.int32), 1)
        _store_result(row, rank, mine, (rank < K) & (left < count), K)
    else:
        for i in range(K):
            best = tl.max(key)
            _store_result(row, i, best, None, K)
            key = tl.where(key == best, MIN_KEY, key)


@triton.jit
def merge_ranks_kernel(
    x, firsts, out, x_stride, K: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr
):
    """Program (token): the row of op `top_candidates` from those of parts, side by side, that begin at `firsts`.

    A candidate's place is how many are larger, or equal and of an earlier part or place.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, at = tl.program_id(0).to(tl.int64), tl.arange(0, B)
    row, own = x + token * x_stride, out + token * (1 + 2 * K)
    inside, bad = at < K, 0
    for part in tl.static_range(len(firsts)):
        words = row + part * (1 + 2 * K)
        bad += tl.load(words)
        place = tl.load(words + 1 + at, mask=inside, other=0) + firsts[part]  # [B]
        bits = tl.load(words + 1 + K + at, mask=inside, other=0)
        value = tl.where(inside, bits.to(tl.float32, bitcast=True), -float("inf"))
        rank = tl.zeros([B], tl.int32)
        for other in tl.static_range(len(firsts)):
            there = row + other * (1 + 2 * K) + 1 + K + at
            others = tl.load(there, mask=inside, other=0).to(tl.float32, bitcast=True)
            ahead = others[None, :] > value[:, None]  # [B, B]
            if other < part:
                ahead |= others[None, :] == value[:, None]
            if other == part:
                ahead |= (others[None, :] == value[:, None]) & (at[None, :] < at[:, None])
            rank += tl.sum((ahead & inside[None, :]).to(tl.int32), 1)
        chosen = inside & (rank < K)
        tl.store(own + 1 + rank, place, mask=chosen)
        tl.store(own + 1 + K + rank, bits, mask=chosen)
    tl.store(own, bad)
