# mypy: ignore-errors
"""y [M, N] of int8 a [M, K] and 4-bit weights [N, K], as y^T = W a^T, in portable Triton.

Algorithm: QQQ's W4A8 (arXiv 2406.09904): scales of groups folded into int8 codes before an integer GEMM.
Tile:
    W [block_n, 128 codes in 64 bytes] -> low [block_n, 64], high [block_n, 64] in registers, the first factor
    a^T [64, block_m] twice            -> acc int32 [block_n, block_m]
Bound: instructions, of unpacking beside the tensor cores, which Triton waits for; not measured by itself, since Hopper
    has `int8_hopper_kernel`.
Tried: docs/log.md: "Triton 3.6 waits for each product of integers".
Twin: `octavo.ops.definition.w4a8_gemm`

Weights are packed in bytes int8 [N, K / 2]: of each 64, byte j holds the codes j and 64 + j of 128 values of K, the
first in its low nibble; signed, from -8 to 7. Each nibble at the top of a byte is 16 times its code, so that without
groups a shift and two masks unpack eight codes, and the scale pays for the 16.

With groups of 128 codes become int8 before the product, round(code * group_scale): in float16, where the sum of 1536
and a number is rounded to an integer, and its low byte is that of the number.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.matmul.w8a8.epilogue import finish, load_tile, steps_of, sum_splits, tile_of
from octavo.backends.gpu.matmul.w8a8.quantize_kernel import ROUND

HALF = tl.constexpr(64)  # bytes of 128 codes, a step

UNPACK_PTX = tl.constexpr("""{ .reg .b32 t; shl.b32 t, $2, 4;
and.b32 $1, $2, 0xF0F0F0F0; and.b32 $0, t, 0xF0F0F0F0; }""")
# bytes 0 and 2, then 1 and 3; (nibble ^ 8) + 1024 in float16; less 1032, times the scale, plus 1536; low bytes. High
# nibbles are 16 times as much, and their scale a sixteenth: exact where the result is not zero anyway
FOLD_PTX = tl.constexpr("""{ .reg .b32 q, a, b, c, d, m, n, r, s;
mov.b32 m, 0x64086408; mov.b32 n, 0x64806480; mov.b32 r, 0x66006600; mov.b32 s, 0x2C002C00; mul.rn.f16x2 s, $3, s;
shr.u32 q, $2, 8;
lop3.b32 a, $2, 0x000F000F, m, 0x6A; lop3.b32 b, q, 0x000F000F, m, 0x6A;
lop3.b32 c, $2, 0x00F000F0, n, 0x6A; lop3.b32 d, q, 0x00F000F0, n, 0x6A;
sub.f16x2 a, a, m; sub.f16x2 b, b, m; sub.f16x2 c, c, n; sub.f16x2 d, d, n;
fma.rn.f16x2 a, a, $3, r; fma.rn.f16x2 b, b, $3, r; fma.rn.f16x2 c, c, s, r; fma.rn.f16x2 d, d, s, r;
prmt.b32 $0, a, b, 0x6240; prmt.b32 $1, c, d, 0x6240; }""")


@triton.jit
def unpacked(packed, ASM: tl.constexpr):
    """16 times the codes of the low and the high nibbles, int8."""
    if ASM == "ptx":
        low, high = tl.inline_asm_elementwise(
            UNPACK_PTX, "=r,=r,r", [packed], dtype=(tl.int8, tl.int8), is_pure=True, pack=4
        )
    else:
        low, high = (packed << 4).to(tl.int8), (packed & -16).to(tl.int8)
    return low, high


@triton.jit
def folded(packed, scale, ASM: tl.constexpr):
    """round(code * scale) of the low and the high nibbles, int8; scale float16 [N, 1]."""
    if ASM == "ptx":
        low, high = folded_twice(packed, tl.broadcast_to(twice(scale), packed.shape))
    else:
        low, high = _rounded((packed << 4).to(tl.int8) >> 4, scale), _rounded(packed >> 4, scale)
    return low, high


@triton.jit
def folded_twice(packed, both):
    """`folded` by scales that are each twice in an int32, of the shape of `packed`."""
    return tl.inline_asm_elementwise(
        FOLD_PTX, "=r,=r,r,r,r,r,r", [packed, both], dtype=(tl.int8, tl.int8), is_pure=True, pack=4
    )


@triton.jit
def twice(scale):
    """The bits of a float16, in both halves of an int32."""
    bits = scale.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return bits | (bits << 16)


@triton.jit
def _rounded(code, scale):
    return (code.to(tl.float32) * scale.to(tl.float32) + ROUND - ROUND).to(tl.int8)


@triton.jit
def w4a8_gemm_kernel(
    a, packed, strides, size, groups, end, split_k, shape: tl.constexpr, config: tl.constexpr, ASM: tl.constexpr
):
    """A program computes a tile of block_n rows of W by block_m tokens from a part of K, a multiple of 128.

    groups is a GroupScales or None. Other arguments are those of `int8_kernel`.
    """
    BM: tl.constexpr = shape.block_m
    BN: tl.constexpr = shape.block_n
    SPLIT_K: tl.constexpr = shape.split_k
    GROUPED: tl.constexpr = groups is not None
    tiles = tl.cdiv(size.m, BM) * tl.cdiv(size.n, BN)
    tile, split = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    row, column = tile_of(tile, tl.cdiv(size.n, BN), tl.cdiv(size.m, BM), shape.group_m)
    first, end_step = steps_of(split, size.k, 2 * HALF, SPLIT_K)
    acc = tl.zeros((BN, BM), tl.int32)
    if GROUPED:
        at = tl.arange(0, BN)[:, None]
        scales = groups.data + (row * BN + at).to(tl.int64) * groups.row
        there = at < size.n - row * BN
        scale = tl.load(scales + first * groups.group, mask=there & (first < end_step), other=0.0)  # [BN, 1]
    for i in tl.range(first, end_step, num_stages=shape.stages):
        codes = load_tile(
            packed, row * BN, i * HALF, size.n, size.k // 2, strides.b, BN, HALF, config.tma, True
        )  # [BN, 64] bytes of 128 values
        if GROUPED:
            low, high = folded(codes, scale, ASM)
            following = tl.minimum(i + 1, end_step - 1)
            scale = tl.load(scales + following * groups.group, mask=there, other=0.0)  # [BN, 1]
        else:
            low, high = unpacked(codes, ASM)
        tokens = load_tile(
            a, column * BM, i * 2 * HALF, size.m, size.k, strides.a, BM, HALF, config.tma, True
        )  # [BM, 64]
        acc = tl.dot(low, tokens.T, acc, out_dtype=tl.int32)  # [BN, 64] @ [64, BM]
        tokens = load_tile(
            a, column * BM, i * 2 * HALF + HALF, size.m, size.k, strides.a, BM, HALF, config.tma, True
        )  # [BM, 64]
        acc = tl.dot(high, tokens.T, acc, out_dtype=tl.int32)  # [BN, 64] @ [64, BM]
    last = True
    total = acc
    if SPLIT_K > 1:
        last, total = sum_splits(acc, split_k, tile, split, BN, BM, SPLIT_K, config.wide)
    if last:
        finish(total, end, size, column * BM, row * BN, config, True)
