# mypy: ignore-errors
"""Products of quantized weights with a few tokens in q8_1, by int8 `mma.sync`; what each lane holds is written out.

Algorithm: llama.cpp's MMQ, with fragments loaded straight from memory, warps that divide K, and split-K.
Tile:
    program (i, s)     16 or more rows, all tokens; its warps and those of other s take units of K in turn
    W [16 rows, 64] @ x^T [64, 8 tokens]      lane 4 g + t: rows g and g + 8, 16 neighbouring codes from 16 t on
    a row   | lane t = 0: 16 codes | 1 | 2 | 3 |      one load of 64 or 128 bytes by the four lanes that share it
    groups  two or four in these 64: tokens' codes are masked for each in turn
Bound: bytes and the instructions of decoding: eight tokens of Q4_K take 1.19 (128256 x 4096) to 1.69 times (4096 x
    4096) one token's time on an H100, 82% and 43% of the read limit (bench/results/gpu-ops-2026-11-21.json).
Tried: docs/log.md: "Small squares stay with `mma.sync` among even steps"; "What few tokens of a product wait for"; "Not
    worth it for eight sequences of Qwen3 1.7B".
Twin: `octavo.backends.reference.ops.mul_mat`

`mma` is a 16 x 8 product over 64 values of K: each of the four lanes that share a row holds a chunk of 16 neighbouring
codes. Which codes of a group a lane holds is free, as long as weights and activations agree. With neighbours, four
lanes load 64 or 128 bytes of a row at once, and reading is bound by the number of cache lines that a load touches. But
these 64 values belong to two groups or four, each with a scale of its own. So the product is made once for each group,
with the tokens' codes of the others masked to 0.

A unit is 256 values of K: two tiles of 128, each with a low and a high half of 64. The warps of a program share its
rows and divide the units; so may programs (split-K), whose partial sums the last of them adds. Integer sums start at
the bits of 1.5 * 2^23, so that they are floats without a conversion (`scaled`).

Names: lane 4 g + t of a warp has g and t. A tensor of 32 values a warp is a register of each lane.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.launch.arguments import Q8Activation
from octavo.backends.gpu.matmul.matvec.int8_dot import MAGIC_FLOAT, scaled
from octavo.backends.gpu.matmul.mmq.mma_decode import (
    codes_of,
    load_unit,
    minimum_at,
    number,
    scale_of,
    small_minimum,
    unpacked,
)
from octavo.backends.gpu.matmul.mmq.mma_ptx import here, mma, mma_tf32
from octavo.backends.gpu.matmul.split_k import is_last, sum_of
from octavo.backends.gpu.weights.loads import four, load_or_zero, two_floats


@triton.jit
def _near_and_rest(x):
    """x as the sum of a tf32 number and the rest. A tensor core takes 11 of the rest's 13 bits: 22 bits of x in all."""
    near = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return near, x - near


@triton.jit
def _less_minima(
    acc, rows, scales, x, unit, lane, mask, LAYOUT: tl.constexpr, SHAPE: tl.constexpr, STRIDE: tl.constexpr,
    ASM: tl.constexpr,
):
    """acc less the minima of a unit's groups times the sums of tokens' groups: a product of its own, over groups.

    For two levels of scales. Sums are `_near_and_rest`; minima have few bits.
    """
    g, t = lane
    COUNT: tl.constexpr = 64 // LAYOUT.group  # words of small scales
    zero = tl.zeros_like(acc[0][0])
    out = ()
    for r in tl.static_range(SHAPE.row_tiles):
        upper_row, lower_row = rows[2 * r][1], rows[2 * r + 1][1]
        for j in tl.static_range(SHAPE.token_tiles):
            total = (zero, zero, zero, zero)
            for i in tl.static_range(0, COUNT, 2):
                a = (
                    small_minimum(upper_row, i, t, LAYOUT), small_minimum(lower_row, i, t, LAYOUT),
                    small_minimum(upper_row, i + 1, t, LAYOUT), small_minimum(lower_row, i + 1, t, LAYOUT),
                )
                if LAYOUT.group == 32:
                    group = unit * 8 + 2 * (t % 2) + t // 2
                    sums, step = x.sums + group * STRIDE + 8 * j + g, 4 * STRIDE
                else:
                    group = unit * 16 + i * 4 + 4 * (t % 2) + t // 2
                    sums, step = x.sums16 + group * STRIDE + 8 * j + g, 2 * STRIDE
                s0, s1 = load_or_zero(sums, mask), load_or_zero(sums + step, mask)
                near0, rest0 = _near_and_rest(s0)
                near1, rest1 = _near_and_rest(s1)
                # minima [16, 8] @ sums [8, 8]
                total = mma_tf32(a, (near0, near1), total, ASM)
                total = mma_tf32(a, (rest0, rest1), total, ASM)
            old, upper, lower = acc[r * SHAPE.token_tiles + j], -scales[2 * r][3], -scales[2 * r + 1][3]
            out = out + ((  # noqa: RUF005
                tl.fma(total[0], upper, old[0]), tl.fma(total[1], upper, old[1]),
                tl.fma(total[2], lower, old[2]), tl.fma(total[3], lower, old[3]),
            ),)
    return out


