# mypy: ignore-errors
"""Products with some tokens: int8 in tensor cores, a scale for each group of codes, as Triton lays out operands.

Algorithm: llama.cpp's MMQ, with warps that divide K instead of rows, and split-K.
Tile:
    W   block_n rows     | warp 0 | warp 1 | ... | warp 0 | ...    tiles of 128 of K, in turn
    x   block_m tokens   | the same                                int8 [WARPS, block_n, 32] @ [WARPS, 32, block_m]
    acc [WARPS, block_n, block_m] float32: + dot * scale of W * scale of x, summed over warps at the end
Bound: instructions: 2.6 a code and lane in groups of 16, 1.7 with Q4_K, 1.3 with Q4_0 (docs/log.md, "What few tokens of
    a product wait for").
Tried: docs/log.md: "What few tokens of a product wait for".
Twin: `octavo.backends.reference.ops.mul_mat`

The warps of a program share its rows and divide K among them: they are the batch of a batched dot, and are summed at
the end. With split-K programs share rows likewise. So weights are read once, by as many warps as reading needs,
whatever the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.matvec.int8_dot import MAGIC, MAGIC_FLOAT, scaled
from octavo.backends.gpu.matmul.split_k import is_last, sum_of
from octavo.backends.gpu.weights.decode import byte_of, half_pair, left_of, look_up, scale_and_minimum
from octavo.backends.gpu.weights.loads import load_or_zero, words_at


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
def _codes_of(w, row, tile, k, mask, H: tl.constexpr, ASM: tl.constexpr):
    """int8 [WARPS, BLOCK_N, 32], low and high: pairs 32 H and on of a tile for each warp. Planes are int8."""
    L: tl.constexpr = w.layout
    if L.bits == 8:
        at = w.codes8 + row * L.kp + tile * 128 + H * 32 + k
        low, high = load_or_zero(at, mask), load_or_zero(at + 64, mask)
    if L.bits >= 4 and L.bits < 8:
        both = load_or_zero(w.codes4 + row * (L.kp // 2) + tile * 64 + H * 32 + k, mask)
        low = _bits(both, 0, left_of(L, 4), 4, ASM)
        high = _bits(both, 4, left_of(L, 4), 4, ASM)
    if L.bits & 2:
        two = load_or_zero(w.codes2 + row * (L.kp // 4) + tile * 32 + k, mask)
        low2 = _bits(two, 4 * H, left_of(L, 2), 2, ASM)
        high2 = _bits(two, 4 * H + 2, left_of(L, 2), 2, ASM)
        low, high = (low | low2, high | high2) if L.bits >= 4 else (low2, high2)
    if L.bits & 1:
        at = w.codes1 + row * (L.kp // 8) + tile * 16 + k % 16
        one = load_or_zero(at, mask) >> (4 * H + 2 * (k // 16)).to(tl.int8)
        low1 = _bits(one, 0, left_of(L, 1), 1, ASM)
        high1 = _bits(one, 1, left_of(L, 1), 1, ASM)
        low, high = (low | low1, high | high1) if L.bits > 1 else (low1, high1)
    if L.table is not None:
        low, high = look_up(low, w.table, L.bits, ASM, 4), look_up(high, w.table, L.bits, ASM, 4)
    return low, high


@triton.jit
def _load_scales(w, row, tile, mask):
    """What the scales of a tile of rows [WARPS, BLOCK_N] are made from, in few loads: (words, of minima, d, dmin)."""
    L: tl.constexpr = w.layout
    at = row * (L.kp // 128) + tile
    if L.two_level:
        words = words_at(w.small, at, mask, 32 // L.group, "none")
        minima = words
        above = row * (L.kp // L.super) + tile // (L.super // 128)
        if L.has_min:
            d, dmin = half_pair(load_or_zero(w.scale + above, mask))
            if L.min_bits == 6:
                minima = load_or_zero(w.rest.to(tl.pointer_type(tl.int16)) + at, mask).to(tl.int32)
        else:
            d = load_or_zero(w.scale + above, mask).to(tl.float32)
            dmin = d
    else:
        d, dmin = at, at
        COUNT: tl.constexpr = 32 * L.scale_bytes // L.group
        words = words_at(w.scale, at, mask, 2 * COUNT if L.has_zero else COUNT, "none")
        minima = words
        if L.has_min and not L.has_zero:
            minima = words_at(w.minimum, at, mask, COUNT, "none")
    return words, minima, d, dmin


@triton.constexpr_function
def _number(h, second, group):
    """Which group of a tile's half the codes from 32 h (16 more with `second`) on belong to."""
    return (32 * h + 16 * second) // group


@triton.jit
def _scale_of(loaded, J: tl.constexpr, P: tl.constexpr, LAYOUT: tl.constexpr):
    """Scale and minimum, float32 [WARPS, BLOCK_N], of group J of the low (P 0) or high (P 1) half of a tile."""
    words, minima, d, dmin = loaded
    INDEX: tl.constexpr = 2 * J + P
    if LAYOUT.two_level:
        code = byte_of(words, INDEX)
        if LAYOUT.has_min:
            if LAYOUT.min_bits == 6:
                m = (code >> 6) | (((minima >> (8 * J + 4 * P)) & 15) << 2)
                code = code & 63
            else:
                m = code >> 4
                code = code & 15
            m = dmin * m.to(tl.float32)
        else:
            code = (code << 24) >> 24
        s = d * code.to(tl.float32)
    else:
        s, m = scale_and_minimum(words, minima, INDEX, LAYOUT)
    if not LAYOUT.has_min:
        m = s
    return s, m


