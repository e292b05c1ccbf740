"""Products with some tokens: int8 in the matrix units, a scale for each group of codes.

The warps of a program share its rows and divide K among them: they are the batch of a batched dot, and are summed at
the end. Programs may share rows likewise: each leaves its sums in memory, and the last one to finish adds them up. So
weights are read once, by as many warps as reading needs, whatever the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.codes import MAGIC, MAGIC_FLOAT, half_pair, left_of, load_or_zero, look_up, scaled


@triton.constexpr_function
def _shift_and_mask(right, left, width):
    """PTX for four bytes at once: bits from `right` on, `width` of them, moved to `left`."""
    mask = (((1 << width) - 1) << left) * 0x01010101
    move = f"shr.u32 s, $1, {right - left};" if right >= left else f"shl.b32 s, $1, {left - right};"
    return f"{{ .reg .b32 s; {move} and.b32 $0, s, {mask:#x}; }}"


@triton.jit
def _bits(byte, RIGHT: tl.constexpr, LEFT: tl.constexpr, WIDTH: tl.constexpr, ASM: tl.constexpr):
    """((byte >> RIGHT) & mask of WIDTH bits) << LEFT of each byte."""
    if ASM == "ptx":
        out = tl.inline_asm_elementwise(
            _shift_and_mask(RIGHT, LEFT, WIDTH), "=r,r", [byte], dtype=tl.int8, is_pure=True, pack=4
        )
    else:
        out = ((byte >> RIGHT) & ((1 << WIDTH) - 1)) << LEFT
    return out


@triton.jit
def _codes(
    codes8, codes4, codes2, codes1, row, tile, k, mask, table, H: tl.constexpr, kp,
    BITS: tl.constexpr, SIGNED: tl.constexpr, TABLE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """int8 [B, BN, 32], low and high: pairs 32 H and on of the tiles."""
    if BITS == 8:
        at = codes8 + row * kp + tile * 128 + H * 32 + k
        low, high = load_or_zero(at, mask), load_or_zero(at + 64, mask)
    if BITS >= 4 and BITS < 8:
        both = load_or_zero(codes4 + row * (kp // 2) + tile * 64 + H * 32 + k, mask)
        low = _bits(both, 0, left_of(BITS, SIGNED, 4), 4, ASM)
        high = _bits(both, 4, left_of(BITS, SIGNED, 4), 4, ASM)
    if BITS & 2:
        two = load_or_zero(codes2 + row * (kp // 4) + tile * 32 + k, mask)
        low2 = _bits(two, 4 * H, left_of(BITS, SIGNED, 2), 2, ASM)
        high2 = _bits(two, 4 * H + 2, left_of(BITS, SIGNED, 2), 2, ASM)
        low, high = (low | low2, high | high2) if BITS >= 4 else (low2, high2)
    if BITS & 1:
        one = load_or_zero(codes1 + row * (kp // 8) + tile * 16 + k % 16, mask) >> (4 * H + 2 * (k // 16)).to(tl.int8)
        low1 = _bits(one, 0, left_of(BITS, SIGNED, 1), 1, ASM)
        high1 = _bits(one, 1, left_of(BITS, SIGNED, 1), 1, ASM)
        low, high = (low | low1, high | high1) if BITS > 1 else (low1, high1)
    if TABLE:
        low, high = look_up(low, table, ASM, 4), look_up(high, table, ASM, 4)
    return low, high


@triton.jit
def _byte(words, index: tl.constexpr):
    """Byte `index` of a tuple of int32 words, unsigned, as int32."""
    return (words[index // 4] >> (8 * (index % 4))) & 0xFF


@triton.jit
def _half(words, index: tl.constexpr):
    """float16 `index` of a tuple of int32 words, as float32."""
    return (words[index // 2] >> (16 * (index % 2))).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _words(pointer, at, mask, COUNT: tl.constexpr):
    """COUNT int32 words (1, 2 or 4) from place `at`, counted in as many."""
    if COUNT == 1:
        words = (load_or_zero(pointer.to(tl.pointer_type(tl.int32)) + at, mask),)
    else:
        doubles = pointer.to(tl.pointer_type(tl.int64))
        first = load_or_zero(doubles + at * (COUNT // 2), mask)
        words = (first.to(tl.int32), (first >> 32).to(tl.int32))
        if COUNT == 4:
            second = load_or_zero(doubles + at * 2 + 1, mask)
            words = (words[0], words[1], second.to(tl.int32), (second >> 32).to(tl.int32))
    return words


@triton.jit
def _tile_scales(
    scale, minimum, small, rest, row, tile, mask, kp,
    G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr, HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr,
):  # fmt: skip
    """What the scales of a tile of rows are made from, in few loads: (words, words of minima, d, dmin)."""
    at = row * (kp // 128) + tile
    if S > G:
        words = _words(small, at, mask, 32 // G)
        minima = words
        above = row * (kp // S) + tile // (S // 128)
        if HAS_MIN:
            d, dmin = half_pair(load_or_zero(scale + above, mask))
            if MIN_BITS == 6:
                minima = load_or_zero(rest.to(tl.pointer_type(tl.int16)) + at, mask).to(tl.int32)
        else:
            d = load_or_zero(scale + above, mask).to(tl.float32)
            dmin = d
    else:
        d, dmin = at, at
        COUNT: tl.constexpr = 128 // G * (2 if KIND == "f16" else 1) // 4
        words = _words(scale, at, mask, COUNT)
        minima = words
        if HAS_MIN:
            minima = _words(minimum, at, mask, COUNT)
    return words, minima, d, dmin


@triton.constexpr_function
def _number(h, second, group):
    """Which group of a tile's half the codes from 32 h (16 more with `second`) on belong to."""
    return (32 * h + 16 * second) // group


