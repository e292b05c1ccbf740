"""Products with some tokens on NVIDIA's matrix units: int8, a scale for each group, lanes' registers written out.

Which codes of a group a lane holds is free, as long as weights and activations agree. It is a chunk of 16 neighbours:
64 or 128 bytes of a row are one load of four lanes then, and lines that a load touches are what reading is bound by. A
product over a chunk of each of the four lanes takes in two groups, or four, so tokens' codes are masked for each in
turn. The warps of a program share its rows and divide K; so may programs, as in `mmq_dot`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.codes import (
    MAGIC_FLOAT,
    load_or_zero,
    scaled,
)
from octavo.backends.gpu.kernels.mmq_mma.decode import (
    load_unit,
    number,
    scale_and_minimum,
    small_minimum,
    unpacked,
    words_of,
)
from octavo.backends.gpu.kernels.mmq_mma.ptx import four, here, mma, mma_tf32, two_floats


@triton.jit
def _less_minima(
    acc, rows, parts, xs, xs16, unit, g, t, mask,
    G: tl.constexpr, MIN_BITS: tl.constexpr, RT: tl.constexpr, NT: tl.constexpr, TP: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """acc less the minima of a unit's groups times the sums of tokens' groups: a product of its own, over groups.

    Sums are divided into two parts that tf32 holds.
    """
    COUNT: tl.constexpr = 64 // G  # words of small scales
    zero = tl.zeros_like(acc[0][0])
    out = ()
    for r in tl.static_range(RT):
        for j in tl.static_range(NT):
            total = (zero, zero, zero, zero)
            for i in tl.static_range(0, COUNT, 2):
                a = (
                    small_minimum(rows[2 * r][1], i, t, MIN_BITS),
                    small_minimum(rows[2 * r + 1][1], i, t, MIN_BITS),
                    small_minimum(rows[2 * r][1], i + 1, t, MIN_BITS),
                    small_minimum(rows[2 * r + 1][1], i + 1, t, MIN_BITS),
                )
                if G == 32:
                    group = unit * 8 + 2 * (t % 2) + t // 2
                    sums, step = xs + group * TP + 8 * j + g, 4 * TP
                else:
                    group = unit * 16 + i * 4 + 4 * (t % 2) + t // 2
                    sums, step = xs16 + group * TP + 8 * j + g, 2 * TP
                s0, s1 = load_or_zero(sums, mask), load_or_zero(sums + step, mask)
                h0 = (s0.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
                h1 = (s1.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
                total = mma_tf32(a, (h0, h1), total, ASM)
                total = mma_tf32(a, (s0 - h0, s1 - h1), total, ASM)
            old, upper, lower = acc[r * NT + j], -parts[2 * r][3], -parts[2 * r + 1][3]
            out = out + ((  # noqa: RUF005
                tl.fma(total[0], upper, old[0]), tl.fma(total[1], upper, old[1]),
                tl.fma(total[2], lower, old[2]), tl.fma(total[3], lower, old[3]),
            ),)  # fmt: skip
    return out


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
def _load_tokens(xq, unit, kp: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr):
    """A lane's words of a unit of its token: of each half of both tiles."""
    out = ()
    for i in tl.static_range(4):
        near = unit * 2 + i // 2
        if not EVEN:
            near = tl.minimum(near, kp // 128 - 1)
        out = out + (four(xq, near * 8 + i % 2 * 4, ASM),)  # noqa: RUF005
    return out


@triton.jit
def _multiply(
    acc, rows, early, xq, xd, xs, xs16, unit, g, t, table,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, SIGNED: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    RT: tl.constexpr, NT: tl.constexpr, TP: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """acc, a tuple of four results for each of RT 16 rows and NT 8 tokens, + the products of a unit."""
    LATE: tl.constexpr = S > G and not HAS_MIN  # d comes last
    MINIMA: tl.constexpr = HAS_MIN and S == G  # of one level: group by group
    parts = ()
    for r in tl.static_range(2 * RT):
        parts = parts + (unpacked(rows[r][1], S, G, HAS_MIN, MIN_BITS),)  # noqa: RUF005
    sums = acc
    if LATE:
        zero = tl.zeros_like(acc[0][0])
        sums = ()
        for _ in tl.static_range(RT * NT):
            sums = sums + ((zero, zero, zero, zero),)  # noqa: RUF005
    PARTS: tl.constexpr = 4 if G == 16 else 2  # groups of half a tile, each of 4 / PARTS lanes of a quad
    for u in tl.static_range(2):
        tile = unit * 2 + u
        mask = None if EVEN else tile < kp // 128
        near = tile if EVEN else tl.minimum(tile, kp // 128 - 1)
        for p in tl.static_range(2):
            codes, tokens = (), ()
            for r in tl.static_range(2 * RT):
                words = words_of(rows[r][0][u], t, p, table, BITS, SIGNED, TABLE, ASM)
                codes = codes + (words,)  # noqa: RUF005
            for j in tl.static_range(NT):
                if NT == 1:
                    tokens = tokens + (early[2 * u + p],)  # noqa: RUF005
                else:
                    words = four(xq, j * 8 * (kp // 16) + near * 8 + p * 4, ASM)
                    tokens = tokens + (words,)  # noqa: RUF005
            for c in tl.static_range(PARTS):
                kept = tl.where(t // (4 // PARTS) == c, -1, 0)
                group = near * 4 + 2 * p + 2 * c // PARTS
                before = sums
                sums = ()
                for r in tl.static_range(RT):
                    first = scale_and_minimum(parts[2 * r], number(u, 64 // PARTS * c, p, G), S, G, KIND, HAS_MIN, ASM)
                    second = scale_and_minimum(
                        parts[2 * r + 1], number(u, 64 // PARTS * c, p, G), S, G, KIND, HAS_MIN, ASM
                    )
                    for j in tl.static_range(NT):
                        d = two_floats(xd, group * (TP // 2) + j * 4 + t, mask)
                        less = (d[0] * -MAGIC_FLOAT, d[1] * -MAGIC_FLOAT)
                        sx = d
                        if MINIMA or OFFSET:
                            if G == 16:
                                sx = two_floats(xs16, (near * 8 + 4 * p + c) * (TP // 2) + j * 4 + t, mask)
                            else:
                                sx = two_floats(xs, group * (TP // 2) + j * 4 + t, mask)
                        x = (tokens[j][0] & kept, tokens[j][1] & kept, tokens[j][2] & kept, tokens[j][3] & kept)
                        total = mma(codes[2 * r], codes[2 * r + 1], x, ASM)
                        new = _add(before[r * NT + j], total, d, less, sx, first, second, MINIMA, OFFSET)
                        sums = sums + (new,)  # noqa: RUF005
    if HAS_MIN and S > G:
        inside = None if EVEN else unit < kp // 256
        at = unit if EVEN else tl.minimum(unit, kp // 256 - 1)
        sums = _less_minima(sums, rows, parts, xs, xs16, at, g, t, inside, G, MIN_BITS, RT, NT, TP, ASM)
    if LATE:
        late = ()
        for r in tl.static_range(RT):
            for j in tl.static_range(NT):
                new, old = sums[r * NT + j], acc[r * NT + j]
                upper, lower = parts[2 * r][2], parts[2 * r + 1][2]
                late = late + ((  # noqa: RUF005
                    tl.fma(new[0], upper, old[0]), tl.fma(new[1], upper, old[1]),
                    tl.fma(new[2], lower, old[2]), tl.fma(new[3], lower, old[3]),
                ),)  # fmt: skip
        sums = late
    return sums


@triton.jit
def _summed(a, b, WARPS: tl.constexpr, PAIR: tl.constexpr):
    """Results of a lane summed over warps, [lane, token 2 t or 2 t + 1, row g or g + 8, PAIR]: of a, or of both."""
    out = tl.join(tl.join(a[0], a[1]), tl.join(a[2], a[3]))
    if PAIR == 2:
        out = tl.join(out, tl.join(tl.join(b[0], b[1]), tl.join(b[2], b[3])))
    return tl.sum(tl.reshape(out, (WARPS, 32, 2, 2, PAIR)), 0)


@triton.jit
def mmq_mma_kernel(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, table0, table1, table2, table3,
    xq, xd, xs, xs16, term0, term1, y, shares, finished, n, n_tokens, y_stride, stride0, stride1,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, SIGNED: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    RT: tl.constexpr, NT: tl.constexpr, TP: tl.constexpr, TERMS: tl.constexpr, WARPS: tl.constexpr,
    AHEAD: tl.constexpr, SPLITS: tl.constexpr, SMALL: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y f32 [n_tokens, N] = x W^T + terms, up to 8 NT tokens and 16 RT rows a program.

    A warp's first unit is loaded before the values of an earlier kernel are waited for. AHEAD 1: each next one before
    the products of the one before it; 2: and so are the tokens' codes. SMALL: there are fewer rows
    than a program's.
    """
    if PDL:
        gdc_launch_dependents()
    ROWS: tl.constexpr = 16 * RT
    wanted = tl.program_id(0) * ROWS
    start = tl.maximum(tl.minimum(wanted, n - ROWS), 0)
    thread = tl.arange(0, 32 * WARPS)
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    row = ()
    for r in tl.static_range(2 * RT):
        at = (start + g).to(tl.int64) + 8 * r
        if SMALL:
            at = tl.minimum(at, n - 1)
        row = row + (at,)  # noqa: RUF005
    table = (table0, table1, table2, table3)
    UNITS: tl.constexpr = (kp + 128) // 256
    STEPS: tl.constexpr = (UNITS + WARPS * SPLITS - 1) // (WARPS * SPLITS)
    EVEN: tl.constexpr = kp % (256 * WARPS * SPLITS) == 0
    split = tl.program_id(1)
    first = (split * WARPS + warp).to(tl.int64)  # so that neighbouring places are one address and offsets
    loaded = load_unit(codes8, codes4, codes2, codes1, scale, minimum, small, rest, row, first, t,
                        kp, BITS, G, S, KIND, HAS_MIN, MIN_BITS, RT, ASM)  # fmt: skip
    if PDL:
        gdc_wait()
    zero = tl.zeros((32 * WARPS,), tl.float32)
    acc = ()
    for _ in tl.static_range(RT * NT):
        acc = acc + ((zero, zero, zero, zero),)  # noqa: RUF005
    x_at = xq.to(tl.pointer_type(tl.int32)) + (tl.minimum(g, n_tokens - 1) * (kp // 16) + t) * 4
    tokens = ()
    if NT == 1:
        tokens = _load_tokens(x_at, first, kp, EVEN, ASM)
    STEP: tl.constexpr = WARPS * SPLITS
    for i in tl.range(STEPS - 1):
        unit = first + i * STEP
        if AHEAD >= 1:
            coming = load_unit(codes8, codes4, codes2, codes1, scale, minimum, small, rest, row, unit + STEP, t,
                                kp, BITS, G, S, KIND, HAS_MIN, MIN_BITS, RT, ASM)  # fmt: skip
        if AHEAD == 2 and NT == 1:
            tokens_coming = _load_tokens(x_at, unit + STEP, kp, EVEN, ASM)
        if AHEAD >= 1:
            t = here(t, ASM)
        acc = _multiply(acc, loaded, tokens, x_at, xd, xs, xs16, unit, g, t, table, kp, BITS, G, S, KIND, HAS_MIN,
                        MIN_BITS, SIGNED, OFFSET, TABLE, RT, NT, TP, EVEN, ASM)  # fmt: skip
        if AHEAD == 0:
            coming = load_unit(codes8, codes4, codes2, codes1, scale, minimum, small, rest, row, unit + STEP, t,
                                kp, BITS, G, S, KIND, HAS_MIN, MIN_BITS, RT, ASM)  # fmt: skip
        if NT == 1:
            if AHEAD == 2:
                tokens = tokens_coming
            else:
                tokens = _load_tokens(x_at, unit + STEP, kp, EVEN, ASM)
        loaded = coming
    acc = _multiply(acc, loaded, tokens, x_at, xd, xs, xs16, first + (STEPS - 1) * STEP, g, t, table, kp, BITS, G, S,
                    KIND, HAS_MIN, MIN_BITS, SIGNED, OFFSET, TABLE, RT, NT, TP, EVEN, ASM)  # fmt: skip
    last = True
    PAIR: tl.constexpr = 2 if RT * NT > 1 else 1  # results that are added up at once
    lane = tl.arange(0, 32)[:, None, None, None]
    odd, below = tl.arange(0, 2)[None, :, None, None], tl.arange(0, 2)[None, None, :, None]
    which = tl.arange(0, PAIR)[None, None, None, :]
    SIZE: tl.constexpr = 128 * RT * NT  # results of a program
    mine = (tl.program_id(0) * SPLITS) * SIZE + ((lane * 2 + odd) * 2 + below) * PAIR + which
    out = ()
    for i in tl.static_range(0, RT * NT, PAIR):
        total = _summed(acc[i], acc[i + PAIR - 1], WARPS, PAIR)
        if SIGNED:
            total *= 1.0 / (1 << (8 - BITS))
        if SPLITS > 1:
            tl.store(shares + mine + (split * SIZE + i * 128), total)
        out = out + (total,)  # noqa: RUF005
    if SPLITS > 1:
        tl.debug_barrier()
        counter = finished + tl.program_id(0)
        last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1
        if last:
            tl.store(counter, 0)
    if last:
        for i in tl.static_range(0, RT * NT, PAIR):
            total = out[i // PAIR]
            if SPLITS > 1:
                total = tl.zeros((32, 2, 2, PAIR), tl.float32)
                for other in tl.static_range(SPLITS):
                    total += tl.load(shares + mine + (other * SIZE + i * 128), cache_modifier=".cg")
            column = start + 16 * ((i + which) // NT) + lane // 4 + below * 8
            token = 8 * ((i + which) % NT) + lane % 4 * 2 + odd
            inside = (column >= wanted) & (column < n) & (token < n_tokens)
            where = token.to(tl.int64)
            if TERMS > 0:
                total += tl.load(term0 + where * stride0 + column, mask=inside, other=0.0)
            if TERMS > 1:
                total += tl.load(term1 + where * stride1 + column, mask=inside, other=0.0)
            tl.store(y + where * y_stride + column, total, mask=inside)
