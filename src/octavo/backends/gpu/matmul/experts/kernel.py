# mypy: ignore-errors
"""Products with many tokens, each with experts of its own.

Algorithm: a counting sort of (token, expert) pairs by expert on the device, then a grouped GEMM, as vLLM's fused
    experts.
Tile:
    ids     token 0: 3 1 | token 1: 1 0 | ...   -> `sort_kernel`, a program an expert: counts and order
    pairs   | expert 0 | expert 1    | expert 3 | ...    tiles of block_m pairs of one expert
    y^T     W [block_n rows, K] made float16 in registers, times x^T [K, block_m]
Bound: instructions for decoding and the tensor cores: gate of 128 experts, 768 x 2048 in Q4_K, 86 TFLOPS at 512 tokens
    and 172 at 2,048 on an H200; the sort takes 5 and 17 us of 156 and 323 (bench/results/gpu-experts-2026-11-24.json).
Tried: docs/log.md: "Tiles listed by a launch of its own cost what the list saves"; "What few tokens of a product wait
    for".
Twin: `octavo.backends.reference.ops.mul_mat_id`

`sort_kernel` brings pairs of one expert together, `experts_kernel` multiplies tiles of them, as `hopper_kernel` does
with rows that `gather_kernel` sorts. An expert's weights are read once a tile, and those of an expert without tokens
not at all. How many tiles there are is known on the device only; programs without one end at once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.activations import read, reordered
from octavo.backends.gpu.weights.decode import codes_of, scales_of, values_of


@triton.jit
def sort_kernel(
    ids, order, counts, tiles, n_pairs, BLOCK_M: tl.constexpr, B: tl.constexpr, EXPERTS: tl.constexpr, PDL: tl.constexpr
):
    """Program e: counts[e] of the pairs whose id is e, and their numbers, in order, where a sort by id puts them.

    tiles  int32 [n_pairs // BLOCK_M + experts, 3], or None: of each tile of up to BLOCK_M pairs its expert, the place
           of its first pair and that after its last, the same if it has none. The first of an expert has the number
           e + place // BLOCK_M, so no program needs to know how many pairs the others have. With EXPERTS, a power of
           two, that many or more, tiles are listed without gaps after a row that begins with their number.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    if EXPERTS:
        each = tl.arange(0, EXPERTS)
        of_each = tl.zeros((EXPERTS,), tl.int32)
        for first in range(0, n_pairs, B):
            pair = first + tl.arange(0, B)
            id = tl.load(ids + pair, mask=pair < n_pairs, other=0)
            of_each += tl.histogram(id, EXPERTS, mask=pair < n_pairs)
        count = tl.sum(tl.where(each == expert, of_each, 0))
        place = tl.sum(tl.where(each < expert, of_each, 0))
    else:
        below = tl.zeros((B,), tl.int32)
        same = tl.zeros((B,), tl.int32)
        for first in range(0, n_pairs, B):
            pair = first + tl.arange(0, B)
            id = tl.load(ids + pair, mask=pair < n_pairs, other=2**30)  # [B]
            below += (id < expert).to(tl.int32)
            same += (id == expert).to(tl.int32)
        count, place = tl.sum(same), tl.sum(below)
    tl.store(counts + expert, count)
    if tiles is not None:
        if EXPERTS:
            first_tile = 1 + tl.sum(tl.where(each < expert, (of_each + BLOCK_M - 1) // BLOCK_M, 0))
            n_tiles = (count + BLOCK_M - 1) // BLOCK_M
            if expert == tl.num_programs(0) - 1:
                tl.store(tiles, first_tile + n_tiles - 1)
        else:
            first_tile = expert + place // BLOCK_M
            n_tiles = (place + count) // BLOCK_M + expert + 1 - first_tile
        for first in range(0, n_tiles, 128):
            i = first + tl.arange(0, 128)
            at = tiles + (first_tile + i) * 3
            tl.store(at, tl.zeros((128,), tl.int32) + expert, mask=i < n_tiles)
            tl.store(at + 1, place + tl.minimum(i * BLOCK_M, count), mask=i < n_tiles)
            tl.store(at + 2, place + tl.minimum((i + 1) * BLOCK_M, count), mask=i < n_tiles)
    if count > 0:
        for first in range(0, n_pairs, B):
            pair = first + tl.arange(0, B)
            mine = tl.load(ids + pair, mask=pair < n_pairs, other=2**30) == expert  # [B]
            rank = tl.cumsum(mine.to(tl.int32))
            tl.store(order + place + rank - 1, pair, mask=mine)
            place += tl.sum(mine.to(tl.int32))


@triton.jit
def gather_kernel(
    source, order, out, pairs, sharing, k, kp, KIND: tl.constexpr, ROWS: tl.constexpr, B: tl.constexpr,
    PDL: tl.constexpr,
):
    """out float16 [pairs, kp]: row i is row order[i] // sharing of a Source, `reordered`, zeros from k on.

    A program has ROWS of them. Kernels after it begin when what is before it has ended, so that they read what
    `sort_kernel` lists without a wait.
    """
    place = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    at = (tl.program_id(1) * B + tl.arange(0, B))[None, :]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = (tl.load(order + place, mask=place < pairs, other=0) // sharing).to(tl.int64)  # [ROWS, 1]
    value = read(source, 1.0, row, at, at < k, k, KIND).to(tl.float16)  # [ROWS, B]
    value = tl.reshape(reordered(tl.reshape(value, (ROWS * B,))), (ROWS, B))
    tl.store(out + place.to(tl.int64) * kp + at, value, mask=(place < pairs) & (at < kp))


@triton.jit
def tiles_of(counts, experts, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Of each expert, int32 [EXPERTS], its pairs and its tiles of up to BLOCK_M pairs."""
    expert = tl.arange(0, EXPERTS)
    count = tl.load(counts + expert, mask=expert < experts, other=0)
    return count, (count + BLOCK_M - 1) // BLOCK_M


@triton.jit
def pairs_of(tile, order, count, tiles, BLOCK_M: tl.constexpr):
    """The expert of a tile, the numbers of its pairs [BLOCK_M], and which of them there are."""
    all_experts = tl.arange(0, count.shape[0])
    expert = tl.sum((tl.cumsum(tiles) <= tile).to(tl.int32))
    before = all_experts < expert
    place = (tile - tl.sum(tl.where(before, tiles, 0))) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = place < tl.sum(tl.where(all_experts == expert, count, 0))
    return expert, tl.load(order + tl.sum(tl.where(before, count, 0)) + place, mask=inside, other=0), inside


@triton.jit
def experts_kernel(
    w, x, order, counts, y, n, experts, sharing, EXPERTS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """y f32 [pairs, N]: row i is W[ids[i]] of row i // sharing of x f16 [rows, kp].

    A program has a tile of pairs of one expert and of rows of W. EXPERTS is a power of two, `experts` or more.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    BLOCK_M: tl.constexpr = shape.block_m
    KP: tl.constexpr = w.layout.kp
    count, tiles = tiles_of(counts, experts, EXPERTS, BLOCK_M)
    if tl.program_id(1) < tl.sum(tiles):
        expert, pair, inside = pairs_of(tl.program_id(1), order, count, tiles, BLOCK_M)
        x_at = x + (pair // sharing).to(tl.int64)[None, :] * KP + tl.arange(0, 64)[:, None]
        at = tl.program_id(0) * shape.block_n + tl.arange(0, shape.block_n)
        row = (tl.minimum(at, n - 1).to(tl.int64) + expert.to(tl.int64) * n)[:, None]
        acc = tl.zeros((shape.block_n, BLOCK_M), tl.float32)
        for i in tl.range(0, KP // 128, num_stages=shape.stages):
            word, chunk = i * 16 + tl.arange(0, 16)[None, :], i * 4 + tl.arange(0, 4)[None, :]
            low, high = codes_of(w, row, word, None, ASM)  # [BLOCK_N, 16]
            s_low, s_high, m_low, m_high = scales_of(w, row, chunk, None)  # [BLOCK_N, 4]
            values = values_of(low, s_low, m_low, w.layout).to(tl.float16)
            acc = tl.dot(values, tl.load(x_at + i * 128), acc)  # [BLOCK_N, 64] @ [64, BLOCK_M]
            values = values_of(high, s_high, m_high, w.layout).to(tl.float16)
            acc = tl.dot(values, tl.load(x_at + i * 128 + 64), acc)  # [BLOCK_N, 64] @ [64, BLOCK_M]
        out = y.data + pair.to(tl.int64)[None, :] * y.stride + at[:, None]
        tl.store(out, acc, mask=inside[None, :] & (at[:, None] < n))


@triton.jit
def float_experts_kernel(
    w, x, order, counts, y, n, experts, sharing, EXPERTS: tl.constexpr, shape: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):
    """As `experts_kernel`, of floats: w [experts, n, k] becomes of the type of x [rows, k], if it has another."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    BLOCK_M: tl.constexpr = shape.block_m
    count, tiles = tiles_of(counts, experts, EXPERTS, BLOCK_M)
    if tl.program_id(1) < tl.sum(tiles):
        expert, pair, inside = pairs_of(tl.program_id(1), order, count, tiles, BLOCK_M)
        place, k = tl.arange(0, 64), x.stride
        x_at = x.data + (pair // sharing).to(tl.int64)[None, :] * k + place[:, None]
        at = tl.program_id(0) * shape.block_n + tl.arange(0, shape.block_n)
        w_at = w + (tl.minimum(at, n - 1).to(tl.int64) + expert.to(tl.int64) * n)[:, None] * k + place[None, :]
        acc = tl.zeros((shape.block_n, BLOCK_M), tl.float32)
        for first in tl.range(0, k, 64, num_stages=shape.stages):
            there = place < k - first
            values = tl.load(w_at + first, mask=there[None, :], other=0.0).to(x.data.dtype.element_ty)
            inputs = tl.load(x_at + first, mask=there[:, None], other=0.0)
            acc = tl.dot(values, inputs, acc, input_precision=PRECISION)
        out = y.data + pair.to(tl.int64)[None, :] * y.stride + at[:, None]
        tl.store(out, acc, mask=inside[None, :] & (at[:, None] < n))
