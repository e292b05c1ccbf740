# mypy: ignore-errors
"""What a lane holds of a unit, 256 values of a row of weights: chunks of 16 codes, and what scales are made from."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.weights.decode import half_pair, look_up, scale_and_minimum, word_of
from octavo.backends.gpu.weights.loads import four, words_at


@triton.jit
def _load_codes(w, row, tile, t, ASM: tl.constexpr):
    """The words of each plane that have a lane's chunk t of a tile: two fours of 8 bits, else one of each plane."""
    L: tl.constexpr = w.layout
    out = ()
    if L.bits == 8:
        for i in tl.static_range(2):
            out = out + (four(w.codes8, row * (L.kp // 16) + tile * 8 + i * 4 + t, None, ASM),)  # noqa: RUF005
    if L.bits >= 4 and L.bits < 8:
        out = out + (four(w.codes4, row * (L.kp // 32) + tile * 4 + t, None, ASM),)  # noqa: RUF005
    if L.bits & 2:
        out = out + (four(w.codes2, row * (L.kp // 64) + tile * 2 + t % 2, None, ASM),)  # noqa: RUF005
    if L.bits & 1:
        out = out + (four(w.codes1, row * (L.kp // 128) + tile, None, ASM),)  # noqa: RUF005
    return out


@triton.jit
def codes_of(unit, U: tl.constexpr, t, P: tl.constexpr, table, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """A lane's 16 codes of half P of tile U of a unit, as bytes in four words; `table` is what they stand for."""
    loaded, words = unit[U], ()
    for i in tl.static_range(4):
        out = loaded[P][i] if LAYOUT.bits == 8 else word_of(loaded, i, t, P, LAYOUT)
        if LAYOUT.table is not None:
            out = look_up(out, table, LAYOUT.bits, ASM, 1)
        words = words + (out,)  # noqa: RUF005
    return words


@triton.jit
def _load_scales(w, row, unit, tiles, ASM: tl.constexpr):
    """What the scales of a row's unit are made from: words of scales, words of minima, and what d and dmin are in."""
    L: tl.constexpr = w.layout
    above = ()
    if L.two_level:
        at = row * (L.kp // 256) + unit
        words = words_at(w.small, at, None, 64 // L.group, ASM)
        minima = words
        above = tl.load(w.scale + row * (L.kp // L.super) + unit // (L.super // 256))
        if L.min_bits == 6:
            minima = words_at(w.rest, at, None, 32 // L.group, ASM)
    else:
        COUNT: tl.constexpr = 32 * L.scale_bytes // L.group * (2 if L.has_zero else 1)
        words, minima = (), ()
        if L.kp % 256 == 0:
            words = words_at(w.scale, row * (L.kp // 256) + unit, None, 2 * COUNT, ASM)
            if L.has_min and not L.has_zero:
                minima = words_at(w.minimum, row * (L.kp // 256) + unit, None, 2 * COUNT, ASM)
        else:
            for i in tl.static_range(2):
                at = row * (L.kp // 128) + tiles[i]
                words = words + words_at(w.scale, at, None, COUNT, ASM)
                if L.has_min and not L.has_zero:
                    minima = minima + words_at(w.minimum, at, None, COUNT, ASM)
    return words, minima, above


@triton.jit
def byte_float(words, INDEX: tl.constexpr, ASM: tl.constexpr):
    """2^23 + byte INDEX of a tuple of int32 words, in float32."""
    if ASM == "ptx":
        PICK: tl.constexpr = "prmt.b32 $0, $1, 0x4B000000, " + ("0x744" + "0123"[INDEX % 4]) + ";"
        bits = tl.inline_asm_elementwise(PICK, "=r,r", [words[INDEX // 4]], dtype=tl.int32, is_pure=True, pack=1)
    else:
        bits = ((words[INDEX // 4] >> (8 * (INDEX % 4))) & 0xFF) | 0x4B000000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def unpacked(loaded, LAYOUT: tl.constexpr):
    """What `load_unit` has of scales, with small scales as unsigned bytes, and d and dmin in float32."""
    words, minima, above = loaded
    d, dmin = (), ()
    if LAYOUT.two_level:
        if LAYOUT.has_min:
            d, dmin = half_pair(above)
        else:
            d = above.to(tl.float32)
            dmin = d
        small = ()
        for i in tl.static_range(len(words)):
            if not LAYOUT.has_min:
                small = small + (words[i] ^ -0x7F7F7F80,)  # noqa: RUF005
            else:
                small = small + (words[i] & (0x3F3F3F3F if LAYOUT.min_bits == 6 else 0x0F0F0F0F),)  # noqa: RUF005
    else:
        small = words
    return small, minima, d, dmin


@triton.jit
def scale_of(scales, INDEX: tl.constexpr, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """Scale and minimum of group INDEX of a unit, of what `unpacked` returns.

    With two levels there is no minimum here; without minima the scale is still to be multiplied by d.
    """
    words, minima, d, _dmin = scales
    if LAYOUT.two_level:
        if not LAYOUT.has_min:
            s = byte_float(words, INDEX, ASM) - 8388736.0
        elif ASM == "ptx":  # fused and so exact
            s = tl.fma(byte_float(words, INDEX, ASM), d, d * -8388608.0)
        else:
            s = (byte_float(words, INDEX, ASM) - 8388608.0) * d
        m = s
    else:
        s, m = scale_and_minimum(words, minima, INDEX, LAYOUT)
    return s, m


@triton.jit
def small_minimum(loaded, WORD: tl.constexpr, t, LAYOUT: tl.constexpr):
    """Minimum t of word WORD of a row's small scales, as an integer in float32."""
    words, rest, _ = loaded
    if LAYOUT.min_bits == 6:
        low = (words[WORD] >> (t * 8 + 6)) & 3
        code = low | ((((rest[WORD // 2] >> (t * 4)) >> (16 * (WORD % 2))) & 15) << 2)
    else:
        code = (words[WORD] >> (t * 8 + 4)) & 15
    return code.to(tl.float32)


@triton.jit
def minimum_at(words, FOUR: tl.constexpr, t, LAYOUT: tl.constexpr):
    """Scale times zero point of group 4 * FOUR + t of a unit, t a lane's, in float32."""
    _, m = scale_and_minimum(words, words, 4 * FOUR, LAYOUT)
    if LAYOUT.scale == "f16":
        shift = t % 2 * 16
        s, _ = half_pair(tl.where(t < 2, words[4 * FOUR], words[4 * FOUR + 2]) >> shift)
        zero, _ = half_pair(tl.where(t < 2, words[4 * FOUR + 1], words[4 * FOUR + 3]) >> shift)
        m = s * (zero - (128.0 if LAYOUT.signed else 0.0))
    else:
        for k in tl.static_range(1, 4):
            _, other = scale_and_minimum(words, words, 4 * FOUR + k, LAYOUT)
            m = tl.where(t == k, other, m)
    return m


@triton.constexpr_function
def number(tile, code, half, group):
    """Which group of a unit code `code` of half a tile is in, as scales are ordered."""
    return 2 * (tile * (64 // group) + code // group) + half


@triton.jit
def load_unit(w, row, unit, t, ASM: tl.constexpr):
    """Codes and scales of 256 values of each row in `row`: the codes of two tiles, and scales."""
    KP: tl.constexpr = w.layout.kp
    UNITS: tl.constexpr = (KP + 128) // 256
    unit = tl.minimum(unit, UNITS - 1)
    second = unit * 2 + 1
    if KP % 256 != 0:
        second = tl.minimum(second, KP // 128 - 1)
    tiles = (unit * 2, second)
    out = ()
    for r in tl.static_range(len(row)):
        codes = (_load_codes(w, row[r], tiles[0], t, ASM), _load_codes(w, row[r], tiles[1], t, ASM))
        out = out + ((codes, _load_scales(w, row[r], unit, tiles, ASM)),)  # noqa: RUF005
    return out
