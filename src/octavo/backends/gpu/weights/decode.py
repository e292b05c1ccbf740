# mypy: ignore-errors
"""Packed weights decoded: codes out of their planes, and scales and minima of groups; `layout` says how they lie.

`codes_of` and `scales_of` give blocks of rows, as Triton distributes them over threads. What else decodes takes from
here what does not depend on who holds a value: `field`, `look_up`, `level`. `mmq_dot` has codes as bytes,
`mmq_mma.decode` what one lane holds, and `w4a16.hopper_kernel` makes float16 of words.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.weights.loads import load_or_zero, two_apart

E4M3_FACTOR = tl.constexpr(2.0**120)


@triton.constexpr_function
def left_of(layout, plane):
    """Where the bits of a plane go in a byte: signed codes fill it from the top, so that it is 2^shift of them."""
    lower = {4: 0, 2: layout.bits & 4, 1: layout.bits & 6}[plane]
    return lower + layout.shift


@triton.jit
def field(word, LEFT: tl.constexpr, WIDTH: tl.constexpr, SKIP: tl.constexpr):
    """In each byte, the WIDTH bits from SKIP on, moved to begin at LEFT."""
    MASK: tl.constexpr = (((1 << WIDTH) - 1) << LEFT) * 0x01010101
    MOVE: tl.constexpr = LEFT - SKIP
    return ((word << MOVE) if MOVE > 0 else (word >> (-MOVE))) & (MASK if MASK < 1 << 31 else MASK - (1 << 32))


@triton.constexpr_function
def _place(layout, plane):
    """Where the plane of 2 bits, or of 1, is among those of a layout below 8 bits."""
    of_four = layout.bits // 4
    return of_four if plane == 2 else of_four + (layout.bits & 2) // 2


@triton.jit
def word_of(planes, i: tl.constexpr, t, P: tl.constexpr, LAYOUT: tl.constexpr):
    """Four codes of less than 8 bits as bytes: word i of half P of a tile's chunk t, four words of each plane."""
    if LAYOUT.bits >= 4:
        out = field(planes[0][i], left_of(LAYOUT, 4), 4, 4 * P)
    if LAYOUT.bits & 2:
        two = field(planes[_place(LAYOUT, 2)][i] >> (t // 2 * 4), left_of(LAYOUT, 2), 2, 2 * P)
        out = (out | two) if LAYOUT.bits >= 4 else two
    if LAYOUT.bits & 1:
        one = field(planes[_place(LAYOUT, 1)][i] >> (t * 2), left_of(LAYOUT, 1), 1, P)
        out = (out | one) if LAYOUT.bits > 1 else one
    return out


@triton.constexpr_function
def _table_ptx(bits, pack):
    """PTX that looks up four bytes, and its constraints; with `pack` 4 each word of the table is given four times."""
    a, b, c, d = (f"${2 + i * pack}" for i in range(4))
    code = "{ .reg .b32 s, t, u, v, m; shr.u32 s, $1, 4; or.b32 s, s, $1; prmt.b32 s, s, 0, 0x4420; "
    if bits < 4:  # the codes are a permutation's selectors
        code += f"prmt.b32 $0, {a}, {b}, s; }}"
    else:
        code += f"""and.b32 t, s, 0x7777; prmt.b32 u, {a}, {b}, t; prmt.b32 v, {c}, {d}, t;
        shl.b32 m, $1, 4; prmt.b32 m, m, 0, 0xBA98; lop3.b32 $0, m, v, u, 0xCA; }}"""
    return code, "=r" + ",r" * (1 + 4 * pack)


@triton.jit
def look_up(word, table, BITS: tl.constexpr, ASM: tl.constexpr, PACK: tl.constexpr):
    """Codes of up to four BITS -> signed bytes of a table of 16, four int32 `table`; the codes are the bytes of int32
    words (PACK 1), or int8 (PACK 4)."""
    if ASM == "ptx":
        PTX: tl.constexpr = _table_ptx(BITS, PACK)
        out = tl.inline_asm_elementwise(
            PTX[0], PTX[1], [word, table[0], table[1], table[2], table[3]], dtype=word.dtype, is_pure=True, pack=PACK
        )
    else:
        out = tl.zeros_like(word)
        for i in tl.static_range(4 if PACK == 1 else 1):
            code = (word >> (8 * i)).to(tl.int32) & 15
            quarter = code >> 2
            chosen = tl.where(quarter == 0, table[0], tl.where(quarter == 1, table[1], table[2]))
            chosen = tl.where(quarter == 3, table[3], chosen)
            out |= (((chosen >> ((code & 3) * 8)) & 0xFF) << (8 * i)).to(word.dtype)
    return out


_PAIRS_PTX = tl.constexpr("""{ .reg .b32 s, t, u, v, p, q;
and.b32 s, $2, 0x77777777; shr.u32 t, $2, 1; lop3.b32 t, t, 0x44444444, 0x32103210, 0xEA;
prmt.b32 u, $3, $4, s; prmt.b32 v, $5, $6, s; prmt.b32 p, u, v, t;
shr.u32 s, s, 16; shr.u32 t, t, 16;
prmt.b32 u, $3, $4, s; prmt.b32 v, $5, $6, s; prmt.b32 q, u, v, t;
prmt.b32 $0, p, q, 0x6420; prmt.b32 $1, p, q, 0x7531; }""")


@triton.jit
def look_up_pairs(word, table, ASM: tl.constexpr):
    """`look_up` of the lower halves of an int32 word's bytes, and of the upper ones."""
    if ASM == "ptx":
        low, high = tl.inline_asm_elementwise(
            _PAIRS_PTX, "=r,=r,r,r,r,r,r", [word, table[0], table[1], table[2], table[3]],
            dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
        )
    else:
        low = look_up(word & 0x0F0F0F0F, table, 4, ASM, 1)
        high = look_up((word >> 4) & 0x0F0F0F0F, table, 4, ASM, 1)
    return low, high


@triton.jit
def codes_of(w, row, word, mask, ASM: tl.constexpr):
    """Two words of four codes each: low and high codes 4 * (word % 16) and on of tile word // 16 of `row`.

    Codes are bytes, signed ones times 2^shift; of a layout with a table they are what it says. Planes are int32.
    """
    L: tl.constexpr = w.layout
    tile, rest = word // 16, word % 16
    if L.bits == 8:
        place = row * (L.kp // 4) + tile * 32 + rest
        low = load_or_zero(w.codes8 + place, mask)
        high = load_or_zero(w.codes8 + place + 16, mask)
    if L.bits >= 4 and L.bits < 8:
        both = load_or_zero(w.codes4 + row * (L.kp // 8) + word, mask)
        if L.table is not None:
            low, high = look_up_pairs(both, w.table, ASM)
        else:
            low, high = field(both, left_of(L, 4), 4, 0), field(both, left_of(L, 4), 4, 4)
    if L.bits & 2:
        at = tl.multiple_of(tl.max_contiguous(row * (L.kp // 16) + (tile * 8 + rest % 8), [1, 4]), [1, 4])
        two = load_or_zero(w.codes2 + at, mask) >> ((rest // 8) * 4)
        low2, high2 = field(two, left_of(L, 2), 2, 0), field(two, left_of(L, 2), 2, 2)
        low, high = (low | low2, high | high2) if L.bits >= 4 else (low2, high2)
    if L.bits & 1:
        at = tl.multiple_of(tl.max_contiguous(row * (L.kp // 32) + (tile * 4 + rest % 4), [1, 4]), [1, 4])
        one = load_or_zero(w.codes1 + at, mask) >> ((rest // 4) * 2)
        low1, high1 = field(one, left_of(L, 1), 1, 0), field(one, left_of(L, 1), 1, 1)
        low, high = (low | low1, high | high1) if L.bits > 1 else (low1, high1)
    if L.table is not None and L.bits < 4:
        low, high = look_up(low, w.table, L.bits, ASM, 1), look_up(high, w.table, L.bits, ASM, 1)
    return low, high


@triton.jit
def half_pair(pair):
    """An int32 as two float16, the low half first, in float32."""
    low = pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def byte_of(words, INDEX: tl.constexpr):
    """Byte INDEX of a tuple of int32 words, unsigned, as int32."""
    return (words[INDEX // 4] >> (8 * (INDEX % 4))) & 0xFF


@triton.jit
def level(words, INDEX: tl.constexpr, KIND: tl.constexpr):
    """Floating scale INDEX of a tuple of int32 words of scales of this kind, in float32."""
    if KIND == "f16":
        value = (words[INDEX // 2] >> (16 * (INDEX % 2))).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == "f32":
        value = words[INDEX].to(tl.float32, bitcast=True)
    else:
        value = (byte_of(words, INDEX) << 23).to(tl.float32, bitcast=True)
    return value


@triton.jit
def scale_and_minimum(words, minima, INDEX: tl.constexpr, LAYOUT: tl.constexpr):
    """Scale and minimum INDEX of one level, in float32, of words that hold them; without minima ignore the latter."""
    if LAYOUT.has_zero:
        s = level(words, INDEX // 2 * 4 + INDEX % 2, LAYOUT.scale)
        m = s * level(words, INDEX // 2 * 4 + INDEX % 2 + 2, LAYOUT.scale)
    else:
        s = level(words, INDEX, LAYOUT.scale)
        m = level(minima, INDEX, LAYOUT.scale) if LAYOUT.has_min else s
    if LAYOUT.has_min and LAYOUT.signed:
        m -= 128.0 * s
    return s, m


@triton.jit
def _pair_of_levels(scale, at, mask, KIND: tl.constexpr):
    """The pair of floating scales at pair `at`, in float32."""
    if KIND == "f16":
        low, high = half_pair(load_or_zero(scale + at, mask))
    elif KIND == "exponent":
        pair = load_or_zero(scale + at, mask).to(tl.int32)
        low = ((pair & 0xFF) << 23).to(tl.float32, bitcast=True)
        high = ((pair & 0xFF00) << 15).to(tl.float32, bitcast=True)
    else:
        low = load_or_zero(scale + 2 * at, mask)
        high = load_or_zero(scale + 2 * at + 1, mask)
    return low, high


@triton.jit
def scales_and_zeros_of(w, row, chunk, mask, ASM: tl.constexpr):
    """(scale, scale, zero point, zero point) in float32 for the low and high 16 codes of `chunk` of rows `row`."""
    L: tl.constexpr = w.layout
    at = tl.multiple_of(tl.max_contiguous(row * (L.kp // (2 * L.group)) + chunk * 16 // L.group, [1, 2]), [1, 1])
    if L.scale == "f16":
        scales, zeros = two_apart(w.scale, at, mask, ASM)
        low, high = half_pair(scales)
        low_zero, high_zero = half_pair(zeros)
    else:
        low, high = load_or_zero(w.scale + 4 * at, mask), load_or_zero(w.scale + 4 * at + 1, mask)
        low_zero, high_zero = load_or_zero(w.scale + 4 * at + 2, mask), load_or_zero(w.scale + 4 * at + 3, mask)
    return low, high, low_zero, high_zero


@triton.jit
def scales_of(w, row, chunk, mask):
    """(scale, scale, minimum, minimum) in float32 for the low and high 16 codes of `chunk` of rows `row`.

    Chunk c is the 16 codes from 16 * (c % 4) on of each half of tile c // 4. Without minima ignore the latter two.
    """
    L: tl.constexpr = w.layout
    # Hints that say less than is true: a thread loads one pair, its neighbour the next, as it is with the codes.
    pairs = L.kp // (2 * L.group)
    at = tl.multiple_of(tl.max_contiguous(row * pairs + chunk * 16 // L.group, [1, 2]), [1, 1])
    if L.two_level:
        both = load_or_zero(w.small + at, mask).to(tl.int32)
        super_at = row * (L.kp // L.super) + chunk * 32 // L.super
        super_at = tl.multiple_of(tl.max_contiguous(super_at, [1, 2]), [1, 1])
        if L.has_min:
            d, dmin = half_pair(load_or_zero(w.scale + super_at, mask))
            if L.min_bits == 4:
                low, high = both & 15, (both >> 8) & 15
                low_m, high_m = (both >> 4) & 15, (both >> 12) & 15
            else:
                upper = load_or_zero(w.rest + at, mask).to(tl.int32)
                low, high = both & 63, (both >> 8) & 63
                low_m = ((both >> 6) & 3) | ((upper & 15) << 2)
                high_m = ((both >> 14) & 3) | ((upper & 0xF0) >> 2)
            low_min, high_min = dmin * low_m.to(tl.float32), dmin * high_m.to(tl.float32)
        else:
            d = load_or_zero(w.scale + super_at, mask).to(tl.float32)
            low, high = (both << 24) >> 24, (both << 16) >> 24
        low_scale, high_scale = d * low.to(tl.float32), d * high.to(tl.float32)
    else:
        if L.has_zero:
            low_scale, high_scale, low_min, high_min = scales_and_zeros_of(w, row, chunk, mask, "none")
            low_min, high_min = low_scale * low_min, high_scale * high_min
        else:
            low_scale, high_scale = _pair_of_levels(w.scale, at, mask, L.scale)
        if L.has_min and not L.has_zero:
            low_min, high_min = _pair_of_levels(w.minimum, at, mask, L.scale)
        if L.has_min and L.signed:
            low_min, high_min = low_min - 128.0 * low_scale, high_min - 128.0 * high_scale
    if not L.has_min:
        low_min, high_min = low_scale, high_scale
    return low_scale, high_scale, low_min, high_min


@triton.jit
def e4m3_bits(word, i: tl.constexpr):
    """Byte i of int32 words, an e4m3 number that is not NaN, over E4M3_FACTOR in float32: its bits, moved."""
    return (((word << (24 - 8 * i)) >> 4) & -0x78100000).to(tl.float32, bitcast=True)


@triton.jit
def values_of(word, scale, minimum, LAYOUT: tl.constexpr):
    """Words [BLOCK_N, 4 C] of four codes, scales and minima [BLOCK_N, C] -> float32 [BLOCK_N, 16 C]."""
    N: tl.constexpr = scale.shape[0]
    C: tl.constexpr = scale.shape[1]
    scale = tl.reshape(tl.broadcast_to(scale[:, :, None], (N, C, 4)), (N, C * 4))
    if LAYOUT.has_min:
        minimum = tl.reshape(tl.broadcast_to(minimum[:, :, None], (N, C, 4)), (N, C * 4))
    scale *= LAYOUT.step
    parts = ()
    for i in tl.static_range(4):
        if LAYOUT.float8:
            code = e4m3_bits(word, i) * E4M3_FACTOR
        elif LAYOUT.signed or LAYOUT.table is not None:
            code = (word << (24 - 8 * i)) >> (24 + LAYOUT.shift)
        else:
            code = (word >> (8 * i)) & 0xFF
        value = (code.to(tl.float32) - LAYOUT.offset) * scale
        if LAYOUT.has_min:
            value -= minimum
        parts = parts + (value,)  # noqa: RUF005
    both = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))
    return tl.reshape(both, (N, C * 16))