@triton.jit
def _group(
    parts, J: tl.constexpr, P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr,
):  # fmt: skip
    """Scale and minimum, float32, of group J of the low (P 0) or high (P 1) half of a tile."""
    words, minima, d, dmin = parts
    INDEX: tl.constexpr = 2 * J + P
    if S > G:
        code = _byte(words, INDEX)
        if HAS_MIN:
            if MIN_BITS == 6:
                m = (code >> 6) | (((minima >> (8 * J + 4 * P)) & 15) << 2)
                code = code & 63
            else:
                m = code >> 4
                code = code & 15
            m = dmin * m.to(tl.float32)
        else:
            code = (code << 24) >> 24
        s = d * code.to(tl.float32)
    elif KIND == "f16":
        s = _half(words, INDEX)
        if HAS_MIN:
            m = _half(minima, INDEX)
    else:
        s = (_byte(words, INDEX) << 23).to(tl.float32, bitcast=True)
    if not HAS_MIN:
        m = s
    return s, m


@triton.jit
def _add(acc, total, dx, less, sx, s, m, HAS_MIN: tl.constexpr, OFFSET: tl.constexpr):
    """acc [B, BN, T] + (total * dx - OFFSET * sx) * s - m * sx, with dx and sx [B, T], s and m [B, BN]."""
    acc = tl.fma(scaled(total, dx[:, None, :], less[:, None, :]), s[:, :, None], acc)
    if HAS_MIN or OFFSET:
        below = m if HAS_MIN else s * OFFSET
        acc = tl.fma(-below[:, :, None], sx[:, None, :], acc)
    return acc


