"""y [M, N] of fp8 a [M, K] and b [N, K]: sums in float32, the matrix units' own for a step of K at a time.

Hopper's matrix units keep some 14 bits of an fp8 product's sum. So what they add up is added to float32 sums from time
to time, as DeepSeek-V3 does it (arXiv 2412.19437). Where there are none for fp8, or none
for these types, the values become float16, which holds each of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.kernels.epilogue import finish, load_tile, steps_of, tile_of, together


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
def operand(x, KIND: tl.constexpr, UNITS: tl.constexpr):
    """A tile of bytes as matrix units take it: "fp8" (no bytes, but the type itself), "fnuz" of gfx942, or "f16".

    The bits of e4m3 are those of half the number in e4m3fnuz, but for minus zero, which is NaN there.
    """
    if UNITS == "f16":
        x = as_halves(x, KIND)
    elif UNITS == "fnuz":
        x = tl.where(x == -128, 0, x).to(tl.int8).to(tl.float8e4b8, bitcast=True)
    return x


@triton.constexpr_function
def factor_of(kind, units):
    """What makes good that operands are smaller than they should be: the square of how much."""
    return 1.0 if units == "fp8" or kind == "e5m2" else 4.0 if units == "fnuz" else 65536.0


@triton.jit
def fp8_gemm_kernel(
    a, b, scale_a, scale_b, bias, residual, y, shares, finished,
    m, n, k, a_stride, b_stride, y_stride, residual_stride, blocks,
    A_STEP: tl.constexpr, B_STEP: tl.constexpr, BLOCKS: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    RESIDUAL: tl.constexpr, KIND: tl.constexpr, UNITS: tl.constexpr, KEPT: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    TMA: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """A program a tile of BM x BN and a share of K.

    Scales are those of `epilogue.finish`; or, BLOCKS (steps are None then), scale_a [M, blocks] and scale_b [N / 128,
    blocks], blocks of 128 values of K; BK divides 128, and BN too. KEPT is how many values of K the matrix units add
    up, a multiple of BK, or 0 for all. `shares`, float32, and `finished` are those of `epilogue.together`.
    """
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    tile, split = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    row, column = tile_of(tile, tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    first, end = steps_of(split, k, BK, SPLITS)
    token = tl.arange(0, BM)[:, None]
    FACTOR: tl.constexpr = factor_of(KIND, UNITS)
    acc = tl.zeros((BM, BN), tl.float32)
    part = acc
    for i in tl.range(first, end, num_stages=STAGES):
        left = operand(load_tile(a, row * BM, i * BK, m, k, a_stride, BM, BK, TMA, EVEN), KIND, UNITS)
        right = operand(load_tile(b, column * BN, i * BK, n, k, b_stride, BN, BK, TMA, EVEN), KIND, UNITS)
        if BLOCKS:
            block = i * BK // 128
            scale = tl.load(
                scale_a + (row * BM + token).to(tl.int64) * blocks + block, mask=token < m - row * BM, other=0.0
            )
            scale *= tl.load(scale_b + (column * BN // 128).to(tl.int64) * blocks + block)
            acc += tl.dot(left, right.T) * scale
        elif KEPT == 0:
            acc = tl.dot(left, right.T, acc)
        else:
            part = tl.dot(left, right.T, part)
            if (i - first + 1) % (KEPT // BK) == 0:
                acc += part
                part = tl.zeros((BM, BN), tl.float32)
    if KEPT and not BLOCKS:
        acc += part
    last = True
    total = acc
    if SPLITS > 1:
        last, total = together(acc, shares, finished, tile, split, BM, BN, SPLITS, False)
    if last:
        finish(
            total, scale_a, scale_b, scale_a, scale_a, bias, residual, y, row * BM, column * BN, m, n,
            y_stride, residual_stride, A_STEP, B_STEP, 0, FACTOR, False, BIAS, ACTIVATION, RESIDUAL, False,
        )  # fmt: skip
