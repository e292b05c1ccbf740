"""Products of quantized weights and quantized activations: a tile of 16 rows and n tokens, all of K at a time.

Weights are in `layout.Layout`; activations in blocks of n tokens x 32 values as `kernels.quantize` writes them:
n x 32 s8 codes, then n scales d, n sums s of the values, and n sums h of the first 16 of them, float32.
A weight is scale * code + bias, so a block adds  scale * dot * d + bias * s  to each token.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.compile import inner, kernels
from octavo.backends.cpu.layout import ROWS, SCALE_BYTES, STEP, Layout
from octavo.backends.cpu.simd import (
    add_blocks,
    arg,
    call,
    dot_block,
    fma_scaled,
    fma_scaled_2,
    fma_splat,
    load_block_masked,
    load_codes,
    load_exponent_x16,
    load_f16x16,
    load_f32x16,
    load_s8x16,
    load_u8x16,
    look_up,
    mul,
    splat,
    store_block_masked,
    sub,
    zeros,
)  # fmt: skip

TOKEN_BYTES = STEP + 12
"""Bytes of a token in a block of activations: 32 codes, scale, sum, sum of the first half."""

MAX_TOKENS = 8

ARGS = ("weights", "x", "y", "rows", "k", "y_stride", "tiles", "terms", "term0", "stride0", "term1", "stride1",
        "table", "tail", "tail_args")  # fmt: skip
"""Arguments of a product: addresses, sizes and strides in bytes; `tiles` of n tokens. A tail is a call for the rest."""

LOADS = {"f16": load_f16x16, "f32": load_f32x16, "exponent": load_exponent_x16}


@kernels
def mul_mat_kernel(layout: Layout, n: int) -> Any:
    """The product for tiles of n tokens: task i makes 16 rows of y, from row 16 i on."""
    accumulate = _accumulate(layout, n)
    tile_rows, token_bytes = ROWS, TOKEN_BYTES
    super_values, super_bytes = layout.super, layout.super_bytes

    def mul_mat(args, task):
        k = arg(args, 4)
        w = arg(args, 0) + task * (k // super_values * super_bytes)
        y = arg(args, 2) + task * tile_rows * 4
        rows = min(arg(args, 3) - task * tile_rows, tile_rows)
        tile_bytes = k // 32 * (n * token_bytes)
        for tile in range(arg(args, 6)):
            acc = accumulate(w, arg(args, 1) + tile * tile_bytes, k, arg(args, 12))
            for term in range(arg(args, 7)):
                stride = arg(args, 9 + 2 * term)
                at = arg(args, 8 + 2 * term) + task * tile_rows * 4 + tile * n * stride
                acc = add_blocks(acc, load_block_masked(at, stride, rows, n))
            store_block_masked(y + tile * n * arg(args, 5), arg(args, 5), rows, acc)
        if arg(args, 13) != 0:
            call(arg(args, 13), arg(args, 14), task)

    return mul_mat


def _accumulate(layout: Layout, n: int) -> Any:
    """A function (weights, activations, k, table) -> n vectors of 16 sums."""
    bits, groups, sets = layout.bits, layout.groups, layout.sets
    two_level, has_min = layout.two_level, layout.minima is not None
    has_bias = has_min or layout.offset != 0 or layout.table is not None
    offset = float(128 if layout.table is not None else layout.offset)
    has_table = layout.table is not None
    blocks, super_values = layout.super // STEP, layout.super
    load_d = LOADS[layout.scale]
    load_min = LOADS[layout.minima or "f16"]
    load_sc = load_s8x16 if layout.signed_scales else load_u8x16
    d_bytes = SCALE_BYTES[layout.scale] * ROWS
    min_bytes = SCALE_BYTES[layout.minima] * ROWS if layout.minima else 0
    head_bytes, code_bytes = layout.head_bytes, layout.code_bytes
    block_bytes = layout.block_bytes
    codes_at = block_bytes - code_bytes
    d_at, s_at, h_at = n * STEP, n * (STEP + 4), n * (STEP + 8)
    x_bytes = n * TOKEN_BYTES

    def accumulate(w, x, k, table):
        acc = zeros(n)
        for _super in range(k // super_values):
            d = load_d(w)
            dmin = load_min(w + d_bytes * sets) if has_min else d
            block = w + head_bytes
            for _block in range(blocks):
                scale0 = mul(load_sc(block), d) if two_level else d
                scale1 = scale0
                if groups == 2:
                    scale1 = mul(load_sc(block + 16), d) if two_level else load_d(w + d_bytes)
                codes = load_codes(block + codes_at, bits)
                if has_table:
                    codes = look_up(codes, table)
                if groups == 1:
                    dots = dot_block(codes, 0, 8, x, 32, n)
                    acc = fma_scaled(acc, dots, scale0, x + d_at)
                else:
                    dots0 = dot_block(codes, 0, 4, x, 32, n)
                    dots1 = dot_block(codes, 4, 4, x + 16, 32, n)
                    acc = fma_scaled_2(acc, dots0, scale0, dots1, scale1, x + d_at)
                if has_bias:
                    bias0 = mul(scale0, splat(-offset))
                    bias1 = mul(scale1, splat(-offset))
                    if has_min:
                        bias0 = sub(bias0, mul(load_u8x16(block + 16 * groups), dmin) if two_level else dmin)
                        if groups == 2:
                            bias1 = sub(
                                bias1,
                                mul(load_u8x16(block + 48), dmin)
                                if two_level
                                else load_min(w + d_bytes * 2 + min_bytes),
                            )
                    if groups == 2:
                        acc = fma_splat(acc, sub(bias0, bias1), x + h_at)
                        acc = fma_splat(acc, bias1, x + s_at)
                    else:
                        acc = fma_splat(acc, bias0, x + s_at)
                block += block_bytes
                x += x_bytes
            w += head_bytes + blocks * block_bytes
        return acc

    return inner(accumulate, layout, n)
