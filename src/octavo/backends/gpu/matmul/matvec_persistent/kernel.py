# mypy: ignore-errors
"""Products of one token with weights of 3 to 6 and 8 bits: each lane keeps its part of the token in registers, and
takes row after row of the weights.

Algorithm: MMVQ's arithmetic (dp4a, both factors' codes as bytes) in a persistent grid, launched by PDL. Its epilogue
    may quantize the results for the next product, after the next norm's weight or SwiGLU.
Tile:
    program p        rows p R ... | p R + P R ... | p R + 2 P R ...    of P programs, as many as fit the card
    a lane           its chunks of the token in registers, loaded once; a row: codes, scales and minima of these chunks
    loads            a row is multiplied while the next two are loaded
Bound: bytes. Gate and up of Llama 3 8B, 28672 x 4096, take 29.9 us in Q8_0 and 16.2 in Q4_K in a step on an H200
    (bench/results/gpu-layers-h200-2026-11-27.json), 91% and 89% of the read limit of 4,567 GB/s.
Tried: docs/log.md: "A product that quantizes its own results saves more than the launch"; "Few large programs are
    launched sooner, and rows should all be under way"; "A loop waits at its begin for every load of the turn before";
    "Codes of several planes go by streams as well"; "One persistent kernel for a decoding step was not built".
Twin: `octavo.backends.reference.ops.mul_mat`

All lanes of `warps` warps share a row, and a program has R rows at a time. A chunk is 32 codes: 16 neighbours in the
first half of a tile of 128 values, and the 16 that are 64 places further on. A lane has one to four chunks of a row.
The program's first two rows are requested before it waits for the previous kernel's results. Minima need no codes: lane
i takes those of tile i, whatever its chunks are.

Integer sums start at MAGIC, the bits of 1.5 * 2^23: read as a float32 they are MAGIC_FLOAT plus the sum, so that
nothing has to convert them.

A norm is divided between two products. With the epilogue "rms_norm" the first one stores codes of y times the norm's
weight, and sums of squares of y. The second one multiplies its results by one over the root mean square (`_factor`).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.matvec.int8_dot import MAGIC, MAGIC_FLOAT, dot4
from octavo.backends.gpu.matmul.matvec_persistent.tile_loads import bits_at, four_words
from octavo.backends.gpu.matmul.mmq.mma_decode import byte_float
from octavo.backends.gpu.matmul.mmq.mma_ptx import here
from octavo.backends.gpu.matmul.w8a8.quantize_kernel import ROUND
from octavo.backends.gpu.weights.decode import half_pair, look_up, word_of
from octavo.backends.gpu.weights.dot_table import interleaved, magnitudes, table_product
from octavo.backends.gpu.weights.loads import four, load_or_zero

UNIT = tl.constexpr(16)  # values of a quantized result that share a scale


@triton.constexpr_function
def _pieces(count, lanes):
    return -(-count // lanes)


@triton.jit
def _place(lane, j: tl.constexpr, COUNT: tl.constexpr, LANES: tl.constexpr):
    """A lane's place among the LANES from j * LANES on; lanes beyond COUNT get the last, with which 0 is multiplied."""
    return lane if (j + 1) * LANES <= COUNT else tl.minimum(lane, COUNT - 1 - j * LANES)


