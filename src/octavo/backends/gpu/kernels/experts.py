"""Products with many tokens, each with experts of its own: pairs of a token and an expert, sorted by expert.

`sort_kernel` brings pairs of one expert together, `experts_kernel` multiplies tiles of them: codes become float16 in
registers, so an expert's weights are read once a tile, and those of an expert without tokens not at all. How many tiles
there are is known on the device only; programs beyond the last one end at once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.codes import look_up, low_and_high, scales
from octavo.backends.gpu.kernels.dequantize import values_of


@triton.jit
def sort_kernel(ids, order, counts, n_pairs, B: tl.constexpr, PDL: tl.constexpr):
    """Program e: counts[e] of the pairs whose id is e, and their numbers, in order, where a sort by id puts them."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    below = tl.zeros((B,), tl.int32)
    same = tl.zeros((B,), tl.int32)
    for first in range(0, n_pairs, B):
        pair = first + tl.arange(0, B)
        id = tl.load(ids + pair, mask=pair < n_pairs, other=2**30)
        below += (id < expert).to(tl.int32)
        same += (id == expert).to(tl.int32)
    count = tl.sum(same)
    tl.store(counts + expert, count)
    if count > 0:
        place = tl.sum(below)
        for first in range(0, n_pairs, B):
            pair = first + tl.arange(0, B)
            mine = tl.load(ids + pair, mask=pair < n_pairs, other=2**30) == expert
            rank = tl.cumsum(mine.to(tl.int32))
            tl.store(order + place + rank - 1, pair, mask=mine)
            place += tl.sum(mine.to(tl.int32))


@triton.jit
def experts_kernel(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, table0, table1, table2, table3,
    halves, order, counts, y, n, experts, sharing, y_stride,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, SIGNED: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    EP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y f32 [pairs, N]: row i is W[ids[i]] of row i // sharing of `halves` [rows, kp].

    A program has BM pairs and BN rows of W. EP is a power of two, at least the number of experts.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tile = tl.program_id(1)
    all_experts = tl.arange(0, EP)
    count = tl.load(counts + all_experts, mask=all_experts < experts, other=0)
    tiles = (count + BM - 1) // BM
    if tile < tl.sum(tiles):
        expert = tl.sum((tl.cumsum(tiles) <= tile).to(tl.int32))
        before = all_experts < expert
        place = (tile - tl.sum(tl.where(before, tiles, 0))) * BM + tl.arange(0, BM)
        inside = place < tl.sum(tl.where(all_experts == expert, count, 0))
        pair = tl.load(order + tl.sum(tl.where(before, count, 0)) + place, mask=inside, other=0)
        x = halves + (pair // sharing).to(tl.int64)[None, :] * kp + tl.arange(0, 64)[:, None]
        at = tl.program_id(0) * BN + tl.arange(0, BN)
        row = (tl.minimum(at, n - 1).to(tl.int64) + expert.to(tl.int64) * n)[:, None]
        table = (table0, table1, table2, table3)
        SHIFT: tl.constexpr = 8 - BITS if SIGNED else 0
        acc = tl.zeros((BN, BM), tl.float32)
        for i in tl.range(0, kp // 128, num_stages=STAGES):
            word, chunk = i * 16 + tl.arange(0, 16)[None, :], i * 4 + tl.arange(0, 4)[None, :]
            low, high = low_and_high(codes8, codes4, codes2, codes1, row, word, None, kp, BITS, SIGNED)
            if TABLE:
                low, high = look_up(low, table, ASM, 1), look_up(high, table, ASM, 1)
            s_low, s_high, m_low, m_high = scales(
                scale, minimum, small, rest, row, chunk, kp, None, G, S, KIND, HAS_MIN, MIN_BITS
            )
            w = values_of(low, s_low, m_low, BN, 4, HAS_MIN, OFFSET, SIGNED or TABLE, SHIFT).to(tl.float16)
            acc = tl.dot(w, tl.load(x + i * 128), acc)
            w = values_of(high, s_high, m_high, BN, 4, HAS_MIN, OFFSET, SIGNED or TABLE, SHIFT).to(tl.float16)
            acc = tl.dot(w, tl.load(x + i * 128 + 64), acc)
        out = y + pair.to(tl.int64)[None, :] * y_stride + at[:, None]
        tl.store(out, acc, mask=inside[None, :] & (at[:, None] < n))
