"""Products of one token with 4 or 6 bits in two levels of scales, whose lanes keep their part of the token in registers
and take row after row of the weights.

A program has a lane for each chunk of 32 codes (`layout`), or for up to four of them. As many programs run as there is
room for. The next two rows of each are under way, the first two before an earlier kernel's results are waited for.
Minima need no codes: a lane takes those of a tile of 128 values, whatever chunks it has.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.decode import field, half_pair, left_of
from octavo.backends.gpu.kernels.int8_dot import MAGIC, MAGIC_FLOAT, dot4
from octavo.backends.gpu.kernels.loads import four, load_or_zero
from octavo.backends.gpu.kernels.mmq_mma.decode import byte_float
from octavo.backends.gpu.kernels.mmq_mma.ptx import here


@triton.jit
def _words(pointer, wanted, ASM: tl.constexpr):
    """Four int32 words from `pointer` on, which is to int32; anything unless they are wanted."""
    if ASM == "ptx":
        out = tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $5, 0; @p ld.global.v4.b32 {$0, $1, $2, $3}, [$4]; }",
            "=r,=r,=r,=r,l,r", [pointer.to(tl.int64), wanted.to(tl.int32)],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
        )  # fmt: skip
    else:
        out = four(pointer, 0, wanted, ASM)
    return out


@triton.jit
def _bits(pointer, wanted, ASM: tl.constexpr):
    """The 16 or 32 bits at `pointer`, as an int32; anything unless they are wanted."""
    WIDTH: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth
    if ASM == "ptx":
        CODE: tl.constexpr = (
            "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p ld.global." + ("u16" if WIDTH == 16 else "b32") + " $0, [$1]; }"
        )
        out = tl.inline_asm_elementwise(
            CODE, "=r,l,r", [pointer.to(tl.int64), wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
        )
    elif WIDTH == 16:
        out = load_or_zero(pointer.to(tl.pointer_type(tl.int16)), wanted).to(tl.int32) & 0xFFFF
    else:
        out = load_or_zero(pointer.to(tl.pointer_type(tl.int32)), wanted)
    return out


@triton.constexpr_function
def _pieces(count, lanes):
    return -(-count // lanes)


@triton.jit
def _place(lane, j: tl.constexpr, COUNT: tl.constexpr, LANES: tl.constexpr):
    """A lane's place among the LANES from j * LANES on; the last of COUNT for those beyond."""
    return lane if (j + 1) * LANES <= COUNT else tl.minimum(lane, COUNT - 1 - j * LANES)


