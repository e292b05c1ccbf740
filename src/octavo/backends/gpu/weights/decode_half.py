# mypy: ignore-errors
"""Codes of 8 and of 4 bits made float16, in the fewest instructions that a target has for it."""

from __future__ import annotations

import triton
import triton.language as tl

HALVES_OF_INT8 = tl.constexpr("""{ .reg .b32 t; xor.b32 t, $2, 0x80808080;
prmt.b32 $0, t, 0x64646464, 0x4140; prmt.b32 $1, t, 0x64646464, 0x4342; mov.b32 t, 0x64806480;
sub.rn.f16x2 $0, $0, t; sub.rn.f16x2 $1, $1, t; }""")
"""A byte below 1024 as float16, less 1024 and 128."""
HALVES_OF_FP8 = tl.constexpr("""{ .reg .b32 a, b; prmt.b32 a, $2, 0, 0x1404; prmt.b32 b, $2, 0, 0x3424;
shr.u32 $0, a, 1; shr.u32 $1, b, 1; and.b32 $0, $0, 0x3f803f80; and.b32 $1, $1, 0x3f803f80;
lop3.b32 $0, a, 0x80008000, $0, 0xea; lop3.b32 $1, b, 0x80008000, $1, 0xea; }""")
"""`halves_of_fp8` of two bytes at once."""
HALVES_OF_INT4 = tl.constexpr("""{ .reg .b32 s, t; xor.b32 s, $4, 0x88888888; shr.u32 t, s, 4;
and.b32 s, s, 0x0f0f0f0f; and.b32 t, t, 0x0f0f0f0f;
prmt.b32 $0, s, 0x64646464, 0x4140; prmt.b32 $1, s, 0x64646464, 0x4342;
prmt.b32 $2, t, 0x64646464, 0x4140; prmt.b32 $3, t, 0x64646464, 0x4342; mov.b32 t, 0x64086408;
sub.rn.f16x2 $0, $0, t; sub.rn.f16x2 $1, $1, t; sub.rn.f16x2 $2, $2, t; sub.rn.f16x2 $3, $3, t; }""")
"""The same of four bits, less 1024 and 8: the low ones of four bytes, and then the high ones."""


@triton.jit
def halves_of_fp8(codes):
    """e4m3 numbers over 256 as float16, which has the same bits but for the exponent's bias; none is NaN."""
    bits = codes.to(tl.int16)
    return (((bits & 0x7F) << 7) | (bits & -0x8000)).to(tl.float16, bitcast=True)


@triton.jit
def halves_of(codes, KIND: tl.constexpr, ASM: tl.constexpr):
    """float16 of int8 codes: of KIND "fp8" e4m3 numbers over 256, otherwise the integers."""
    if ASM == "ptx":
        PTX: tl.constexpr = HALVES_OF_FP8 if KIND == "fp8" else HALVES_OF_INT8
        value = tl.inline_asm_elementwise(PTX, "=&r,=&r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)
    elif KIND == "fp8":
        value = halves_of_fp8(codes)
    else:
        value = codes.to(tl.float16)
    return value


@triton.jit
def halves_of_both(codes, ASM: tl.constexpr):
    """float16 of the integers in the low and in the high four bits of int8 codes."""
    if ASM == "ptx":
        low, high = tl.inline_asm_elementwise(
            HALVES_OF_INT4, "=&r,=&r,=&r,=&r,r", [codes], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
        )
    else:
        low, high = ((codes << 4) >> 4).to(tl.float16), (codes >> 4).to(tl.float16)
    return low, high