@triton.constexpr_function
def _even(layout, shape):
    """Whether every warp has the same number of whole units."""
    return layout.kp % (256 * shape.warps * shape.split_k) == 0


@triton.constexpr_function
def _zeros(layout):
    """Whether scales times zero points are a product of their own."""
    return layout.has_zero and layout.group >= 32


@triton.jit
def _load_sums(x, unit, lane, LAYOUT: tl.constexpr, SHAPE: tl.constexpr, STRIDE: tl.constexpr):
    """Sums of a unit's groups of the token of each lane: lane t has every fourth group, of each tile of tokens."""
    g, t = lane
    out = ()
    for i in tl.static_range(64 // LAYOUT.group):
        if LAYOUT.group == 32:
            tile, group = unit * 2 + i, unit * 8 + i * 4 + 2 * (t % 2) + t // 2
        else:
            tile, group = unit * 2 + t // 2, unit * 8 + 2 * t
        mask = None if _even(LAYOUT, SHAPE) else tile < LAYOUT.kp // 128
        for j in tl.static_range(SHAPE.token_tiles):
            at = x.sums + group * STRIDE + 8 * j + g
            total = load_or_zero(at, mask)
            if LAYOUT.group == 64:
                total += load_or_zero(at + STRIDE, mask)
            out = out + (_near_and_rest(total),)  # noqa: RUF005
    return out


@triton.jit
def _less_zeros(acc, scales, sums, t, LAYOUT: tl.constexpr, SHAPE: tl.constexpr, ASM: tl.constexpr):
    """acc less scales times zero points of a unit's groups times tokens' sums (`_load_sums`): a product over groups, as
    in `_less_minima`."""
    M: tl.constexpr = SHAPE.token_tiles
    for i in tl.static_range(64 // LAYOUT.group):
        minima = ()
        for r in tl.static_range(len(scales)):
            minima = minima + (_near_and_rest(-minimum_at(scales[r][0], i, t, LAYOUT)),)  # noqa: RUF005
        before = acc
        acc = ()
        for r in tl.static_range(SHAPE.row_tiles):
            for j in tl.static_range(M):
                new = before[r * M + j]
                for part in tl.static_range(2):
                    upper, lower = minima[2 * r][part], minima[2 * r + 1][part]
                    # minima [16, 8] @ sums [8, 8]: four groups, and these again for the rest of the sums
                    new = mma_tf32((upper, lower, upper, lower), sums[i * M + j], new, ASM)
                acc = acc + (new,)  # noqa: RUF005
    return acc


@triton.jit
def _add(acc, total, d, less, sums, first, second, HAS_MIN: tl.constexpr, OFFSET: tl.constexpr):
    """acc + (total * d - OFFSET * sums) * scale - minimum * sums of two rows, (scale, minimum) each, and two tokens."""
    out = ()
    for i in tl.static_range(4):
        s, m = first if i < 2 else second
        value = tl.fma(scaled(total[i], d[i % 2], less[i % 2]), s, acc[i])
        if HAS_MIN or OFFSET:
            value = tl.fma(-m if HAS_MIN else s * -OFFSET, sums[i % 2], value)
        out = out + (value,)  # noqa: RUF005
    return out


@triton.jit
def _load_tokens(codes, unit, KP: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr):
    """A lane's words of a unit of its token: of each half of both tiles."""
    out = ()
    for i in tl.static_range(4):
        near = unit * 2 + i // 2
        if not EVEN:
            near = tl.minimum(near, KP // 128 - 1)
        out = out + (four(codes, near * 8 + i % 2 * 4, None, ASM),)  # noqa: RUF005
    return out


@triton.jit
def _multiply(
    acc, rows, early, x, unit, lane, table, LAYOUT: tl.constexpr, SHAPE: tl.constexpr, STRIDE: tl.constexpr,
    ASM: tl.constexpr,
):
    """acc + the products of a unit: four results of each lane for each tile of 16 rows and 8 tokens. With one tile of
    tokens their words are loaded already, in `early`."""
    t = lane[1]
    G: tl.constexpr = LAYOUT.group
    M: tl.constexpr = SHAPE.token_tiles
    N: tl.constexpr = SHAPE.row_tiles
    EVEN: tl.constexpr = _even(LAYOUT, SHAPE)
    LATE: tl.constexpr = LAYOUT.two_level and not LAYOUT.has_min  # d multiplies the sums of a whole unit, at its end
    ZEROS: tl.constexpr = _zeros(LAYOUT)
    MINIMA: tl.constexpr = LAYOUT.has_min and not LAYOUT.two_level and not ZEROS  # of one level: group by group
    PARTS: tl.constexpr = 4 if G == 16 else 2  # groups of half a tile, each of 4 / PARTS lanes of a row
    scales = ()
    for r in tl.static_range(2 * N):
        scales = scales + (unpacked(rows[r][1], LAYOUT),)  # noqa: RUF005
    sums = acc
    if ZEROS:
        x_sums = _load_sums(x, unit, lane, LAYOUT, SHAPE, STRIDE)
    if LATE:
        zero = tl.zeros_like(acc[0][0])
        sums = ()
        for _ in tl.static_range(N * M):
            sums = sums + ((zero, zero, zero, zero),)  # noqa: RUF005
    for u in tl.static_range(2):
        tile = unit * 2 + u
        mask = None if EVEN else tile < LAYOUT.kp // 128
        near = tile if EVEN else tl.minimum(tile, LAYOUT.kp // 128 - 1)
        for p in tl.static_range(2):
            codes, tokens = (), ()
            for r in tl.static_range(2 * N):
                words = codes_of(rows[r][0], u, t, p, table, LAYOUT, ASM)
                codes = codes + (words,)  # noqa: RUF005
            for j in tl.static_range(M):
                if M == 1:
                    tokens = tokens + (early[2 * u + p],)  # noqa: RUF005
                else:
                    words = four(x.codes, j * 8 * (LAYOUT.kp // 16) + near * 8 + p * 4, None, ASM)
                    tokens = tokens + (words,)  # noqa: RUF005
            for c in tl.static_range(PARTS):
                kept = tl.where(t // (4 // PARTS) == c, -1, 0)
                group = near * 4 + 2 * p + 2 * c // PARTS
                before = sums
                sums = ()
                for r in tl.static_range(N):
                    first = scale_of(scales[2 * r], number(u, 64 // PARTS * c, p, G), LAYOUT, ASM)
                    second = scale_of(scales[2 * r + 1], number(u, 64 // PARTS * c, p, G), LAYOUT, ASM)
                    for j in tl.static_range(M):
                        d = two_floats(x.scale, group * (STRIDE // 2) + j * 4 + t, mask)
                        less = (d[0] * -MAGIC_FLOAT, d[1] * -MAGIC_FLOAT)
                        sx = d
                        if MINIMA or LAYOUT.offset:
                            if G == 16:
                                at = (near * 8 + 4 * p + c) * (STRIDE // 2) + j * 4 + t
                                sx = two_floats(x.sums16, at, mask)
                            else:
                                sx = two_floats(x.sums, group * (STRIDE // 2) + j * 4 + t, mask)
                        x_codes = (tokens[j][0] & kept, tokens[j][1] & kept, tokens[j][2] & kept, tokens[j][3] & kept)
                        total = mma(codes[2 * r], codes[2 * r + 1], x_codes, ASM)  # [16, 64] @ [64, 8]
                        new = _add(before[r * M + j], total, d, less, sx, first, second, MINIMA, LAYOUT.offset)
                        sums = sums + (new,)  # noqa: RUF005
    if LAYOUT.has_min and LAYOUT.two_level:
        inside = None if EVEN else unit < LAYOUT.kp // 256
        at = unit if EVEN else tl.minimum(unit, LAYOUT.kp // 256 - 1)
        sums = _less_minima(sums, rows, scales, x, at, lane, inside, LAYOUT, SHAPE, STRIDE, ASM)
    if ZEROS:
        sums = _less_zeros(sums, scales, x_sums, t, LAYOUT, SHAPE, ASM)
    if LATE:
        late = ()
        for r in tl.static_range(N):
            for j in tl.static_range(M):
                new, old = sums[r * M + j], acc[r * M + j]
                upper, lower = scales[2 * r][2], scales[2 * r + 1][2]
                late = late + ((  # noqa: RUF005
                    tl.fma(new[0], upper, old[0]), tl.fma(new[1], upper, old[1]),
                    tl.fma(new[2], lower, old[2]), tl.fma(new[3], lower, old[3]),
                ),)
        sums = late
    return sums


@triton.jit
def products(w, x, row, lane, warp, split, n_tokens, SHAPE: tl.constexpr, STRIDE: tl.constexpr, ASM: tl.constexpr,
             PDL: tl.constexpr):
    """A warp's part of a split of the products of rows `row`, of which each lane has two of 16, and tokens: four
    results of each lane for each tile. See `mmq_mma_kernel` for what is loaded when."""
    LAYOUT: tl.constexpr = w.layout
    EVEN: tl.constexpr = _even(LAYOUT, SHAPE)
    STEP: tl.constexpr = SHAPE.warps * SHAPE.split_k
    STEPS: tl.constexpr = ((LAYOUT.kp + 128) // 256 + STEP - 1) // STEP
    EARLY: tl.constexpr = SHAPE.token_tiles == 1  # tokens' codes are loaded before they are multiplied
    g, t = lane
    # int64, so that neighbouring addresses are one register and constant offsets
    first = (split * SHAPE.warps + warp).to(tl.int64)
    loaded = load_unit(w, row, first, t, ASM)
    if PDL:
        gdc_wait()
    zero = tl.zeros((32 * SHAPE.warps,), tl.float32)
    acc = ()
    for _ in tl.static_range(SHAPE.row_tiles * SHAPE.token_tiles):
        acc = acc + ((zero, zero, zero, zero),)  # noqa: RUF005
    codes = x.codes.to(tl.pointer_type(tl.int32)) + (tl.minimum(g, n_tokens - 1) * (LAYOUT.kp // 16) + t) * 4
    x = Q8Activation(codes, x.scale, x.sums, x.sums16, x.stride)
    tokens = ()
    if EARLY:
        tokens = _load_tokens(x.codes, first, LAYOUT.kp, EVEN, ASM)
    for i in tl.range(STEPS - 1):
        unit = first + i * STEP
        if SHAPE.prefetch >= 1:
            coming = load_unit(w, row, unit + STEP, t, ASM)
        if SHAPE.prefetch == 2 and EARLY:
            tokens_coming = _load_tokens(x.codes, unit + STEP, LAYOUT.kp, EVEN, ASM)
        if SHAPE.prefetch >= 1:
            t = here(t, ASM)
        acc = _multiply(acc, loaded, tokens, x, unit, (g, t), w.table, LAYOUT, SHAPE, STRIDE, ASM)
        if SHAPE.prefetch == 0:
            coming = load_unit(w, row, unit + STEP, t, ASM)
        if EARLY:
            if SHAPE.prefetch == 2:
                tokens = tokens_coming
            else:
                tokens = _load_tokens(x.codes, unit + STEP, LAYOUT.kp, EVEN, ASM)
        loaded = coming
    unit = first + (STEPS - 1) * STEP
    return _multiply(acc, loaded, tokens, x, unit, (g, t), w.table, LAYOUT, SHAPE, STRIDE, ASM)


@triton.jit
def summed(a, b, WARPS: tl.constexpr, PAIR: tl.constexpr):
    """Results of a lane summed over warps, [lane, token 2 t or 2 t + 1, row g or g + 8, PAIR]: of a, or of both."""
    out = tl.join(tl.join(a[0], a[1]), tl.join(a[2], a[3]))
    if PAIR == 2:
        out = tl.join(out, tl.join(tl.join(b[0], b[1]), tl.join(b[2], b[3])))
    return tl.sum(tl.reshape(out, (WARPS, 32, 2, 2, PAIR)), 0)


@triton.jit
def lane_rows(n, SHAPE: tl.constexpr):
    """Where a program's rows of n begin, of which it stores those from a wanted one on; of each thread its warp, lane
    (g, t), and rows."""
    ROWS: tl.constexpr = 16 * SHAPE.row_tiles
    wanted = tl.program_id(0) * ROWS
    start = tl.maximum(tl.minimum(wanted, n - ROWS), 0)
    thread = tl.arange(0, 32 * SHAPE.warps)
    g = thread % 32 // 4
    row = ()
    for r in tl.static_range(2 * SHAPE.row_tiles):
        at = (start + g).to(tl.int64) + 8 * r
        if SHAPE.short:
            at = tl.minimum(at, n - 1)
        row = row + (at,)  # noqa: RUF005
    return start, wanted, thread // 32, (g, thread % 4), row


@triton.jit
def places(i, start, SHAPE: tl.constexpr, PAIR: tl.constexpr):
    """Rows and tokens of what `summed` gives for tile i, or for it and the next one."""
    lane = tl.arange(0, 32)[:, None, None, None]
    odd, below = tl.arange(0, 2)[None, :, None, None], tl.arange(0, 2)[None, None, :, None]
    tile = i + tl.arange(0, PAIR)[None, None, None, :]
    column = start + 16 * (tile // SHAPE.token_tiles) + lane // 4 + below * 8
    return column, 8 * (tile % SHAPE.token_tiles) + lane % 4 * 2 + odd


@triton.jit
def _store(acc, factors, terms, y, splits, start, wanted, n, n_tokens, LAYOUT: tl.constexpr, SHAPE: tl.constexpr):
    """y = acc, summed over warps and programs, times factors, + terms: rows from `start` on, but stored only from
    `wanted` on."""
    TILES: tl.constexpr = SHAPE.row_tiles * SHAPE.token_tiles
    PAIR: tl.constexpr = 2 if TILES > 1 else 1  # tiles that are added up at once
    SIZE: tl.constexpr = 128 * TILES  # results of a program
    lane = tl.arange(0, 32)[:, None, None, None]
    odd, below = tl.arange(0, 2)[None, :, None, None], tl.arange(0, 2)[None, None, :, None]
    which = tl.arange(0, PAIR)[None, None, None, :]
    mine = (tl.program_id(0) * SHAPE.split_k) * SIZE + ((lane * 2 + odd) * 2 + below) * PAIR + which
    split = tl.program_id(1)
    out = ()
    for i in tl.static_range(0, TILES, PAIR):
        total = summed(acc[i], acc[i + PAIR - 1], SHAPE.warps, PAIR)  # [32, 2, 2, PAIR]
        if LAYOUT.factor != 1.0:
            total *= LAYOUT.factor
        if SHAPE.split_k > 1:
            tl.store(splits.partial + mine + (split * SIZE + i * 128), total)
        out = out + (total,)  # noqa: RUF005
    last = True
    if SHAPE.split_k > 1:
        last = is_last(splits.counter + tl.program_id(0), SHAPE.split_k)
    if last:
        for i in tl.static_range(0, TILES, PAIR):
            total = out[i // PAIR]
            if SHAPE.split_k > 1:
                partial = splits.partial + mine + i * 128
                total = sum_of(partial, SIZE, None, SHAPE.split_k, tl.zeros_like(total))
            column, token = places(i, start, SHAPE, PAIR)
            inside = (column >= wanted) & (column < n) & (token < n_tokens)
            where = token.to(tl.int64)
            if factors is not None:
                total *= tl.load(factors + column, mask=inside, other=0.0)
            for j in tl.static_range(len(terms)):
                total += tl.load(terms[j].data + where * terms[j].stride + column, mask=inside, other=0.0)
            tl.store(y.data + where * y.stride + column, total, mask=inside)


@triton.jit
def mmq_mma_kernel(
    w, x, terms, y, splits, n, n_tokens, shape: tl.constexpr, STRIDE: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """y f32 [n_tokens, N] = x W^T + terms; x.codes are int8. Program (rows, split of K).

    A program has shape.row_tiles tiles of 16 rows (the last program has the last rows of W, of which it stores only
    those that no other one has) and shape.token_tiles tiles of 8 tokens. A warp loads its first unit before it waits
    for the previous kernel's results. With shape.prefetch 1 it loads a unit's weights before it multiplies the unit
    before; with 2 the tokens' codes, too. STRIDE is x.stride.
    """
    if PDL:
        gdc_launch_dependents()
    start, wanted, warp, lane, row = lane_rows(n, shape)
    acc = products(w, x, row, lane, warp, tl.program_id(1), n_tokens, shape, STRIDE, ASM, PDL)
    _store(acc, w.factors, terms, y, splits, start, wanted, n, n_tokens, w.layout, shape)
