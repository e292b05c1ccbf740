# mypy: ignore-errors
"""y [M, N] of fp8 a [M, K] and b [N, K], in portable Triton.

Algorithm: tiled GEMM with split-K, sums promoted to float32 from time to time as in DeepSeek-V3 (arXiv 2412.19437).
Tile:
    a [block_m, block_k] | a | a ...    times    b^T [block_k, block_n] | b^T | ...    -> part [block_m, block_n]
    acc += part, every `kept` values of K, or with each block of 128's scales
Bound: instructions of the tensor cores; not measured by itself, since Hopper has `fp8_hopper_kernel` from 65 tokens on.
Tried: nothing else.
Twin: `octavo.ops.definition.fp8_gemm`

Hopper's tensor cores keep some 14 bits of an fp8 product's sum. So what they add up is added to float32 sums. Where
tensor cores do not take fp8, or not these types, the values become float16, which holds each of them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.w8a8.epilogue import finish, load_tile, steps_of, sum_splits, tile_of


@triton.jit
def as_halves(x, KIND: tl.constexpr):
    """float16 of the bytes of e5m2, exact, or of e4m3 (that is not NaN) times 2^-8, exact."""
    wide = x.to(tl.uint8).to(tl.int16)
    if KIND == "e5m2":
        bits = wide << 8
    else:
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def operand(x, KIND: tl.constexpr, OPERANDS: tl.constexpr):
    """A tile of bytes as tensor cores take it: "fp8" (no bytes, but the type itself), "fnuz" of gfx942, or "f16".

    The bits of e4m3 are those of half the number in e4m3fnuz, but for minus zero, which is NaN there.
    """
    if OPERANDS == "f16":
        x = as_halves(x, KIND)
    elif OPERANDS == "fnuz":
        x = tl.where(x == -128, 0, x).to(tl.int8).to(tl.float8e4b8, bitcast=True)
    return x


@triton.jit
def fp8_gemm_kernel(
    a, b, strides, size, blocks, end, split_k, shape: tl.constexpr, config: tl.constexpr,
    fp8: tl.constexpr, PDL: tl.constexpr,
):
    """A program computes a tile of block_m x block_n from a part of K.

    blocks    a BlockScales, or None where the epilogue has the scales; block_k divides 128, and block_n too
    fp8       an Fp8Config; its `kept` is a multiple of block_k

    Partial sums are float32. Other arguments are those of `int8_kernel`.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    BM: tl.constexpr = shape.block_m
    BN: tl.constexpr = shape.block_n
    BK: tl.constexpr = shape.block_k
    SPLIT_K: tl.constexpr = shape.split_k
    KEPT: tl.constexpr = fp8.kept
    tiles = tl.cdiv(size.m, BM) * tl.cdiv(size.n, BN)
    tile, split = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    row, column = tile_of(tile, tl.cdiv(size.m, BM), tl.cdiv(size.n, BN), shape.group_m)
    first, end_step = steps_of(split, size.k, BK, SPLIT_K)
    token = tl.arange(0, BM)[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    part = acc
    for i in tl.range(first, end_step, num_stages=shape.stages):
        left = load_tile(a, row * BM, i * BK, size.m, size.k, strides.a, BM, BK, config.tma, config.even)  # [BM, BK]
        left = operand(left, fp8.kind_a, fp8.operands)
        right = load_tile(
            b, column * BN, i * BK, size.n, size.k, strides.b, BN, BK, config.tma, config.even
        )  # [BN, BK]
        right = operand(right, fp8.kind_b, fp8.operands)
        if blocks is not None:
            block = i * BK // 128
            at = blocks.a + (row * BM + token).to(tl.int64) * blocks.blocks + block
            scale = tl.load(at, mask=token < size.m - row * BM, other=0.0)  # [BM, 1]
            scale *= tl.load(blocks.b + (column * BN // 128).to(tl.int64) * blocks.blocks + block)
            acc += tl.dot(left, right.T) * scale  # [BM, BK] @ [BK, BN]
        elif KEPT == 0:
            acc = tl.dot(left, right.T, acc)  # [BM, BK] @ [BK, BN]
        else:
            part = tl.dot(left, right.T, part)  # [BM, BK] @ [BK, BN]
            if (i - first + 1) % (KEPT // BK) == 0:
                acc += part
                part = tl.zeros((BM, BN), tl.float32)
    if KEPT and blocks is None:
        acc += part
    last = True
    total = acc
    if SPLIT_K > 1:
        last, total = sum_splits(acc, split_k, tile, split, BM, BN, SPLIT_K, False)
    if last:
        finish(total, end, size, row * BM, column * BN, config, False)
