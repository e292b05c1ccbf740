# mypy: ignore-errors
"""y [M, N] of int8 a [M, K] and b [N, K]: sums in int32 on the tensor cores, and one epilogue.

Algorithm: tiled GEMM (Triton's matmul tutorial: grouped order of tiles, multistage loads), persistent or with split-K.
Tile:
    a [block_m, block_k] | a | a ...    times    b^T [block_k, block_n] | b^T | ...    -> acc int32 [block_m, block_n]
    groups of K: each step's int32 sums are scaled by both factors and added to float32 ones
Bound: instructions of the tensor cores, which Triton waits for after each product; with groups of 128, 512 x 4096 x
    4096 take 30 us on an H200, 572 TOPS (docs/log.md, "Tiles that two programs fit a multiprocessor with are three
    times as fast where sums wait").
Tried: docs/log.md: "Tiles that two programs fit a multiprocessor with are three times as fast where sums wait"; "Triton
    3.6 waits for each product of integers".
Twin: `octavo.ops.definition.int8_gemm`
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.matmul.w8a8.epilogue import finish, load_tile, steps_of, sum_splits, tile_of


@triton.jit
def _compute_tile(a, b, strides, size, end, split_k, program, shape: tl.constexpr, config: tl.constexpr):
    """The tile and the part of K of a program."""
    BM: tl.constexpr = shape.block_m
    BN: tl.constexpr = shape.block_n
    BK: tl.constexpr = shape.block_k
    SPLIT_K: tl.constexpr = shape.split_k
    tiles = tl.cdiv(size.m, BM) * tl.cdiv(size.n, BN)
    tile, split = program % tiles, program // tiles
    row, column = tile_of(tile, tl.cdiv(size.m, BM), tl.cdiv(size.n, BN), shape.group_m)
    first, end_step = steps_of(split, size.k, BK, SPLIT_K)
    acc = tl.zeros((BM, BN), tl.int32)
    for i in tl.range(first, end_step, num_stages=shape.stages):
        left = load_tile(a, row * BM, i * BK, size.m, size.k, strides.a, BM, BK, config.tma, config.even)  # [BM, BK]
        right = load_tile(
            b, column * BN, i * BK, size.n, size.k, strides.b, BN, BK, config.tma, config.even
        )  # [BN, BK]
        acc = tl.dot(left, right.T, acc, out_dtype=tl.int32)  # [BM, BK] @ [BK, BN]
    last = True
    total = acc
    if SPLIT_K > 1:
        last, total = sum_splits(acc, split_k, tile, split, BM, BN, SPLIT_K, config.wide)
    if last:
        finish(total, end, size, row * BM, column * BN, config, False)


@triton.jit
def int8_gemm_kernel(a, b, strides, size, end, split_k, shape: tl.constexpr, config: tl.constexpr):
    """A program computes a tile of block_m x block_n from a part of K; if persistent, tile after tile.

    a and b are descriptors of tiles (tma) or pointers, int8; partial sums are int32. Other arguments are those of
    `epilogue`.
    """
    if shape.persistent:
        programs = tl.cdiv(size.m, shape.block_m) * tl.cdiv(size.n, shape.block_n) * shape.split_k
        for program in tl.range(tl.program_id(0), programs, tl.num_programs(0), flatten=True):
            _compute_tile(a, b, strides, size, end, split_k, program, shape, config)
    else:
        _compute_tile(a, b, strides, size, end, split_k, tl.program_id(0), shape, config)


@triton.jit
def int8_groups_kernel(a, b, strides, size, groups, end, split_k, shape: tl.constexpr, config: tl.constexpr):
    """`int8_gemm_kernel` with scales, and zero points or none, of groups of K: a GroupFactors; block_k divides a group.

    The sum of a step is exact, and scaled; sums of steps, and partial ones, are float32.
    """
    BM: tl.constexpr = shape.block_m
    BN: tl.constexpr = shape.block_n
    BK: tl.constexpr = shape.block_k
    SPLIT_K: tl.constexpr = shape.split_k
    tiles = tl.cdiv(size.m, BM) * tl.cdiv(size.n, BN)
    tile, split = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    row, column = tile_of(tile, tl.cdiv(size.m, BM), tl.cdiv(size.n, BN), shape.group_m)
    first, end_step = steps_of(split, size.k, BK, SPLIT_K)
    token, channel = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    of_token, of_channel = token.to(tl.int64) * groups.groups, channel.to(tl.int64) * groups.groups
    acc = tl.zeros((BM, BN), tl.float32)
    for i in tl.range(first, end_step, num_stages=shape.stages):
        left = load_tile(a, row * BM, i * BK, size.m, size.k, strides.a, BM, BK, config.tma, True)  # [BM, BK]
        right = load_tile(b, column * BN, i * BK, size.n, size.k, strides.b, BN, BK, config.tma, True)  # [BN, BK]
        group = i * BK // groups.width
        scale_a = tl.load(groups.a + of_token + group, mask=token < size.m, other=0.0)  # [BM]
        scale_b = tl.load(groups.b + of_channel + group, mask=channel < size.n, other=0.0)  # [BN]
        part = tl.dot(left, right.T, out_dtype=tl.int32)  # [BM, BK] @ [BK, BN]
        if groups.zero is not None:
            zero = tl.load(groups.zero + of_token + group, mask=token < size.m, other=0)  # [BM]
            part -= zero[:, None] * tl.sum(right.to(tl.int32), 1)[None, :]
            scale_a = tl.where((zero >= -128) & (zero <= 127), scale_a, float("nan"))
        acc += part.to(tl.float32) * scale_a[:, None] * scale_b[None, :]  # [BM, BN]
    last = True
    total = acc
    if SPLIT_K > 1:
        last, total = sum_splits(acc, split_k, tile, split, BM, BN, SPLIT_K, False)
    if last:
        finish(total, end, size, row * BM, column * BN, config, False)


@triton.jit
def row_sums_kernel(b, sums, k, stride, B: tl.constexpr):
    """sums int32 [N]: of each row of int8 b [N, K]."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((B,), tl.int32)
    for first in range(0, k, B):
        at = first + tl.arange(0, B)
        total += tl.load(b + row * stride + at, mask=at < k, other=0).to(tl.int32)  # [B]
    tl.store(sums + row, tl.sum(total))
