"""y [M, N] of int8 a [M, K] and b [N, K]: sums in int32 on the matrix units, and one epilogue."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.kernels.epilogue import finish, load_tile, steps_of, tile_of, together


@triton.jit
def _tile(
    a, b, scale_a, scale_b, zero_a, sums, bias, residual, y, shares, finished, program,
    m, n, k, a_stride, b_stride, y_stride, residual_stride,
    A_STEP: tl.constexpr, B_STEP: tl.constexpr, ZERO_STEP: tl.constexpr, ZERO: tl.constexpr, BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    tile, split = program % tiles, program // tiles
    row, column = tile_of(tile, tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    first, end = steps_of(split, k, BK, SPLITS)
    acc = tl.zeros((BM, BN), tl.int32)
    for i in tl.range(first, end, num_stages=STAGES):
        left = load_tile(a, row * BM, i * BK, m, k, a_stride, BM, BK, TMA, EVEN)
        right = load_tile(b, column * BN, i * BK, n, k, b_stride, BN, BK, TMA, EVEN)
        acc = tl.dot(left, right.T, acc, out_dtype=tl.int32)
    last = True
    total = acc
    if SPLITS > 1:
        last, total = together(acc, shares, finished, tile, split, BM, BN, SPLITS, WIDE)
    if last:
        finish(
            total, scale_a, scale_b, zero_a, sums, bias, residual, y, row * BM, column * BN, m, n,
            y_stride, residual_stride, A_STEP, B_STEP, ZERO_STEP, 1.0, ZERO, BIAS, ACTIVATION, RESIDUAL, False,
        )  # fmt: skip


@triton.jit
def int8_gemm_kernel(
    a, b, scale_a, scale_b, zero_a, sums, bias, residual, y, shares, finished,
    m, n, k, a_stride, b_stride, y_stride, residual_stride,
    A_STEP: tl.constexpr, B_STEP: tl.constexpr, ZERO_STEP: tl.constexpr, ZERO: tl.constexpr, BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, PERSISTENT: tl.constexpr, WIDE: tl.constexpr,
    TMA: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """A program a tile of BM x BN and a share of K; or, PERSISTENT, as many programs as run at once, tile after tile.

    a and b are descriptors (TMA) or pointers with rows a_stride and b_stride apart. `shares`, int32, and `finished`
    are those of `epilogue.together`.
    """
    if PERSISTENT:
        programs = tl.cdiv(m, BM) * tl.cdiv(n, BN) * SPLITS
        for program in tl.range(tl.program_id(0), programs, tl.num_programs(0), flatten=True):
            _tile(
                a, b, scale_a, scale_b, zero_a, sums, bias, residual, y, shares, finished, program,
                m, n, k, a_stride, b_stride, y_stride, residual_stride, A_STEP, B_STEP, ZERO_STEP, ZERO, BIAS,
                ACTIVATION, RESIDUAL, BM, BN, BK, GROUP, SPLITS, STAGES, WIDE, TMA, EVEN,
            )  # fmt: skip
    else:
        _tile(
            a, b, scale_a, scale_b, zero_a, sums, bias, residual, y, shares, finished, tl.program_id(0),
            m, n, k, a_stride, b_stride, y_stride, residual_stride, A_STEP, B_STEP, ZERO_STEP, ZERO, BIAS,
            ACTIVATION, RESIDUAL, BM, BN, BK, GROUP, SPLITS, STAGES, WIDE, TMA, EVEN,
        )  # fmt: skip


@triton.jit
def row_sums_kernel(b, sums, k, stride, B: tl.constexpr):
    """sums int32 [N]: of each row of int8 b [N, K]."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((B,), tl.int32)
    for first in range(0, k, B):
        at = first + tl.arange(0, B)
        total += tl.load(b + row * stride + at, mask=at < k, other=0).to(tl.int32)
    tl.store(sums + row, tl.sum(total))
