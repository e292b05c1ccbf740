# mypy: ignore-errors
"""Loads that the compiler would not find by itself: several words at once, and zeros where a mask is false."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_or_zero(pointer, mask):
    """What lies at `pointer`, 0 where `mask` is false; a mask of None is true everywhere."""
    if mask is None:
        value = tl.load(pointer)
    else:
        value = tl.load(pointer, mask=mask, other=0)
    return value


@triton.jit
def two(pointer, at, mask):
    """The int32 words 2 * at and 2 * at + 1."""
    double = load_or_zero(pointer.to(tl.pointer_type(tl.int64)) + at, mask)
    return double.to(tl.int32), (double >> 32).to(tl.int32)


@triton.jit
def two_apart(pointer, at, mask, ASM: tl.constexpr):
    """The same two words. With ASM "ptx" the compiler takes each for a register, not for a part of 64 bits."""
    if ASM == "ptx":
        double = load_or_zero(pointer.to(tl.pointer_type(tl.int64)) + at, mask)
        low, high = tl.inline_asm_elementwise(
            "mov.b64 {$0, $1}, $2;", "=r,=r,l", [double], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        low, high = two(pointer, at, mask)
    return low, high


@triton.jit
def two_floats(pointer, at, mask):
    """The float32 values 2 * at and 2 * at + 1."""
    low, high = two(pointer, at, mask)
    return low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)


@triton.jit
def four(pointer, at, mask, ASM: tl.constexpr):
    """The int32 words from 4 * at on. With ASM "ptx", which takes no mask, the compiler keeps these loads in order."""
    if ASM == "ptx":
        out = tl.inline_asm_elementwise(
            "ld.global.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l",
            [(pointer.to(tl.pointer_type(tl.int32)) + at * 4).to(tl.int64)],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
        )
    else:
        low, high = two(pointer, at * 2, mask), two(pointer, at * 2 + 1, mask)
        out = (low[0], low[1], high[0], high[1])
    return out


@triton.jit
def words_at(pointer, at, mask, COUNT: tl.constexpr, ASM: tl.constexpr):
    """COUNT int32 words (1, 2, or a multiple of 4) from place `at`, counted in as many; see `four` for ASM."""
    if COUNT == 1:
        words = (load_or_zero(pointer.to(tl.pointer_type(tl.int32)) + at, mask),)
    elif COUNT == 2:
        words = two(pointer, at, mask)
    else:
        words = ()
        for i in tl.static_range(COUNT // 4):
            words = words + four(pointer, at * (COUNT // 4) + i, mask, ASM)
    return words
