# mypy: ignore-errors
"""What adapters add to products: y += B A x, where each token has an adapter of its own, or none.

Algorithm: grouped GEMM of two steps (Punica's SGMV, arXiv 2310.18547), shrink and expand; K is split among programs,
    whose sums the second step adds up in order.
Tile:
    h [SPLIT, T, P * R]   program (tile of tokens and split, ranks, adapter): [BLOCK_M, BLOCK_K] x [BLOCK_R, BLOCK_K]^T
    y [T, N...]           program (BLOCK_N columns of a part, tile of tokens, adapter): += [BLOCK_M, R] B^T
Bound: latency, of two launches beside each product; not measured.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.lora`

Tokens are in the order of `rows`, adapter by adapter; programs of adapters without tokens, and of ranks that an adapter
lacks, end at once. So grids depend on the number of tokens alone, and a captured step serves any adapters.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def tokens_of(rows, starts, slot, tile, BLOCK_M: tl.constexpr):
    """Of an adapter a tile of places in `rows`, the tokens there, which of them are its own, and whether any is."""
    first, stop = tl.load(starts + slot) + tile * BLOCK_M, tl.load(starts + slot + 1)
    at = first + tl.arange(0, BLOCK_M)
    token = tl.load(rows + at, mask=at < stop, other=0).to(tl.int64)
    return at, token, at < stop, first < stop


@triton.jit
def lora_down_kernel(
    x, rows, starts, a, ranks, h, tokens, k, rows_of_a, width,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):
    """h f32 [SPLIT, tokens, width] = parts of A x, of a float16 [S, rows_of_a, k]; `width` is R for each part."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    slot, split, column = tl.program_id(2), tl.program_id(0) % SPLIT, tl.program_id(1) * BLOCK_R
    at, token, inside, any_token = tokens_of(rows, starts, slot, tl.program_id(0) // SPLIT, BLOCK_M)
    rank, r = tl.load(ranks + slot), column % R + tl.arange(0, BLOCK_R)
    if any_token & (column % R < rank):
        place = tl.arange(0, BLOCK_K)
        share = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLIT) * BLOCK_K
        x_at = x.data + token[:, None] * x.stride + place[None, :]
        row = slot.to(tl.int64) * rows_of_a + column + tl.arange(0, BLOCK_R)
        a_at = a + row[:, None] * k + place[None, :]
        acc = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for first in tl.range(split * share, tl.minimum(k, (split + 1) * share), BLOCK_K):
            there = (place < k - first)[None, :]
            values = tl.load(x_at + first, mask=there & inside[:, None], other=0.0)  # [BLOCK_M, BLOCK_K]
            factor = tl.load(a_at + first, mask=there & (r < rank)[:, None], other=0.0)  # [BLOCK_R, BLOCK_K]
            acc = tl.dot(values, tl.trans(factor.to(tl.float32)), acc, input_precision=PRECISION)
        out = h + (split * tokens + at)[:, None] * width + column + tl.arange(0, BLOCK_R)[None, :]
        tl.store(out, acc, mask=inside[:, None])


@triton.jit
def lora_up_kernel(
    h, rows, starts, b, ranks, scales, y, sizes, tokens, width, columns, parts,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):
    """y f32 [T, sum of sizes] += B h times scales [S, parts], of b float16 [S, columns, R]."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    slot, tile = tl.program_id(2), tl.program_id(0)
    at, token, inside, any_token = tokens_of(rows, starts, slot, tl.program_id(1), BLOCK_M)
    rank = tl.load(ranks + slot)
    if any_token & (rank > 0):
        part, begin, size, base, before, offset = 0, 0, 0, 0, 0, 0
        for p in tl.static_range(len(sizes)):
            here = (tile >= before) & (tile < before + tl.cdiv(sizes[p], BLOCK_N))
            part, begin = tl.where(here, p, part), tl.where(here, (tile - before) * BLOCK_N, begin)
            size, base = tl.where(here, sizes[p], size), tl.where(here, offset, base)
            before += tl.cdiv(sizes[p], BLOCK_N)
            offset += sizes[p]
        n, r = begin + tl.arange(0, BLOCK_N), tl.arange(0, R)
        row = slot.to(tl.int64) * columns + base + n
        there = (n < size)[:, None] & (r < rank)[None, :]
        factor = tl.load(b + row[:, None] * R + r[None, :], mask=there, other=0.0)  # [BLOCK_N, R]
        sums = tl.zeros((BLOCK_M, R), tl.float32)
        one = h + at[:, None] * width + part * R + r[None, :]
        for _ in tl.static_range(SPLIT):
            sums += tl.load(one, mask=inside[:, None] & (r < rank)[None, :], other=0.0)  # [BLOCK_M, R]
            one += tokens * width
        added = tl.dot(sums, tl.trans(factor.to(tl.float32)), input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
        added *= tl.load(scales + slot * parts + part)
        out = y.data + token[:, None] * y.stride + base + n[None, :]
        mine = inside[:, None] & (n < size)[None, :]
        tl.store(out, tl.load(out, mask=mine, other=0.0) + added, mask=mine)
