"""Products with some tokens: int8 in the matrix units, a scale for each group of codes.

The warps of a program share its rows and divide K among them: they are the batch of a batched dot, and are summed at
the end. So weights are read once, by as many warps as reading needs, whatever the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.codes import MAGIC, MAGIC_FLOAT, load_or_zero, look_up, scales


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
        return tl.inline_asm_elementwise(
            _shift_and_mask(RIGHT, LEFT, WIDTH), "=r,r", [byte], dtype=tl.int8, is_pure=True, pack=4
        )
    return ((byte >> RIGHT) & ((1 << WIDTH) - 1)) << LEFT


@triton.jit
def _codes(
    codes8, codes4, codes2, codes1, row, tile, k, mask, table, H: tl.constexpr, kp,
    BITS: tl.constexpr, TABLE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """int8 [B, BN, 32], low and high: pairs 32 H and on of the tiles."""
    if BITS == 8:
        at = codes8 + row * kp + tile * 128 + H * 32 + k
        return load_or_zero(at, mask), load_or_zero(at + 64, mask)
    if BITS >= 4:
        both = load_or_zero(codes4 + row * (kp // 2) + tile * 64 + H * 32 + k, mask)
        low, high = _bits(both, 0, 0, 4, ASM), _bits(both, 4, 0, 4, ASM)
    if BITS & 2:
        two = load_or_zero(codes2 + row * (kp // 4) + tile * 32 + k, mask)
        LEFT2: tl.constexpr = 4 if BITS == 6 else 0
        low2, high2 = _bits(two, 4 * H, LEFT2, 2, ASM), _bits(two, 4 * H + 2, LEFT2, 2, ASM)
        if BITS == 6:
            low, high = low | low2, high | high2
        else:
            low, high = low2, high2
    if BITS & 1:
        one = load_or_zero(codes1 + row * (kp // 8) + tile * 16 + k % 16, mask) >> (4 * H + 2 * (k // 16)).to(tl.int8)
        if BITS == 1:
            low, high = one & 1, (one >> 1) & 1
        else:
            low, high = low | ((one & 1) << (BITS - 1)), high | (((one >> 1) & 1) << (BITS - 1))
    if TABLE:
        low, high = look_up(low, table, ASM, 4), look_up(high, table, ASM, 4)
    return low, high


@triton.jit
def _scaled(d, dx, sx, s, m, HAS_MIN: tl.constexpr, OFFSET: tl.constexpr):
    """[B, BN, T]: (d * dx - OFFSET * sx) * s - m * sx, with dx and sx [B, T], s and m [B, BN]."""
    value = (d.to(tl.float32, bitcast=True) - MAGIC_FLOAT) * dx[:, None, :]
    if OFFSET:
        value -= OFFSET * sx[:, None, :]
    value *= s[:, :, None]
    if HAS_MIN:
        value -= m[:, :, None] * sx[:, None, :]
    return value


@triton.jit
def few_kernel(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, table0, table1, table2, table3,
    xq, xd, xs, xs16, term0, term1, y, n, n_tokens, tp, y_stride, stride0, stride1,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    T: tl.constexpr, TERMS: tl.constexpr, B: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
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
    for i in tl.range(0, tl.cdiv(TILES, B), num_stages=STAGES):
        tile = i * B + tl.arange(0, B)
        mask = None if TILES % B == 0 else tile < TILES
        mask2 = None if TILES % B == 0 else mask[:, None]
        mask3 = None if TILES % B == 0 else mask[:, None, None]
        for h in tl.static_range(2):
            codes = _codes(codes8, codes4, codes2, codes1, row[None, :, None], tile[:, None, None], k[None, None, :],
                           mask3, table, h, kp, BITS, TABLE, ASM)  # fmt: skip
            parts = scales(scale, minimum, small, rest, row[None, :], tile[:, None] * 4 + 2 * h, kp, mask2,
                           G, S, KIND, HAS_MIN, MIN_BITS)  # fmt: skip
            if G == 16:
                more = scales(scale, minimum, small, rest, row[None, :], tile[:, None] * 4 + 2 * h + 1, kp, mask2,
                              G, S, KIND, HAS_MIN, MIN_BITS)  # fmt: skip
            for p in tl.static_range(2):
                x = load_or_zero(xq + x_row + tile[:, None, None] * 128 + p * 64 + h * 32 + k[None, :, None], mask3)
                group = tile[:, None] * 4 + 2 * p + h
                dx = load_or_zero(xd + group * tp + token[None, :], mask2)
                if G == 16:
                    first = tl.where(k[None, :, None] < 16, x, 0)
                    second = tl.where(k[None, :, None] < 16, 0, x)
                    s0, s1 = xs16 + 2 * group * tp + token[None, :], xs16 + (2 * group + 1) * tp + token[None, :]
                    d0 = tl.dot(codes[p], first, start, out_dtype=tl.int32)
                    acc += _scaled(d0, dx, load_or_zero(s0, mask2), parts[p], parts[2 + p], HAS_MIN, OFFSET)
                    d1 = tl.dot(codes[p], second, start, out_dtype=tl.int32)
                    acc += _scaled(d1, dx, load_or_zero(s1, mask2), more[p], more[2 + p], HAS_MIN, OFFSET)
                else:
                    sx = dx
                    if OFFSET or HAS_MIN:
                        sx = load_or_zero(xs + group * tp + token[None, :], mask2)
                    d = tl.dot(codes[p], x, start, out_dtype=tl.int32)
                    acc += _scaled(d, dx, sx, parts[p], parts[2 + p], HAS_MIN, OFFSET)
    out = tl.sum(acc, 0)  # [BN, T]
    inside = (at[:, None] < n) & (token[None, :] < n_tokens)
    where = token[None, :].to(tl.int64)
    if TERMS > 0:
        out += tl.load(term0 + where * stride0 + at[:, None], mask=inside, other=0.0)
    if TERMS > 1:
        out += tl.load(term1 + where * stride1 + at[:, None], mask=inside, other=0.0)
    tl.store(y + where * y_stride + at[:, None], out, mask=inside)