@triton.jit
def _load(w, row, n, lane, LANES: tl.constexpr, ASM: tl.constexpr):
    """A lane's part of a row, if there is such a row: codes and scales of its chunks, and minima of its tiles.

    Addresses are what a lane has of them, then the row's, then a constant, so that each costs an instruction at most.
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
        codes = (_words(w.codes4 + at * 4 + row * (L.kp // 8) + j * LANES * 4, wanted, ASM),)
        if L.bits == 6:
            of_lane = w.codes2 + (at // 4 * 8 + at % 2 * 4) + row * (L.kp // 16) + j * LANES * 2
            codes = codes + (_words(of_lane, wanted, ASM),)  # noqa: RUF005
        small = w.small + at * 16 // L.group + row * PAIRS + j * LANES * 16 // L.group
        d = w.scale + at * 32 // L.super + row * (L.kp // L.super) + j * LANES * 32 // L.super
        scales = (_bits(small, wanted, ASM), _bits(d, wanted, ASM))
        chunks = chunks + ((codes, scales),)  # noqa: RUF005
    minima = ()
    if L.has_min:
        for j in tl.static_range(_pieces(TILES, LANES)):
            at = _place(lane, j, TILES, LANES)
            low = w.small.to(tl.pointer_type(tl.int32)) + at + row * TILES + j * LANES
            upper = w.rest.to(tl.pointer_type(tl.int16)) + at + row * TILES + j * LANES
            d = w.scale + at // 2 + row * (TILES // 2) + j * LANES // 2
            minima = minima + ((_bits(low, wanted, ASM), _bits(upper, wanted, ASM), _bits(d, wanted, ASM)),)  # noqa: RUF005
    return chunks, minima


@triton.jit
def _token(x, lane, LAYOUT: tl.constexpr, LANES: tl.constexpr, ASM: tl.constexpr):
    """A lane's part of the token: for each chunk its codes and scales, for each tile the sums of its groups."""
    CHUNKS: tl.constexpr = LAYOUT.kp // 32
    TILES: tl.constexpr = LAYOUT.kp // 128
    chunks = ()
    for j in tl.static_range(_pieces(CHUNKS, LANES)):
        chunk = _place(lane, j, CHUNKS, LANES) + j * LANES
        mask = None if CHUNKS % LANES == 0 else lane + j * LANES < CHUNKS
        at = chunk // 4 * 8 + chunk % 4
        low, high = four(x.codes, at, None, ASM), four(x.codes, at + 4, None, ASM)
        group = chunk // 4 * 4 + chunk % 4 // 2
        d_low = load_or_zero(x.scale + group * x.stride, mask)
        d_high = load_or_zero(x.scale + (group + 2) * x.stride, mask)
        if LAYOUT.bits == 4:
            d_high *= 0.0625  # high codes are taken as they lie, 16 times as large
        chunks = chunks + ((low, high, d_low, d_high),)  # noqa: RUF005
    sums = ()
    if LAYOUT.has_min:
        for j in tl.static_range(_pieces(TILES, LANES)):
            tile = _place(lane, j, TILES, LANES) + j * LANES
            mask = None if TILES % LANES == 0 else lane + j * LANES < TILES
            of_groups = ()
            for g in tl.static_range(4):  # as minima lie: groups 0, 2, 1, 3
                at = x.sums + (tile * 4 + g // 2 + g % 2 * 2) * x.stride
                of_groups = of_groups + (load_or_zero(at, mask),)  # noqa: RUF005
            sums = sums + (of_groups,)  # noqa: RUF005
    return chunks, sums


@triton.jit
def _dot(codes, x, total, i: tl.constexpr, t, P: tl.constexpr, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """total + the dot product of word i of a lane's codes of half P of a tile with a token's word x; `t` is the number
    of its chunk in the tile."""
    if LAYOUT.bits == 6:
        two = field(codes[1][i] >> (t // 2 * 4), left_of(LAYOUT, 2), 2, 2 * P)
        total = dot4(field(codes[0][i], left_of(LAYOUT, 4), 4, 4 * P) | two, x, total, ASM)
    elif ASM == "ptx":
        word = codes[0][i] & (0x0F0F0F0F if P == 0 else -0x0F0F0F10)
        total = tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [word, x, total], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        total += dot4((codes[0][i] >> (4 * P)) & 0x0F0F0F0F, x, tl.zeros_like(x), ASM) * (1 if P == 0 else 16)
    return total


@triton.jit
def _product(codes, x_low, x_high, d_low, d_high, start, t, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """Products of a lane's low and high codes of a chunk with a token's, in float32; `start` is MAGIC."""
    low, high = start, start
    for i in tl.static_range(4):
        low = _dot(codes, x_low[i], low, i, t, 0, LAYOUT, ASM)
        high = _dot(codes, x_high[i], high, i, t, 1, LAYOUT, ASM)
    low, high = low.to(tl.float32, bitcast=True) - MAGIC_FLOAT, high.to(tl.float32, bitcast=True) - MAGIC_FLOAT
    return low * d_low, high * d_high


@triton.jit
def _multiply(loaded, x, start, t, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """A lane's part of the product of a row with a token."""
    chunks, minima = loaded
    x_chunks, x_sums = x
    acc = tl.zeros_like(x_chunks[0][2])
    for j in tl.static_range(len(chunks)):
        codes, scales = chunks[j]
        low, high = _product(codes, *x_chunks[j], start, t, LAYOUT, ASM)
        small, zero = (scales[0] & 0x3F3F, 8388608.0) if LAYOUT.has_min else (scales[0] ^ 0x8080, 8388736.0)
        s_low, s_high = byte_float((small,), 0, ASM) - zero, byte_float((small,), 1, ASM) - zero
        acc += half_pair(scales[1])[0] * (low * s_low + high * s_high)
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
def matvec_stream_kernel(w, x, terms, y, n, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr):
    """y f32 [1, N] = x W^T + terms; x is q8_1 with codes as int32. Of P programs p has rows p, p + P, ..., two at a
    time."""
    if PDL:
        gdc_launch_dependents()
    L: tl.constexpr = w.layout
    LANES: tl.constexpr = 32 * shape.warps
    lane, programs, first = tl.arange(0, LANES), tl.num_programs(0), tl.program_id(0)
    one = _load(w, first, n, lane, LANES, ASM)
    other = _load(w, first + programs, n, lane, LANES, ASM)
    if PDL:
        gdc_wait()
    token, t = _token(x, lane, L, LANES, ASM), lane % 4
    magic = tl.full((LANES,), MAGIC, tl.int32)
    for row in range(first, n, 2 * programs):
        at = row + tl.arange(0, 2)[None, :] * programs
        added = tl.zeros((1, 2), tl.float32)
        for i in tl.static_range(len(terms)):
            added += tl.load(terms[i].data + at, mask=at < n, other=0.0)  # [1, 2]
        magic = here(magic, ASM)  # so that nothing waits for terms before the loads below
        of_one = _multiply(one, token, magic, t, L, ASM)  # [LANES]
        one = _load(w, row + 2 * programs, n, lane, LANES, ASM)
        magic = here(magic, ASM)
        of_other = _multiply(other, token, magic, t, L, ASM)  # [LANES]
        other = _load(w, row + 3 * programs, n, lane, LANES, ASM)
        magic = here(magic, ASM)
        total = tl.sum(tl.join(of_one, of_other)[:, None, :], 0)  # [1, 2]
        if L.factor != 1.0:
            total *= L.factor
        tl.store(y.data + at, total + added, mask=at < n)
