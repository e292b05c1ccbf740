"""What products share: dot products of four bytes, codes out of their planes, scales of a pair of groups.

ASM says which instructions there are: "ptx", "gcn", or "none" for the plain twin, which is what the interpreter runs.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAGIC = tl.constexpr(
    0x4B400000
)  # the bits of 1.5 * 2^23: an integer below 2^22 added to them is one added to the float
MAGIC_FLOAT = tl.constexpr(12582912.0)


@triton.jit
def load_or_zero(pointer, mask):
    """What lies at `pointer`, 0 where `mask` is false; a mask of None is true everywhere."""
    if mask is None:
        value = tl.load(pointer)
    else:
        value = tl.load(pointer, mask=mask, other=0)
    return value


@triton.jit
def scaled(total, d, less):
    """total * d in float32, of an integer that was counted from MAGIC on; `less` is -MAGIC_FLOAT * d.

    That product is exact for the scales of `activations`, which have 22 bits; so one fused operation is all it takes.
    """
    return tl.fma(total.to(tl.float32, bitcast=True), d, less)


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


@triton.constexpr_function
def left_of(bits, signed, plane):
    """Where the bits of a plane go in a byte: signed codes fill it from the top, so that it is 2^(8 - bits) of them."""
    lower = {4: 0, 2: bits & 4, 1: bits & 6}[plane]
    return lower + (8 - bits if signed else 0)


@triton.jit
def field(word, LEFT: tl.constexpr, WIDTH: tl.constexpr, SKIP: tl.constexpr):
    """In each byte, the WIDTH bits from SKIP on, moved to begin at LEFT."""
    MASK: tl.constexpr = (((1 << WIDTH) - 1) << LEFT) * 0x01010101
    MOVE: tl.constexpr = LEFT - SKIP
    return ((word << MOVE) if MOVE > 0 else (word >> (-MOVE))) & (MASK if MASK < 1 << 31 else MASK - (1 << 32))


@triton.jit
def low_and_high(
    codes8, codes4, codes2, codes1, row, word, mask, kp, BITS: tl.constexpr, SIGNED: tl.constexpr
):  # fmt: skip
    """Two words of four codes each: low and high codes 4 * (word % 16) and on of tile word // 16 of `row`.

    The planes are int32; see `layout`. Signed codes are times 2^(8 - BITS).
    """
    tile, rest = word // 16, word % 16
    if BITS == 8:
        place = row * (kp // 4) + tile * 32 + rest
        low = load_or_zero(codes8 + place, mask)
        high = load_or_zero(codes8 + place + 16, mask)
    if BITS >= 4 and BITS < 8:
        both = load_or_zero(codes4 + row * (kp // 8) + word, mask)
        low = field(both, left_of(BITS, SIGNED, 4), 4, 0)
        high = field(both, left_of(BITS, SIGNED, 4), 4, 4)
    if BITS & 2:
        at = tl.multiple_of(tl.max_contiguous(row * (kp // 16) + (tile * 8 + rest % 8), [1, 4]), [1, 4])
        two = load_or_zero(codes2 + at, mask) >> ((rest // 8) * 4)
        low2, high2 = field(two, left_of(BITS, SIGNED, 2), 2, 0), field(two, left_of(BITS, SIGNED, 2), 2, 2)
        low, high = (low | low2, high | high2) if BITS >= 4 else (low2, high2)
    if BITS & 1:
        at = tl.multiple_of(tl.max_contiguous(row * (kp // 32) + (tile * 4 + rest % 4), [1, 4]), [1, 4])
        one = load_or_zero(codes1 + at, mask) >> ((rest // 4) * 2)
        low1, high1 = field(one, left_of(BITS, SIGNED, 1), 1, 0), field(one, left_of(BITS, SIGNED, 1), 1, 1)
        low, high = (low | low1, high | high1) if BITS > 1 else (low1, high1)
    return low, high


@triton.constexpr_function
def _table_ptx(pack):
    """PTX that looks up four bytes, and its constraints; with `pack` 4 each word of the table is given four times."""
    a, b, c, d = (f"${2 + i * pack}" for i in range(4))
    code = f"""{{ .reg .b32 s, t, u, v, m;
    shr.u32 s, $1, 4; or.b32 s, s, $1; prmt.b32 s, s, 0, 0x4420; and.b32 t, s, 0x7777;
    prmt.b32 u, {a}, {b}, t; prmt.b32 v, {c}, {d}, t;
    shl.b32 m, $1, 4; prmt.b32 m, m, 0, 0xBA98;
    lop3.b32 $0, m, v, u, 0xCA; }}"""
    return code, "=r" + ",r" * (1 + 4 * pack)


@triton.jit
def look_up(word, table, ASM: tl.constexpr, PACK: tl.constexpr):
    """Codes of four bits -> signed bytes of a table of 16, four int32 `table`; the codes are the bytes of int32 words
    (PACK 1), or int8 (PACK 4)."""
    if ASM == "ptx":
        PTX: tl.constexpr = _table_ptx(PACK)
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


@triton.jit
def half_pair(pair):
    """An int32 as two float16, the low half first, in float32."""
    low = pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _floats(scale, at, mask, KIND: tl.constexpr):
    """The pair of scales at pair `at`; `scale` points to pairs as int32 (f16), to bytes (exponents) or to float32."""
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
def scales(
    scale, minimum, small, rest, row, chunk, kp, mask,
    G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr, HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr,
):  # fmt: skip
    """(scale, scale, minimum, minimum) in float32 for the low and high 16 codes of `chunk` of rows `row`.

    Chunk c is the 16 codes from 16 * (c % 4) on of each half of tile c // 4; minima that there are none of are not
    to be used.
    """
    # Hints that say less than is true: a thread loads one pair, its neighbour the next, as it is with the codes.
    pairs = kp // (2 * G)
    at = tl.multiple_of(tl.max_contiguous(row * pairs + chunk * 16 // G, [1, 2]), [1, 1])
    if S > G:
        both = load_or_zero(small + at, mask).to(tl.int32)
        super_at = tl.multiple_of(tl.max_contiguous(row * (kp // S) + chunk * 32 // S, [1, 2]), [1, 1])
        if HAS_MIN:
            d, dmin = half_pair(load_or_zero(scale + super_at, mask))
            if MIN_BITS == 4:
                low, high = both & 15, (both >> 8) & 15
                low_m, high_m = (both >> 4) & 15, (both >> 12) & 15
            else:
                upper = load_or_zero(rest + at, mask).to(tl.int32)
                low, high = both & 63, (both >> 8) & 63
                low_m = ((both >> 6) & 3) | ((upper & 15) << 2)
                high_m = ((both >> 14) & 3) | ((upper & 0xF0) >> 2)
            low_min, high_min = dmin * low_m.to(tl.float32), dmin * high_m.to(tl.float32)
        else:
            d = load_or_zero(scale + super_at, mask).to(tl.float32)
            low, high = (both << 24) >> 24, (both << 16) >> 24
        low_scale, high_scale = d * low.to(tl.float32), d * high.to(tl.float32)
    else:
        low_scale, high_scale = _floats(scale, at, mask, KIND)
        if HAS_MIN:
            low_min, high_min = _floats(minimum, at, mask, KIND)
    if not HAS_MIN:
        low_min, high_min = low_scale, high_scale
    return low_scale, high_scale, low_min, high_min
