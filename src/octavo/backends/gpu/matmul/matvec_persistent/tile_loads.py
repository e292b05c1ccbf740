# mypy: ignore-errors
"""Loads of `matvec_persistent`: of what some lanes want, in the order in which they are written.

An address is what a lane has of it, then the row's, then a constant, which costs nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.weights.loads import four, load_or_zero


@triton.constexpr_function
def _ptx(load, count, offset):
    """PTX of a load of some words from `offset` bytes on if its last operand is not 0, and its constraints."""
    out = ", ".join(f"${i}" for i in range(count))
    wanted = f"{{ .reg .pred p; setp.ne.b32 p, ${count + 1}, 0; @p ld.global.{load} "
    return wanted + (f"{{{out}}}" if count > 1 else out) + f", [${count}+{offset}]; }}", "=r," * count + "l,r"


@triton.jit
def four_words(pointer, OFFSET: tl.constexpr, wanted, ASM: tl.constexpr):
    """Four int32 words from OFFSET words after `pointer` on, which is to int32; anything unless they are wanted."""
    if ASM == "ptx":
        CODE: tl.constexpr = _ptx("v4.b32", 4, 4 * OFFSET)
        out = tl.inline_asm_elementwise(
            CODE[0], CODE[1], [pointer.to(tl.int64), wanted.to(tl.int32)],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
        )
    else:
        out = four(pointer + OFFSET, 0, wanted, ASM)
    return out


@triton.jit
def bits_at(pointer, OFFSET: tl.constexpr, wanted, ASM: tl.constexpr):
    """The 8, 16 or 32 bits at place OFFSET from `pointer` on, as an int32; anything unless they are wanted."""
    WIDTH: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth
    if ASM == "ptx":
        CODE: tl.constexpr = _ptx("b32" if WIDTH == 32 else f"u{WIDTH}", 1, OFFSET * (WIDTH // 8))
        out = tl.inline_asm_elementwise(
            CODE[0], CODE[1], [pointer.to(tl.int64), wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
        )
    elif WIDTH == 8:
        out = load_or_zero((pointer + OFFSET).to(tl.pointer_type(tl.int8)), wanted).to(tl.int32) & 0xFF
    elif WIDTH == 16:
        out = load_or_zero((pointer + OFFSET).to(tl.pointer_type(tl.int16)), wanted).to(tl.int32) & 0xFFFF
    else:
        out = load_or_zero((pointer + OFFSET).to(tl.pointer_type(tl.int32)), wanted)
    return out
