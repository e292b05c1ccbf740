# mypy: ignore-errors
"""Dot products of codes of four bits that stand for the values of a table. One half of it has no values below 0, the
other none above, so that magnitudes are looked up in each apart: 4 permutations of bytes for eight codes instead of 6.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.matmul.matvec.int8_dot import dot4
from octavo.backends.gpu.weights.decode import look_up


@triton.jit
def interleaved(a, b, ASM: tl.constexpr):
    """The bytes of two words of a token interleaved, as two words. What is not pure is not done anew in a loop."""
    if ASM == "ptx":
        low, high = tl.inline_asm_elementwise(
            "prmt.b32 $0, $2, $3, 0x5140; prmt.b32 $1, $2, $3, 0x7362;", "=&r,=&r,r,r", [a, b],
            dtype=(tl.int32, tl.int32), is_pure=False, pack=1,
        )
    else:
        low, high = _interleaved_four(a, b), _interleaved_four(a >> 16, b >> 16)
    return low, high


@triton.jit
def _interleaved_four(a, b):
    return (a & 0xFF) | ((b & 0xFF) << 8) | ((a & 0xFF00) << 8) | ((b & 0xFF00) << 16)


@triton.jit
def _interleaved_codes(a, b, P: tl.constexpr):
    """The lower (P 0) or upper codes of two words' bytes interleaved, one in each four bits."""
    if P == 0:
        b = b << 4
    else:
        a = a >> 4
    return (a & 0x0F0F0F0F) | (b & -0x0F0F0F10)


@triton.constexpr_function
def _words(values):
    """16 bytes as four int32."""
    words = [sum((v & 0xFF) << (8 * j) for j, v in enumerate(values[i : i + 4])) for i in range(0, 16, 4)]
    return tuple(word - (1 << 32) if word >> 31 else word for word in words)


@triton.constexpr_function
def _magnitudes(table):
    """Of values without their signs, the words of the lower half and of the upper one."""
    return _words([abs(value) for value in table])


@triton.constexpr_function
def _starts_below_zero(table):
    return min(table[:8]) < 0


@triton.jit
def magnitudes(TABLE: tl.constexpr, zero):
    """The first words of both halves, in registers: the assembler copies constants before each use. It must not know
    that `zero` is 0."""
    WORDS: tl.constexpr = _magnitudes(TABLE)
    return zero | WORDS[0], zero | WORDS[2]


_HALVES_PTX = tl.constexpr("""{ .reg .b32 s, t, u;
xor.b32 s, $4, 0x88888888; shr.u32 t, $4, 16; shr.u32 u, s, 16;
prmt.b32 $0, $5, $6, $4; prmt.b32 $1, $5, $6, t;
prmt.b32 $2, $7, $8, s; prmt.b32 $3, $7, $8, u; }""")


@triton.jit
def _add_eight(codes, x, y, lower, upper, first, TABLE: tl.constexpr, ASM: tl.constexpr):
    """`lower` and `upper` plus dot products of eight codes with words x and y of a token: of codes below 8, and others.

    Where a selector has its highest bit set, a permutation of bytes takes a byte's sign, eight times. Magnitudes have
    none, so codes of the other half are zeros.
    """
    if ASM == "ptx":
        WORDS: tl.constexpr = _magnitudes(TABLE)
        a, b, c, d = tl.inline_asm_elementwise(
            _HALVES_PTX, "=&r,=&r,=&r,=&r,r,r,r,r,r", [codes, first[0], WORDS[1], first[1], WORDS[3]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )
        lower, upper = dot4(b, y, dot4(a, x, lower, ASM), ASM), dot4(d, y, dot4(c, x, upper, ASM), ASM)
    else:
        total = tl.zeros_like(codes)
        for i in tl.static_range(2):
            four = codes >> (16 * i)
            four = (four & 15) | ((four & 0xF0) << 4) | ((four & 0xF00) << 8) | ((four & 0xF000) << 12)
            total = dot4(look_up(four, _words(TABLE), 4, ASM, 1), x if i == 0 else y, total, ASM)
        if _starts_below_zero(TABLE):
            upper += total
        else:
            lower += total
    return lower, upper


@triton.jit
def table_product(words, x, start, first, P: tl.constexpr, TABLE: tl.constexpr, ASM: tl.constexpr):
    """The dot product of the lower (P 0) or upper codes of four words with a token's words `interleaved`, in float32;
    `start` is MAGIC, `first` are `magnitudes`."""
    lower, upper = start, start
    for i in tl.static_range(0, 4, 2):
        codes = _interleaved_codes(words[i], words[i + 1], P)
        lower, upper = _add_eight(codes, x[i], x[i + 1], lower, upper, first, TABLE, ASM)
    lower, upper = lower.to(tl.float32, bitcast=True), upper.to(tl.float32, bitcast=True)
    return upper - lower if _starts_below_zero(TABLE) else lower - upper