@triton.jit
def _add(acc, total, dx, less, sx, s, m, LAYOUT: tl.constexpr):
    """acc [WARPS, BLOCK_N, BLOCK_M] + (total * dx - offset * sx) * s - m * sx.

    dx, less and sx are [WARPS, BLOCK_M], s and m [WARPS, BLOCK_N].
    """
    acc = tl.fma(scaled(total, dx[:, None, :], less[:, None, :]), s[:, :, None], acc)
    if LAYOUT.has_min or LAYOUT.offset:
        below = m if LAYOUT.has_min else s * LAYOUT.offset
        acc = tl.fma(-below[:, :, None], sx[:, None, :], acc)
    return acc


@triton.jit
def mmq_dot_kernel(
    w, x, terms, y, splits, n, n_tokens, shape: tl.constexpr, STRIDE: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """y f32 [n_tokens, N] = x W^T + terms, a tile of tokens and rows a program; planes of codes and x.codes are int8.

    STRIDE is x.stride.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    L: tl.constexpr = w.layout
    WARPS: tl.constexpr = shape.warps
    SPLIT_K: tl.constexpr = shape.split_k
    TILES: tl.constexpr = L.kp // 128
    EVEN: tl.constexpr = TILES % (WARPS * SPLIT_K) == 0
    at = tl.program_id(0) * shape.block_n + tl.arange(0, shape.block_n)
    row = tl.minimum(at, n - 1).to(tl.int64)
    token = tl.program_id(1) * shape.block_m + tl.arange(0, shape.block_m)
    x_row = tl.minimum(token, n_tokens - 1)[None, None, :] * L.kp
    k = tl.arange(0, 32)
    start = tl.full((WARPS, shape.block_n, shape.block_m), MAGIC, tl.int32)
    acc = tl.zeros((WARPS, shape.block_n, shape.block_m), tl.float32)
    split = tl.program_id(2)
    for i in tl.range(0, tl.cdiv(TILES, WARPS * SPLIT_K), num_stages=shape.stages):
        tile = (i * SPLIT_K + split) * WARPS + tl.arange(0, WARPS)
        mask = None if EVEN else tile < TILES
        mask2 = None if EVEN else mask[:, None]
        mask3 = None if EVEN else mask[:, None, None]
        loaded = _load_scales(w, row[None, :], tile[:, None], mask2)
        for h in tl.static_range(2):
            codes = _codes_of(w, row[None, :, None], tile[:, None, None], k[None, None, :], mask3, h, ASM)
            for p in tl.static_range(2):
                x_at = x.codes + x_row + tile[:, None, None] * 128 + p * 64 + h * 32 + k[None, :, None]
                x_codes = load_or_zero(x_at, mask3)  # [WARPS, 32, BLOCK_M]
                group = tile[:, None] * 4 + 2 * p + h
                dx = load_or_zero(x.scale + group * STRIDE + token[None, :], mask2)  # [WARPS, BLOCK_M]
                less = dx * -MAGIC_FLOAT
                s, m = _scale_of(loaded, _number(h, 0, L.group), p, L)
                if L.group == 16:
                    first = tl.where(k[None, :, None] < 16, x_codes, 0)
                    second = tl.where(k[None, :, None] < 16, 0, x_codes)
                    sums = x.sums16 + 2 * group * STRIDE + token[None, :]
                    sums2 = x.sums16 + (2 * group + 1) * STRIDE + token[None, :]
                    # [WARPS, BLOCK_N, 32] @ [WARPS, 32, BLOCK_M]
                    total = tl.dot(codes[p], first, start, out_dtype=tl.int32)
                    acc = _add(acc, total, dx, less, load_or_zero(sums, mask2), s, m, L)
                    s, m = _scale_of(loaded, _number(h, 1, L.group), p, L)
                    total = tl.dot(codes[p], second, start, out_dtype=tl.int32)
                    acc = _add(acc, total, dx, less, load_or_zero(sums2, mask2), s, m, L)
                else:
                    sx = dx
                    if L.offset or L.has_min:
                        sx = load_or_zero(x.sums + group * STRIDE + token[None, :], mask2)  # [WARPS, BLOCK_M]
                    # [WARPS, BLOCK_N, 32] @ [WARPS, 32, BLOCK_M]
                    total = tl.dot(codes[p], x_codes, start, out_dtype=tl.int32)
                    acc = _add(acc, total, dx, less, sx, s, m, L)
    out = tl.sum(acc, 0)  # [BLOCK_N, BLOCK_M]
    if L.factor != 1.0:
        out *= L.factor
    if w.factors is not None:
        out *= tl.load(w.factors + at, mask=at < n, other=0.0)[:, None]  # [BLOCK_N, 1]
    inside = (at[:, None] < n) & (token[None, :] < n_tokens)
    where = token[None, :].to(tl.int64)
    last = True
    if SPLIT_K > 1:
        partial = splits.partial + where * n + at[:, None]
        step = (tl.num_programs(1) * shape.block_m).to(tl.int64) * n  # all tokens' sums of a split
        tl.store(partial + split * step, out, mask=at[:, None] < n)
        last = is_last(splits.counter + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), SPLIT_K)
        if last:
            out = sum_of(partial, step, at[:, None] < n, SPLIT_K, tl.zeros_like(out))
    if last:
        for j in tl.static_range(len(terms)):
            out += tl.load(terms[j].data + where * terms[j].stride + at[:, None], mask=inside, other=0.0)
        tl.store(y.data + where * y.stride + at[:, None], out, mask=inside)
