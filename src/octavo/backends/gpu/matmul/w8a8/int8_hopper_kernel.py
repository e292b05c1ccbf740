# mypy: ignore-errors
"""Products of int8 numbers for compute capability 9.0, in Gluon: W8A8 and W4A8.

Algorithm: multistage GEMM (TMA ring, asynchronous wgmma, split-K), two of a warp group's products under way at once;
    W4A8 with QQQ's scales of groups folded into int8 (arXiv 2406.09904).
Tile:
    TMA ring    W [rows, block_k] | a [tokens, block_k]                    y^T = W a^T, rows of the weights by tokens
    wgmma       part i: under way    part i + 1: W4A8 unpacks its codes in registers meanwhile
Bound: instructions of the tensor cores from 128 tokens on, bytes with few: int8 1,409 TOPS at 4096 x 4096 x 4096 on an
    H100, 1.70 times the library; W4A8 1,497 at 512 tokens of 8192 x 21504, one token 34 us
    (bench/results/gpu-gemm-2026-11-21.json).
Tried: docs/log.md: "Triton 3.6 waits for each product of integers"; "ptxas waits after each matrix instruction of a
    loop that may run no times"; "Stripes for the W4A8 product"; "Programmatic dependent launch made products with 4-bit
    weights 20% slower".
Twin: `octavo.ops.definition.int8_gemm`, `octavo.ops.definition.w4a8_gemm`

Triton waits for each product of integers before it goes on, and so the tensor cores wait while codes are unpacked. Here
they still add up the part before. What is computed is what `int8_kernel` and `w4a8_kernel` say.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.compile.gluon_names import copy_tile
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers, column_halves, finish, tile_scheduler, whole_sums
from octavo.backends.gpu.matmul.w8a8.w4a8_kernel import folded_twice, twice, unpacked

HALF = gl.constexpr(64)  # bytes of 128 codes of 4 bits


class Int8Ring(NamedTuple):
    """Shared memory for tiles of the next steps.

    weights  [stages, rows, bytes of a step]
    tokens   [stages * tiles a stage, tokens, values]
    ready    a barrier for each stage
    """

    weights: Any
    tokens: Any
    ready: Any


@gluon.constexpr_function
def sums_layout(tokens, num_warps):
    """How the tensor cores lay out sums [rows, tokens], warps one below the other."""
    return gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, min(tokens, 128), 32])


@gluon.jit
def ring_of(weights, a, STAGES: gl.constexpr, TILES: gl.constexpr):
    """A Int8Ring of STAGES tiles of weights, and TILES of tokens a stage."""
    left = gl.allocate_shared_memory(gl.int8, [STAGES] + weights.block_type.shape, weights.layout)  # noqa: RUF005
    right = gl.allocate_shared_memory(gl.int8, [STAGES * TILES] + a.block_type.shape, a.layout)  # noqa: RUF005
    return Int8Ring(left, right, barriers(STAGES))


@gluon.jit
def fetch_weights(weights, a, ring, stage, step, row, exists, STAGES: gl.constexpr, TILES: gl.constexpr):
    """Have the weights of a step copied to a stage of the ring, if there is such a step; its tokens are expected,
    too."""
    slot = stage % STAGES
    bar = ring.ready.index(slot)
    mbarrier.expect(bar, weights.block_type.nbytes + TILES * a.block_type.nbytes, pred=exists)
    copy_tile(weights, [row, step * weights.block_type.shape[1]], bar, ring.weights.index(slot), pred=exists)


@gluon.jit
def fetch_tokens(a, ring, stage, step, token, exists, STAGES: gl.constexpr, TILES: gl.constexpr):
    """Have the tokens of a step copied to a stage of the ring."""
    slot = stage % STAGES
    bar = ring.ready.index(slot)
    for i in gl.static_range(TILES):
        at = (step * TILES + i) * a.block_type.shape[1]
        copy_tile(a, [token, at], bar, ring.tokens.index(slot * TILES + i), pred=exists)


@gluon.jit
def fetch(weights, a, ring, stage, step, row, token, exists, STAGES: gl.constexpr, TILES: gl.constexpr):
    """Have the tiles of a step copied to a stage of the ring, if there is such a step."""
    fetch_weights(weights, a, ring, stage, step, row, exists, STAGES, TILES)
    fetch_tokens(a, ring, stage, step, token, exists, STAGES, TILES)


@gluon.jit
def begin(weights, a, ring, first, end, row, token, STAGES: gl.constexpr, TILES: gl.constexpr, PDL: gl.constexpr):
    """Fill the ring with the first steps; weights before the kernel before has ended, whose results tokens are."""
    for i in gl.static_range(STAGES - 1):
        fetch_weights(weights, a, ring, i, first + i, row, first + i < end, STAGES, TILES)
    if PDL:
        gdc_wait()
    for i in gl.static_range(STAGES - 1):
        fetch_tokens(a, ring, i, first + i, token, first + i < end, STAGES, TILES)


@gluon.jit
def scale_pair(scales, exists, group, group_step, end):
    """Scales of rows of a group and of the next, [rows] each."""
    one = gl.load(scales + group * group_step, mask=exists & (group < end), other=0.0)
    return one, gl.load(scales + (group + 1) * group_step, mask=exists & (group + 1 < end), other=0.0)


@gluon.jit
def _finish(acc, end, size, row, token, config: gl.constexpr, num_warps: gl.constexpr):
    """`finish` of sums [rows, tokens]; of many tokens half by half, as all there is to a whole tile does not fit the
    registers."""
    C: gl.constexpr = acc.shape[1]
    PIECES: gl.constexpr = 2 if C >= 256 else 1
    if PIECES == 2:
        parts = column_halves(acc)
    else:
        parts = (acc,)
    for i in gl.static_range(PIECES):
        finish(parts[i], end, size, row, token + i * (C // PIECES), config, 1, num_warps)


@gluon.jit
def int8_hopper_kernel(
    a, b, size, end, split_k, shape: gl.constexpr, config: gl.constexpr, num_warps: gl.constexpr, PDL: gl.constexpr
):
    """A program computes a tile of rows of b by tokens from a part of K; a and b are descriptors of tiles.

    PDL: it may begin before the kernel before it ends, if b and what goes with it were there before that.
    """
    if PDL:
        gdc_launch_dependents()
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    SPLIT_K: gl.constexpr = shape.split_k
    tile, split, row, token, first, end_step = tile_scheduler(
        gl.program_id(0), size.m, size.n, size.k, BM, BN, shape.block_k, shape.group_m, SPLIT_K
    )
    ring = ring_of(b, a, STAGES, 1)
    begin(b, a, ring, first, end_step, row, token, STAGES, 1, PDL)
    acc = gl.zeros([BN, BM], gl.int32, sums_layout(BM, num_warps))
    for i in range(first, end_step):
        stage = i - first
        slot = stage % STAGES
        mbarrier.wait(ring.ready.index(slot), (stage // STAGES) & 1)
        tokens = ring.tokens.index(slot).permute((1, 0))
        acc = warpgroup_mma(ring.weights.index(slot), tokens, acc, is_async=True)  # [BN, BK] @ [BK, BM]
        acc = warpgroup_mma_wait(1, [acc])
        ahead = i + STAGES - 1
        fetch(b, a, ring, ahead - first, ahead, row, token, ahead < end_step, STAGES, 1)
    acc, last = whole_sums(acc, ring.ready, split_k, tile, split, SPLIT_K, STAGES)
    if last:
        _finish(acc, end, size, row, token, config, num_warps)


@gluon.jit
def w4a8_hopper_kernel(
    a, packed, size, groups, end, split_k, shape: gl.constexpr, config: gl.constexpr, num_warps: gl.constexpr,
    PDL: gl.constexpr,
):
    """A program computes a tile of rows of W by tokens from a part of K; a and packed are descriptors of tiles.

    A stage of the ring has 128 or 256 values of K, tiles of tokens 128. An iteration is always 256 values, two
    parts: the tensor cores read a part's codes from the registers where they were unpacked, so the next part needs
    others, and the one after it may take them again once the first is done. What lies beyond K is zero. PDL is that of
    `int8_hopper_kernel`.
    """
    if PDL:
        gdc_launch_dependents()
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    SPLIT_K: gl.constexpr = shape.split_k
    GROUPED: gl.constexpr = groups is not None
    TILES: gl.constexpr = shape.block_k // (2 * HALF)  # of tokens, a stage
    STAGES_AN_ITERATION: gl.constexpr = 2 // TILES
    tile, split, row, token, first, end_iteration = tile_scheduler(
        gl.program_id(0), size.m, size.n, size.k, BM, BN, 4 * HALF, shape.group_m, SPLIT_K
    )
    start, stop = first * STAGES_AN_ITERATION, end_iteration * STAGES_AN_ITERATION
    ring = ring_of(packed, a, STAGES, TILES)
    begin(packed, a, ring, start, stop, row, token, STAGES, TILES, PDL)
    sums: gl.constexpr = sums_layout(BM, num_warps)
    factor: gl.constexpr = gl.DotOperandLayout(0, sums, 4)
    acc = gl.zeros([BN, BM], gl.int32, sums)
    if GROUPED:
        down = gl.arange(0, BN, gl.SliceLayout(1, factor))
        scales = groups.data + (row + down).to(gl.int64) * groups.row
        exists = down < size.n - row
        one, other = scale_pair(scales, exists, first * 2, groups.group, size.k // (2 * HALF))
    for iteration in range(first, end_iteration):
        if GROUPED:
            next_one, next_other = scale_pair(scales, exists, iteration * 2 + 2, groups.group, size.k // (2 * HALF))
        for part in gl.static_range(2):
            step = iteration * STAGES_AN_ITERATION + part // TILES
            stage = step - start
            slot = stage % STAGES
            if part % TILES == 0:
                mbarrier.wait(ring.ready.index(slot), (stage // STAGES) & 1)
            codes = ring.weights.index(slot).slice(part % TILES * HALF, HALF, 1).load(factor)  # [BN, 64]
            if GROUPED:
                both, codes = gl.broadcast(twice(other if part else one).expand_dims(1), codes)
                low, high = folded_twice(codes, both)
            else:
                low, high = unpacked(codes, "ptx")
            tokens = ring.tokens.index(slot * TILES + part % TILES)  # [BM, 128]
            left, right = tokens.slice(0, HALF, 1).permute((1, 0)), tokens.slice(HALF, HALF, 1).permute((1, 0))
            acc = warpgroup_mma(low, left, acc, is_async=True)  # [BN, 64] @ [64, BM]
            acc = warpgroup_mma(high, right, acc, is_async=True)  # [BN, 64] @ [64, BM]
            acc = warpgroup_mma_wait(2, [acc])
            if part % TILES == TILES - 1:
                step += STAGES - 1
                fetch(packed, a, ring, step - start, step, row, token, step < stop, STAGES, TILES)
        if GROUPED:
            one, other = next_one, next_other
    acc, last = whole_sums(acc, ring.ready, split_k, tile, split, SPLIT_K, STAGES)
    if last:
        _finish(acc, end, size, row, token, config, num_warps)