@triton.jit
def mmq_dot_kernel(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, table0, table1, table2, table3,
    xq, xd, xs, xs16, term0, term1, y, shares, finished, n, n_tokens, y_stride, stride0, stride1,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, SIGNED: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    T: tl.constexpr, TP: tl.constexpr, TERMS: tl.constexpr, B: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y f32 [n_tokens, N] = x W^T + terms, T tokens and BN rows a program; codes and xq are int8 here."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(at, n - 1).to(tl.int64)
    token = tl.program_id(1) * T + tl.arange(0, T)
    x_row = tl.minimum(token, n_tokens - 1)[None, None, :] * kp
    table = (table0, table1, table2, table3)
    k = tl.arange(0, 32)
    start = tl.full((B, BN, T), MAGIC, tl.int32)
    acc = tl.zeros((B, BN, T), tl.float32)
    TILES: tl.constexpr = kp // 128
    split = tl.program_id(2)
    for i in tl.range(0, tl.cdiv(TILES, B * SPLITS), num_stages=STAGES):
        tile = (i * SPLITS + split) * B + tl.arange(0, B)
        mask = None if TILES % (B * SPLITS) == 0 else tile < TILES
        mask2 = None if TILES % (B * SPLITS) == 0 else mask[:, None]
        mask3 = None if TILES % (B * SPLITS) == 0 else mask[:, None, None]
        parts = _tile_scales(scale, minimum, small, rest, row[None, :], tile[:, None], mask2, kp,
                             G, S, KIND, HAS_MIN, MIN_BITS)  # fmt: skip
        for h in tl.static_range(2):
            codes = _codes(codes8, codes4, codes2, codes1, row[None, :, None], tile[:, None, None], k[None, None, :],
                           mask3, table, h, kp, BITS, SIGNED, TABLE, ASM)  # fmt: skip
            for p in tl.static_range(2):
                x = load_or_zero(xq + x_row + tile[:, None, None] * 128 + p * 64 + h * 32 + k[None, :, None], mask3)
                group = tile[:, None] * 4 + 2 * p + h
                dx = load_or_zero(xd + group * TP + token[None, :], mask2)
                less = dx * -MAGIC_FLOAT
                s, m = _group(parts, _number(h, 0, G), p, G, S, KIND, HAS_MIN, MIN_BITS)
                if G == 16:
                    first = tl.where(k[None, :, None] < 16, x, 0)
                    second = tl.where(k[None, :, None] < 16, 0, x)
                    s0, s1 = xs16 + 2 * group * TP + token[None, :], xs16 + (2 * group + 1) * TP + token[None, :]
                    d0 = tl.dot(codes[p], first, start, out_dtype=tl.int32)
                    acc = _add(acc, d0, dx, less, load_or_zero(s0, mask2), s, m, HAS_MIN, OFFSET)
                    s, m = _group(parts, _number(h, 1, G), p, G, S, KIND, HAS_MIN, MIN_BITS)
                    d1 = tl.dot(codes[p], second, start, out_dtype=tl.int32)
                    acc = _add(acc, d1, dx, less, load_or_zero(s1, mask2), s, m, HAS_MIN, OFFSET)
                else:
                    sx = dx
                    if OFFSET or HAS_MIN:
                        sx = load_or_zero(xs + group * TP + token[None, :], mask2)
                    d = tl.dot(codes[p], x, start, out_dtype=tl.int32)
                    acc = _add(acc, d, dx, less, sx, s, m, HAS_MIN, OFFSET)
    out = tl.sum(acc, 0)  # [BN, T]
    if SIGNED:
        out *= 1.0 / (1 << (8 - BITS))
    inside = (at[:, None] < n) & (token[None, :] < n_tokens)
    where = token[None, :].to(tl.int64)
    last = True
    if SPLITS > 1:
        share = shares + where * n + at[:, None]
        size = (tl.num_programs(1) * T).to(tl.int64) * n  # of all tokens' sums of a split
        tl.store(share + split * size, out, mask=at[:, None] < n)
        tl.debug_barrier()
        counter = finished + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1
        if last:
            out = tl.zeros((BN, T), tl.float32)
            for other in tl.static_range(SPLITS):
                out += tl.load(share + other * size, mask=at[:, None] < n, other=0.0, cache_modifier=".cg")
            tl.store(counter, 0)
    if last:
        if TERMS > 0:
            out += tl.load(term0 + where * stride0 + at[:, None], mask=inside, other=0.0)
        if TERMS > 1:
            out += tl.load(term1 + where * stride1 + at[:, None], mask=inside, other=0.0)
        tl.store(y + where * y_stride + at[:, None], out, mask=inside)
