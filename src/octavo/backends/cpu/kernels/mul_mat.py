"""Products of quantized weights and quantized activations: a tile of 16 rows and n tokens, all of K at a time.

Weights are in `layout.Layout`, activations in blocks of n tokens x 32 values as `kernels.quantize` writes them. A
weight is scale * (code - offset) - minimum, so a block adds  scale * dot * d - minimum * s  to each token.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.kernels.quantize import TOKEN_BYTES
from octavo.backends.cpu.layout import ROWS, SCALE_BYTES, STEP, Layout
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add_blocks,
    arg,
    call,
    fma_blocks,
    fma_dots,
    fma_dots_2,
    fma_splat_strided,
    load_block_masked,
    load_codes,
    load_exponent_x16,
    load_f16x16,
    load_f32x16,
    load_high_codes,
    load_s8x16,
    load_u8x16,
    look_up,
    mul,
    prefetch,
    splat,
    store_block_masked,
    sub,
    zeros,
)  # fmt: skip

AHEAD = 2176
"""Bytes from the block in work to what is fetched. With fewer tokens, the hardware's own fetching keeps up."""

LOADS = {"f16": load_f16x16, "f32": load_f32x16, "exponent": load_exponent_x16}


@kernels
def mul_mat_kernel(layout: Layout, n: int) -> Any:
    """The product for tiles of n tokens: task i makes 16 rows of y, from row 16 i on.

    Arguments: weights, x, y, rows, k, y stride, tiles, terms, (term, stride) twice, table, tail, tail's arguments. A
    tail is a call for the tokens that fill no tile; strides are in bytes.
    """
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
    """A function (weights, activations, k, table) -> n vectors of 16 sums.

    Codes less an offset are kept in the high bits of their bytes, so that the offset is 128 for all widths, and what it
    comes to (-128 times the sum of the activation's codes) is where the integer sums begin: it costs nothing.
    """
    bits, groups, sets = layout.bits, layout.groups, layout.sets
    two_level, has_min, has_table = layout.two_level, layout.minima is not None, layout.table is not None
    is_offset = layout.offset != 0
    high = is_offset and not has_table
    down = 2.0 ** -(8 - bits) if high else 1.0
    kind = 1 if has_min else 2 if is_offset else 0
    blocks, super_values = layout.super // STEP, layout.super
    load_d = LOADS[layout.scale]
    load_min = LOADS[layout.minima or "f16"]
    load_sc = load_s8x16 if layout.signed_scales else load_u8x16
    d_bytes = SCALE_BYTES[layout.scale] * ROWS
    min_bytes = SCALE_BYTES[layout.minima] * ROWS if layout.minima else 0
    head_bytes, block_bytes = layout.head_bytes, layout.block_bytes
    codes_at = block_bytes - layout.code_bytes
    d_at, s_at, h_at, x_bytes = n * STEP, n * (STEP + 4), n * (STEP + 8), n * TOKEN_BYTES
    fetches, ahead = n == 16 or (n >= 4 and bits < 8), AHEAD
    late = two_level and n <= 2  # d once a super-block: few tokens leave registers for sums of their own
    late_kind = 2 if is_offset else 0

    def accumulate(w, x, k, table):
        acc = zeros(n)
        none = splat(0.0)
        for _super in range(k // super_values):
            d = load_d(w)
            if high:
                d = mul(d, splat(down))
            dmin = load_min(w + d_bytes * sets) if has_min else none
            block = w + head_bytes
            part, minima = zeros(n), zeros(n)  # of a super-block, before d and dmin
            for _block in range(blocks):
                if fetches:
                    for line in range(0, block_bytes, 64):
                        prefetch(block + ahead + line)
                codes = load_high_codes(block + codes_at, bits) if high else load_codes(block + codes_at, bits)
                if has_table:
                    codes = look_up(codes, table)
                if late:
                    if groups == 1:
                        part = fma_dots(part, codes, load_sc(block), none, x, d_at, late_kind)
                        if has_min:
                            minima = fma_splat_strided(minima, load_u8x16(block + 16), x + s_at, 4)
                    else:
                        part = fma_dots_2(part, codes, load_sc(block), load_sc(block + 16), none, none, x, d_at,
                                          late_kind)  # fmt: skip
                        if has_min:
                            first, last = load_u8x16(block + 32), load_u8x16(block + 48)
                            minima = fma_splat_strided(minima, sub(first, last), x + h_at, 4)
                            minima = fma_splat_strided(minima, last, x + s_at, 4)
                elif groups == 1:
                    scale = mul(load_sc(block), d) if two_level else d
                    bias = none
                    if has_min:
                        bias = sub(none, mul(load_u8x16(block + 16), dmin) if two_level else dmin)
                    acc = fma_dots(acc, codes, scale, bias, x, d_at, kind)
                else:
                    if two_level:
                        scale0, scale1 = mul(load_sc(block), d), mul(load_sc(block + 16), d)
                    else:
                        scale0, scale1 = d, load_d(w + d_bytes)
                        if high:
                            scale1 = mul(scale1, splat(down))
                    bias0, bias1 = none, none
                    if has_min:
                        if two_level:
                            bias0, bias1 = mul(load_u8x16(block + 32), dmin), mul(load_u8x16(block + 48), dmin)
                        else:
                            bias0, bias1 = dmin, load_min(w + d_bytes * 2 + min_bytes)
                    acc = fma_dots_2(acc, codes, scale0, scale1, sub(bias1, bias0), sub(none, bias1), x, d_at, kind)
                block += block_bytes
                x += x_bytes
            if late:
                acc = fma_blocks(acc, part, d)
                if has_min:
                    acc = fma_blocks(acc, minima, sub(none, dmin))
            w += head_bytes + blocks * block_bytes
        return acc

    return inner(accumulate, layout, n)