@triton.jit
def _load(w, row, n, lane, LANES: tl.constexpr, ASM: tl.constexpr):
    """A lane's part of a row, if there is such a row: codes and scales of its chunks, and minima of its tiles.

    An address is the sum of the lane's part, the row's, and a constant that the load instruction holds for free.
    """
    L: tl.constexpr = w.layout
    CHUNKS: tl.constexpr = L.kp // 32
    TILES: tl.constexpr = L.kp // 128
    PAIRS: tl.constexpr = L.kp // (2 * L.group)
    wanted = (lane >= 0) & (row < n)
    row = row.to(tl.int64)
    chunks = ()
    for j in tl.static_range(_pieces(CHUNKS, LANES)):
        at = _place(lane, j, CHUNKS, LANES)
        if L.bits == 8:
            of_lane = w.codes8 + (at // 4 * 32 + at % 4 * 4) + row * (L.kp // 4)
            codes = (
                four_words(of_lane, j * LANES * 8, wanted, ASM),
                four_words(of_lane, j * LANES * 8 + 16, wanted, ASM),
            )
        else:
            codes = ()
            if L.bits >= 4:
                codes = (four_words(w.codes4 + at * 4 + row * (L.kp // 8), j * LANES * 4, wanted, ASM),)
            if L.bits & 2:
                of_lane = w.codes2 + (at // 4 * 8 + at % 2 * 4) + row * (L.kp // 16)
                codes = codes + (four_words(of_lane, j * LANES * 2, wanted, ASM),)  # noqa: RUF005
            if L.bits & 1:
                of_lane = w.codes1 + at // 4 * 4 + row * (L.kp // 32)
                codes = codes + (four_words(of_lane, j * LANES, wanted, ASM),)  # noqa: RUF005
        of_pair = at * 16 // L.group + row * PAIRS
        if L.two_level:
            d = w.scale + at * 32 // L.super + row * (L.kp // L.super)
            scales = (
                bits_at(w.small + of_pair, j * LANES * 16 // L.group, wanted, ASM),
                bits_at(d, j * LANES * 32 // L.super, wanted, ASM),
            )
        else:
            scales = (bits_at(w.scale + of_pair, j * LANES * 16 // L.group, wanted, ASM),)
        chunks = chunks + ((codes, scales),)  # noqa: RUF005
    minima = ()
    if L.has_min:
        for j in tl.static_range(_pieces(TILES, LANES)):
            at = _place(lane, j, TILES, LANES)
            low = w.small.to(tl.pointer_type(tl.int32)) + at + row * TILES
            upper = w.rest.to(tl.pointer_type(tl.int16)) + at + row * TILES
            d = w.scale + at // 2 + row * (TILES // 2)
            low, upper = bits_at(low, j * LANES, wanted, ASM), bits_at(upper, j * LANES, wanted, ASM)
            minima = minima + ((low, upper, bits_at(d, j * LANES // 2, wanted, ASM)),)  # noqa: RUF005
    return chunks, minima


@triton.jit
def _token(x, lane, LAYOUT: tl.constexpr, LANES: tl.constexpr, FINE: tl.constexpr, ASM: tl.constexpr):
    """A lane's part of the token: for each chunk its codes and scales, for each tile the sums of its groups.

    FINE: 16 values share a scale; otherwise 32 do.
    """
    CHUNKS: tl.constexpr = LAYOUT.kp // 32
    TILES: tl.constexpr = LAYOUT.kp // 128
    chunks = ()
    for j in tl.static_range(_pieces(CHUNKS, LANES)):
        chunk = _place(lane, j, CHUNKS, LANES) + j * LANES
        mask = None if CHUNKS % LANES == 0 else lane + j * LANES < CHUNKS
        at = chunk // 4 * 8 + chunk % 4
        low, high = four(x.codes, at, None, ASM), four(x.codes, at + 4, None, ASM)
        if FINE:
            d_low, d_high = load_or_zero(x.scale + at, mask), load_or_zero(x.scale + at + 4, mask)
        else:
            group = chunk // 4 * 4 + chunk % 4 // 2
            d_low = load_or_zero(x.scale + group * x.stride, mask)
            d_high = load_or_zero(x.scale + (group + 2) * x.stride, mask)
        if LAYOUT.table is not None and LAYOUT.bits == 4:
            low = interleaved(low[0], low[1], ASM) + interleaved(low[2], low[3], ASM)
            high = interleaved(high[0], high[1], ASM) + interleaved(high[2], high[3], ASM)
        elif LAYOUT.bits == 4 and not LAYOUT.signed:
            d_high *= 0.0625  # high codes stay in the upper bits of their bytes, 16 times as large
        chunks = chunks + ((low, high, d_low, d_high),)  # noqa: RUF005
    sums = ()
    if LAYOUT.has_min:
        for j in tl.static_range(_pieces(TILES, LANES)):
            tile = _place(lane, j, TILES, LANES) + j * LANES
            mask = None if TILES % LANES == 0 else lane + j * LANES < TILES
            of_groups = ()
            for g in tl.static_range(4):  # as minima lie: groups 0, 2, 1, 3
                group = tile * 4 + g // 2 + g % 2 * 2
                if FINE:
                    low = load_or_zero(x.sums16 + 2 * group, mask)
                    of_group = low + load_or_zero(x.sums16 + 2 * group + 1, mask)
                else:
                    of_group = load_or_zero(x.sums + group * x.stride, mask)
                of_groups = of_groups + (of_group,)  # noqa: RUF005
            sums = sums + (of_groups,)  # noqa: RUF005
    return chunks, sums


@triton.jit
def _dot(codes, x, total, i: tl.constexpr, table, t, P: tl.constexpr, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """total + the dot product of word i of a lane's codes of half P of a tile with a token's word x; `t` is the number
    of its chunk in the tile."""
    if LAYOUT.bits == 8:
        total = dot4(codes[P][i], x, total, ASM)
    elif LAYOUT.bits != 4 or LAYOUT.signed:
        word = word_of(codes, i, t, P, LAYOUT)
        if LAYOUT.table is not None:
            word = look_up(word, table, LAYOUT.bits, ASM, 1)
        total = dot4(word, x, total, ASM)
    elif ASM == "ptx":
        word = codes[0][i] & (0x0F0F0F0F if P == 0 else -0x0F0F0F10)
        total = tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [word, x, total], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        total += dot4((codes[0][i] >> (4 * P)) & 0x0F0F0F0F, x, tl.zeros_like(x), ASM) * (1 if P == 0 else 16)
    return total


@triton.jit
def _product(codes, x_low, x_high, d_low, d_high, start, table, t, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """Products of a lane's low and high codes of a chunk with a token's, in float32; `start` is MAGIC."""
    if LAYOUT.table is not None and LAYOUT.bits == 4:
        low = table_product(codes[0], x_low, start, table, 0, LAYOUT.table, ASM)
        high = table_product(codes[0], x_high, start, table, 1, LAYOUT.table, ASM)
    else:
        low, high = start, start
        for i in tl.static_range(4):
            low = _dot(codes, x_low[i], low, i, table, t, 0, LAYOUT, ASM)
            high = _dot(codes, x_high[i], high, i, table, t, 1, LAYOUT, ASM)
        low, high = low.to(tl.float32, bitcast=True) - MAGIC_FLOAT, high.to(tl.float32, bitcast=True) - MAGIC_FLOAT
    return low * d_low, high * d_high


@triton.jit
def _multiply(loaded, x, start, lane, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """A lane's part of the product of a row with a token."""
    chunks, minima = loaded
    x_chunks, x_sums, table = x
    acc = tl.zeros_like(x_chunks[0][2])
    for j in tl.static_range(len(chunks)):
        codes, scales = chunks[j]
        low, high = _product(codes, *x_chunks[j], start, table, lane % 4, LAYOUT, ASM)
        if LAYOUT.two_level:  # `byte_float` is 2^23 + a byte; to signed bytes 128 is added before
            small, zero = (scales[0] & 0x3F3F, 8388608.0) if LAYOUT.has_min else (scales[0] ^ 0x8080, 8388736.0)
            s_low, s_high = byte_float((small,), 0, ASM) - zero, byte_float((small,), 1, ASM) - zero
            acc += half_pair(scales[1])[0] * (low * s_low + high * s_high)
        else:
            s_low, s_high = half_pair(scales[0])
            acc += low * s_low + high * s_high
    for j in tl.static_range(len(minima)):
        low, upper, d = minima[j]
        upper = (upper | (upper << 8)) & 0x00FF00FF
        upper = (upper | (upper << 4)) & 0x0F0F0F0F
        small = ((low >> 6) & 0x03030303) | (upper << 2)
        total = (byte_float((small,), 0, ASM) - 8388608.0) * x_sums[j][0]
        for g in tl.static_range(1, 4):
            total += (byte_float((small,), g, ASM) - 8388608.0) * x_sums[j][g]
        acc -= half_pair(d)[1] * total
    return acc


@triton.jit
def _joined(parts):
    """1, 2 or 4 tensors [R, N] as one [R, N, 1, 2 or 4], in order."""
    COUNT: tl.constexpr = len(parts)
    if COUNT == 1:
        out = parts[0][:, :, None]
    elif COUNT == 2:
        out = tl.join(parts[0], parts[1])
    else:
        both = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))  # [R, N, 2, 2]
        out = tl.reshape(both, (both.shape[0], both.shape[1], COUNT))
    return out


@triton.constexpr_function
def _steps(shape):
    """Steps of shape.ahead times R rows that a program computes before it stores them."""
    if shape.epilogue == "":
        return 1
    return UNIT // shape.rows * (2 if shape.epilogue == "swiglu" else 1) // shape.ahead


@triton.jit
def _offset(s, p: tl.constexpr, stride, half, shape: tl.constexpr):
    """From a program's first row of a pass to the rows of part p of step s; for SwiGLU gate and up alternate."""
    q = s * shape.ahead + p
    if shape.epilogue == "swiglu":
        offset = q // 2 * shape.rows + q % 2 * half
    elif shape.epilogue == "rms_norm":
        offset = q * shape.rows
    else:
        offset = p * stride
    return offset


@triton.jit
def _factor(x, lane, LAYOUT: tl.constexpr, LANES: tl.constexpr):
    """One over the root mean square of the values that are normed, from sums of UNIT squares each."""
    COUNT: tl.constexpr = LAYOUT.kp // UNIT
    squares = tl.zeros_like(lane).to(tl.float32)
    for j in tl.static_range(_pieces(COUNT, LANES)):
        mask = None if COUNT % LANES == 0 else lane + j * LANES < COUNT
        squares += load_or_zero(x.squares + lane + j * LANES, mask)
    return 1 / tl.sqrt_rn(tl.sum(tl.sum(squares, 1), 0) / LAYOUT.kp + x.eps)


@triton.jit
def _quantize(value, out, unit, at):
    """Store values [R, UNIT / R] of a unit as codes with one scale."""
    largest = tl.max(tl.abs(value))
    inverse = tl.where(largest > 0, 127.0 / tl.where(largest > 0, largest, 1.0), 0.0)
    rounded = value * inverse + ROUND  # whose low bits are the code
    # a scale of 22 bits, whose product with MAGIC_FLOAT is exact
    scale = ((largest / 127.0).to(tl.int32, bitcast=True) & -4).to(tl.float32, bitcast=True)
    tl.store(out.codes + at, rounded.to(tl.int32, bitcast=True).to(tl.int8))
    tl.store(out.scale + unit, scale)
    tl.store(out.sums16 + unit, tl.sum(rounded - ROUND) * scale)


@triton.jit
def _step(rows, w, token, magic, row, s, there, stride, half, lane, shape: tl.constexpr, ASM: tl.constexpr):
    """The products [R, AHEAD] of loaded rows, and what is loaded in their place: the rows of step s from `row` on,
    those whose numbers are below `there`."""
    L: tl.constexpr = w.layout
    LANES: tl.constexpr = lane.shape[1]
    parts, later = (), ()
    for p in tl.static_range(shape.ahead):
        parts = parts + (_multiply(rows[p], token, magic, lane, L, ASM),)  # noqa: RUF005, [R, LANES]
        at = row + _offset(s, p, stride, half, shape)
        later = later + (_load(w, at, there, lane, LANES, ASM),)  # noqa: RUF005
        magic = here(magic, ASM)
    return tl.sum(_joined(parts), 1), later


@triton.jit
def _store(total, added, y, epilogue, row, own, at, n, weight, shape: tl.constexpr):
    """Store a pass's products [R, PARTS] plus `added`, or codes of them, or both."""
    R: tl.constexpr = shape.rows
    PARTS: tl.constexpr = total.shape[1]
    if shape.epilogue == "swiglu":
        gate, up = tl.split(tl.reshape(total, (R, PARTS // 2, 2)))
        of_unit = row + own + tl.arange(0, PARTS // 2)[None, :] * R
        _quantize(gate / (1 + tl.exp(-gate)) * up, epilogue, row // UNIT, of_unit)
    else:
        value = total + added
        tl.store(y.data + at, value, mask=at < n)
        if shape.epilogue == "rms_norm":
            _quantize(value * weight, epilogue, row // UNIT, at)
            tl.store(epilogue.squares + row // UNIT, tl.sum(value * value))


@triton.jit
def matvec_persistent_kernel(w, x, terms, y, epilogue, n, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr):
    """y f32 [1, N] = x W^T + terms; x is q8_1, or has a scale for each 16 values, with codes as int32.

    Of P programs, p has rows p R to p R + R - 1, those P R further on, and so on; shape.ahead times R are being loaded.
    With an `epilogue` it has UNIT results at a time instead, whose codes are stored: those of y times a norm's weight,
    or of SwiGLU of the first and the second half of y, which is not stored then.
    """
    if PDL:
        gdc_launch_dependents()
    L: tl.constexpr = w.layout
    LANES: tl.constexpr = 32 * shape.warps
    R: tl.constexpr = shape.rows
    AHEAD: tl.constexpr = shape.ahead
    STEPS: tl.constexpr = _steps(shape)
    PARTS: tl.constexpr = STEPS * AHEAD
    lane, own = tl.arange(0, LANES)[None, :], tl.arange(0, R)[:, None]
    stride = tl.num_programs(0) * R
    half = n // 2
    limit = half if shape.epilogue == "swiglu" else n
    first = tl.program_id(0) * (R if shape.epilogue == "" else UNIT)
    step_rows = stride * AHEAD if shape.epilogue == "" else tl.num_programs(0) * UNIT
    rows = ()
    for p in tl.static_range(AHEAD):
        rows = rows + (_load(w, first + _offset(0, p, stride, half, shape) + own, n, lane, LANES, ASM),)  # noqa: RUF005
    if L.table is None:
        table = 0
    elif L.bits == 4:
        table = magnitudes(L.table, (lane + n) >> 31)
    else:
        table = w.table
    if PDL:
        gdc_wait()
    x_chunks, x_sums = _token(x, lane, L, LANES, shape.fine, ASM)
    token = (x_chunks, x_sums, table)
    if x.squares is not None:
        factor = _factor(x, lane, L, LANES)
    magic = tl.full((R, LANES), MAGIC, tl.int32)
    for row in range(first, limit, step_rows):
        at = row + own + tl.arange(0, PARTS)[None, :] * (stride if shape.epilogue == "" else R)  # [R, PARTS]
        added, weight = tl.zeros((R, PARTS), tl.float32), 1.0
        for i in tl.static_range(len(terms)):
            added += tl.load(terms[i].data + at, mask=at < n, other=0.0)
        if w.factors is not None:
            of_row = tl.load(w.factors + at, mask=at < n, other=0.0)
        if shape.epilogue == "rms_norm":
            weight = tl.load(epilogue.weight + at)
        magic = here(magic, ASM)  # so that nothing waits for terms before the loads below
        total = tl.zeros((R, STEPS, AHEAD), tl.float32)
        for s in range(STEPS):
            last = s == STEPS - 1
            begin, there = tl.where(last, row + step_rows, row), tl.where(last & (row + step_rows >= limit), 0, n)
            of_step, rows = _step(
                rows, w, token, magic, begin + own, tl.where(last, 0, s + 1), there, stride, half, lane, shape, ASM
            )
            if STEPS == 1:
                total = of_step[:, None, :]
            else:
                total = tl.where(tl.arange(0, STEPS)[None, :, None] == s, of_step[:, None, :], total)
        if L.factor != 1.0:
            total *= L.factor
        if w.factors is not None:
            total *= tl.reshape(of_row, total.shape)
        if x.squares is not None:
            total *= factor
        _store(tl.reshape(total, (R, PARTS)), added, y, epilogue, row, own, at, n, weight, shape)
