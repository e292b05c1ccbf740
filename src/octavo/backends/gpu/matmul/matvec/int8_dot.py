# mypy: ignore-errors
"""Dot products of four signed bytes, and their int32 sums in float32.

An integer sum begins at MAGIC: read as a float it is MAGIC_FLOAT plus the sum, so one fused multiply-add converts and
scales it. ASM says which instructions there are: "ptx", "gcn", "gcn11", or "none" for the plain twin, which is what the
interpreter runs.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAGIC = tl.constexpr(0x4B400000)  # the bits of 1.5 * 2^23: an integer below 2^22 added to them is added to the float
MAGIC_FLOAT = tl.constexpr(12582912.0)


@triton.jit
def dot4(a, b, acc, ASM: tl.constexpr):
    """acc + the dot product of the four signed bytes of each int32 of a with those of b."""
    if ASM == "ptx":
        acc = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, acc], dtype=tl.int32, is_pure=True, pack=1
        )
    elif ASM == "gcn":
        acc = tl.inline_asm_elementwise(
            "v_dot4_i32_i8 $0, $1, $2, $3", "=v,v,v,v", [a, b, acc], dtype=tl.int32, is_pure=True, pack=1
        )
    elif ASM == "gcn11":
        code: tl.constexpr = "v_dot4_i32_iu8 $0, $1, $2, $3 neg_lo:[1,1,0]"
        acc = tl.inline_asm_elementwise(code, "=v,v,v,v", [a, b, acc], dtype=tl.int32, is_pure=True, pack=1)
    else:
        for i in tl.static_range(4):
            acc += ((a << (24 - 8 * i)) >> 24) * ((b << (24 - 8 * i)) >> 24)
    return acc


@triton.jit
def dot4_unsigned(a, b, acc, ASM: tl.constexpr):
    """acc + the dot product of the four unsigned bytes of each int32 of a with the signed ones of b; not on AMD."""
    if ASM == "ptx":
        acc = tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, acc], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        for i in tl.static_range(4):
            acc += ((a >> (8 * i)) & 0xFF) * ((b << (24 - 8 * i)) >> 24)
    return acc


@triton.jit
def scaled(total, d, less):
    """total * d in float32, of an integer that was counted from MAGIC on; `less` is -MAGIC_FLOAT * d.

    That product is exact for the scales of `activations`, which have 22 bits; so one fused operation is all it takes.
    """
    return tl.fma(total.to(tl.float32, bitcast=True), d, less)
