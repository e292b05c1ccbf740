"""What a lane holds of a unit, 256 values of a row of weights: chunks of 16 codes, what scales are made from."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.kernels.codes import (
    field,
    half_pair,
    left_of,
    look_up,
)
from octavo.backends.gpu.kernels.mmq_mma.ptx import four, two


@triton.jit
def _load_codes(
    codes8, codes4, codes2, codes1, row, tile, t, kp: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The words of each plane that have a lane's chunk t of a tile: two fours of 8 bits, else one of each plane."""
    out = ()
    if BITS == 8:
        for i in tl.static_range(2):
            out = out + (four(codes8, row * (kp // 16) + tile * 8 + i * 4 + t, ASM),)  # noqa: RUF005
    if BITS >= 4 and BITS < 8:
        out = out + (four(codes4, row * (kp // 32) + tile * 4 + t, ASM),)  # noqa: RUF005
    if BITS & 2:
        out = out + (four(codes2, row * (kp // 64) + tile * 2 + t % 2, ASM),)  # noqa: RUF005
    if BITS & 1:
        out = out + (four(codes1, row * (kp // 128) + tile, ASM),)  # noqa: RUF005
    return out


@triton.constexpr_function
def _place(bits, plane):
    """Where `_load_codes` leaves a plane narrower than 4 bits."""
    before = 1 if bits >= 4 else 0
    return before + (1 if plane == 1 and bits & 2 else 0)


@triton.jit
def words_of(
    loaded, t, P: tl.constexpr, table, BITS: tl.constexpr, SIGNED: tl.constexpr, TABLE: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """A lane's 16 codes of half P of a tile, as bytes in four words."""
    words = ()
    for i in tl.static_range(4):
        if BITS == 8:
            out = loaded[P][i]
        if BITS >= 4 and BITS < 8:
            out = field(loaded[0][i], left_of(BITS, SIGNED, 4), 4, 4 * P)
        if BITS & 2:
            two = field(loaded[_place(BITS, 2)][i] >> (t // 2 * 4), left_of(BITS, SIGNED, 2), 2, 2 * P)
            out = (out | two) if BITS >= 4 else two
        if BITS & 1:
            one = field(loaded[_place(BITS, 1)][i] >> (t * 2), left_of(BITS, SIGNED, 1), 1, P)
            out = (out | one) if BITS > 1 else one
        if TABLE:
            out = look_up(out, table, ASM, 1)
        words = words + (out,)  # noqa: RUF005
    return words


@triton.jit
def _words(pointer, at, COUNT: tl.constexpr, ASM: tl.constexpr):
    """COUNT int32 words (1, 2, or a multiple of 4) from place `at`, counted in as many."""
    if COUNT == 1:
        words = (tl.load(pointer.to(tl.pointer_type(tl.int32)) + at),)
    elif COUNT == 2:
        words = two(pointer, at, None)
    else:
        words = ()
        for i in tl.static_range(COUNT // 4):
            words = words + four(pointer, at * (COUNT // 4) + i, ASM)
    return words


@triton.jit
def _load_scales(
    scale, minimum, small, rest, row, unit, tiles, kp: tl.constexpr,
    G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr, HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """What the scales of a row's unit are made from: words of scales, words of minima, and what d and dmin are in."""
    above = ()
    if S > G:
        at = row * (kp // 256) + unit
        words = _words(small, at, 64 // G, ASM)
        minima = words
        above = tl.load(scale + row * (kp // S) + unit // (S // 256))
        if MIN_BITS == 6:
            minima = _words(rest, at, 32 // G, ASM)
    else:
        COUNT: tl.constexpr = 32 // G * (4 if KIND == "f32" else 2 if KIND == "f16" else 1)
        words, minima = (), ()
        if kp % 256 == 0:
            words = _words(scale, row * (kp // 256) + unit, 2 * COUNT, ASM)
            if HAS_MIN:
                minima = _words(minimum, row * (kp // 256) + unit, 2 * COUNT, ASM)
        else:
            for i in tl.static_range(2):
                words = words + _words(scale, row * (kp // 128) + tiles[i], COUNT, ASM)
                if HAS_MIN:
                    minima = minima + _words(minimum, row * (kp // 128) + tiles[i], COUNT, ASM)
    return words, minima, above


@triton.jit
def _byte(words, INDEX: tl.constexpr, ASM: tl.constexpr):
    """2^23 + byte INDEX of a tuple of int32 words, in float32."""
    if ASM == "ptx":
        PICK: tl.constexpr = "prmt.b32 $0, $1, 0x4B000000, " + ("0x744" + "0123"[INDEX % 4]) + ";"
        bits = tl.inline_asm_elementwise(PICK, "=r,r", [words[INDEX // 4]], dtype=tl.int32, is_pure=True, pack=1)
    else:
        bits = ((words[INDEX // 4] >> (8 * (INDEX % 4))) & 0xFF) | 0x4B000000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _half(words, INDEX: tl.constexpr):
    """float16 INDEX of a tuple of int32 words, in float32."""
    return (words[INDEX // 2] >> (16 * (INDEX % 2))).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def unpacked(loaded, S: tl.constexpr, G: tl.constexpr, HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr):
    """`_load_scales`, with small scales as unsigned bytes, and d and dmin in float32."""
    words, minima, above = loaded
    d, dmin = (), ()
    if S > G:
        if HAS_MIN:
            d, dmin = half_pair(above)
        else:
            d = above.to(tl.float32)
            dmin = d
        bytes = ()
        for i in tl.static_range(len(words)):
            if not HAS_MIN:
                bytes = bytes + (words[i] ^ -0x7F7F7F80,)  # noqa: RUF005
            else:
                bytes = bytes + (words[i] & (0x3F3F3F3F if MIN_BITS == 6 else 0x0F0F0F0F),)  # noqa: RUF005
        small = bytes
    else:
        small = words
    return small, minima, d, dmin


@triton.jit
def scale_and_minimum(
    parts, INDEX: tl.constexpr, S: tl.constexpr, G: tl.constexpr, KIND: tl.constexpr, HAS_MIN: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Scale and minimum of group INDEX of a unit. Of two levels there is no minimum here, and without minima the scale
    is still to be times d."""
    words, minima, d, _dmin = parts
    if S > G:
        if not HAS_MIN:
            s = _byte(words, INDEX, ASM) - 8388736.0
        elif ASM == "ptx":  # fused and so exact
            s = tl.fma(_byte(words, INDEX, ASM), d, d * -8388608.0)
        else:
            s = (_byte(words, INDEX, ASM) - 8388608.0) * d
        m = s
    elif KIND == "f16":
        s = _half(words, INDEX)
        m = _half(minima, INDEX) if HAS_MIN else s
    elif KIND == "f32":
        s = words[INDEX].to(tl.float32, bitcast=True)
        m = minima[INDEX].to(tl.float32, bitcast=True) if HAS_MIN else s
    else:
        s = (((words[INDEX // 4] >> (8 * (INDEX % 4))) & 0xFF) << 23).to(tl.float32, bitcast=True)
        m = s
    return s, m


@triton.jit
def small_minimum(scales, WORD: tl.constexpr, t, MIN_BITS: tl.constexpr):
    """Minimum t of word WORD of a row's small scales, as an integer in float32."""
    words, rest, _ = scales
    if MIN_BITS == 6:
        low = (words[WORD] >> (t * 8 + 6)) & 3
        code = low | ((((rest[WORD // 2] >> (t * 4)) >> (16 * (WORD % 2))) & 15) << 2)
    else:
        code = (words[WORD] >> (t * 8 + 4)) & 15
    return code.to(tl.float32)


@triton.constexpr_function
def number(tile, code, half, group):
    """Which group of a unit code `code` of half a tile is in, as scales are ordered."""
    return 2 * (tile * (64 // group) + code // group) + half


@triton.jit
def load_unit(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, row, unit, t,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, RT: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Codes and scales of 256 values of rows g, g + 8, ...: for each of 2 RT rows the codes of two tiles, scales."""
    UNITS: tl.constexpr = (kp + 128) // 256
    unit = tl.minimum(unit, UNITS - 1)
    second = unit * 2 + 1
    if kp % 256 != 0:
        second = tl.minimum(second, kp // 128 - 1)
    tiles = (unit * 2, second)
    out = ()
    for r in tl.static_range(2 * RT):
        codes = (
            _load_codes(codes8, codes4, codes2, codes1, row[r], tiles[0], t, kp, BITS, ASM),
            _load_codes(codes8, codes4, codes2, codes1, row[r], tiles[1], t, kp, BITS, ASM),
        )
        scales = _load_scales(scale, minimum, small, rest, row[r], unit, tiles, kp, G, S, KIND, HAS_MIN, MIN_BITS, ASM)
        out = out + ((codes, scales),)  # noqa: RUF005
    return out
