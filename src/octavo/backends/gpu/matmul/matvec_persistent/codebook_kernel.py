# mypy: ignore-errors
"""Products of one token with points of four values: a lane keeps a tile of the token in registers and takes row after
row of the weights, as many programs as there is room for.

All that a tile of 128 values needs lies together in each plane, so that a row takes few loads. Warps wait for one
another only where several share a row. Points lie in shared memory; with no copies there, in memory.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.matvec.int8_dot import MAGIC, MAGIC_FLOAT, dot4
from octavo.backends.gpu.matmul.matvec_persistent.loads import bits_at, four_words
from octavo.backends.gpu.matmul.mmq.mma_decode import byte_float
from octavo.backends.gpu.matmul.mmq.mma_ptx import here
from octavo.backends.gpu.weights.decode import half_pair
from octavo.backends.gpu.weights.decode_codebook import in_shared_memory, number_of
from octavo.backends.gpu.weights.loads import four, load_or_zero


@triton.jit
def _load(w, row, n, lane, ASM: tl.constexpr):
    """A lane's tile of each row, if there is such a row: words of numbers and of marks, upper bits of numbers, small
    scales, and d.

    Addresses are what a lane has of them, then the row's, then a constant, which costs nothing.
    """
    L: tl.constexpr = w.layout
    TILES: tl.constexpr = L.kp // 128
    wanted = (lane < TILES) & (row < n)
    row = row.to(tl.int64)
    of_lane = w.low + lane * 8 + row * (TILES * 8)
    low = four_words(of_lane, 0, wanted, ASM) + four_words(of_lane, 4, wanted, ASM)
    marks = four_words(w.marks + lane * 4 + row * (TILES * 4), 0, wanted, ASM)
    upper = 0
    if L.grid.more > 0:
        upper = bits_at(w.upper + lane + row * TILES, 0, wanted, ASM)
    small = w.small.to(tl.pointer_type(tl.int32 if L.group == 16 else tl.int16))
    small = bits_at(small + lane + row * TILES, 0, wanted, ASM)
    d = bits_at(w.scale + lane * 128 // L.super + row * (L.kp // L.super), 0, wanted, ASM)
    return low, marks, upper, small, d


@triton.jit
def _token(x, lane, TILES: tl.constexpr, ASM: tl.constexpr):
    """A lane's tile of the token: 32 words of codes, and a scale for each 32 values."""
    at = tl.minimum(lane, TILES - 1)
    words, scales = (), ()
    for i in tl.static_range(8):
        words = words + four(x.codes, at * 8 + i, None, ASM)
    for i in tl.static_range(4):
        scales = scales + (load_or_zero(x.scale + (at * 4 + i) * x.stride, lane < TILES),)  # noqa: RUF005
    return words, scales


@triton.jit
def _point(points, number, own, COPIES: tl.constexpr):
    """The word of a point; with COPIES, `points` is a place in shared memory, and `own` a thread's copy in bytes."""
    if COPIES > 0:
        place = number * (4 * COPIES) + own
        word = tl.inline_asm_elementwise(
            "{ .reg .b32 a; add.u32 a, $1, $2; ld.shared.b32 $0, [a]; }", "=r,r,r", [place, points],
            dtype=tl.int32, is_pure=False, pack=1,
        )
    else:
        word = tl.load(points + number)
    return word


@triton.jit
def _negative(marks, POINT: tl.constexpr, ASM: tl.constexpr):
    """255 in each byte for which a chunk's marks say that a value of point POINT is negative."""
    if ASM == "ptx":
        out = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $1, 0xBA98;", "=r,r", [marks << (7 - POINT)], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        out = ((marks >> POINT) & 0x01010101) * 255
    return out


@triton.jit
def _dot(total, less, loaded, x, points, own, J: tl.constexpr, POINT: tl.constexpr, COPIES: tl.constexpr,
         LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """total + the products of point POINT of chunk J with a token's codes; less `less` where values are not odd."""
    G: tl.constexpr = LAYOUT.grid
    low, marks, upper = loaded
    WORD: tl.constexpr = J * 2 + POINT // 4
    if G.more > 0:
        upper = (upper >> WORD) & 0x01010101
    number = number_of(low[WORD], upper, POINT % 4, G.more, ASM)
    point = _point(points, number, own, COPIES)
    of_x = x[POINT % 2 * 16 + J * 4 + POINT // 2]
    mask = _negative(marks[J], POINT, ASM)
    if G.odd:  # whose negative differs in all bits but the lowest
        total = dot4(point ^ (mask & -0x01010102), of_x, total, ASM)
    else:
        total, less = dot4(point ^ mask, of_x, total, ASM), dot4(mask, of_x, less, ASM)
    return total, less


@triton.jit
def _multiply(loaded, x, points, own, start, COPIES: tl.constexpr, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """A lane's part of the product of a row with a token; `start` is MAGIC."""
    low, marks, upper, small, d = loaded
    words, d_x = x
    MERGED: tl.constexpr = LAYOUT.group == 32  # chunks in pairs, which share both scales
    nibbles = ((small & 0x0F0F0F0F) * 2 + 0x01010101, ((small >> 4) & 0x0F0F0F0F) * 2 + 0x01010101)
    acc = tl.zeros_like(d_x[0])
    for p in tl.static_range(2):
        total, less = start, tl.zeros_like(start)
        for j in tl.static_range(4):
            for i in tl.static_range(4):
                total, less = _dot(
                    total, less, (low, marks, upper), words, points, own, j, 2 * i + p, COPIES, LAYOUT, ASM
                )
            if j % 2 == 1 or not MERGED:
                product = (total - less).to(tl.float32, bitcast=True) - MAGIC_FLOAT
                scale = byte_float((nibbles[p],), j * 16 // LAYOUT.group, ASM) - 8388608.0
                acc += product * (scale * d_x[2 * p + j // 2])
                total, less = start, tl.zeros_like(start)
    return acc * half_pair(d)[0]


@triton.constexpr_function
def _warp_sum_ptx():
    """PTX that adds a float of each lane of a warp to those of all."""
    steps = "".join(
        f" shfl.sync.bfly.b32 t, s, {apart}, 31, 0xffffffff; add.f32 s, s, t;" for apart in (16, 8, 4, 2, 1)
    )
    return f"{{ .reg .f32 s, t; mov.f32 s, $1;{steps} mov.f32 $0, s; }}"


@triton.jit
def _warp_sums(value, WARPS: tl.constexpr, ASM: tl.constexpr):
    """In each lane of value [R, 32 WARPS] the sum of its warp's; nothing leaves a warp."""
    if ASM == "ptx":
        CODE: tl.constexpr = _warp_sum_ptx()
        out = tl.inline_asm_elementwise(CODE, "=f,f", [value], dtype=tl.float32, is_pure=False, pack=1)
    else:
        R: tl.constexpr = value.shape[0]
        total = tl.sum(tl.reshape(value, (R, WARPS, 32)), 2)
        out = tl.reshape(tl.broadcast_to(total[:, :, None], (R, WARPS, 32)), (R, WARPS * 32))
    return out


@triton.jit
def _sums(terms, row, wanted, ASM: tl.constexpr):
    """The sums of what is added to the products of rows, 0 where they aren't wanted."""
    out = tl.zeros(row.shape, tl.float32)
    for i in tl.static_range(len(terms)):
        term = bits_at(terms[i].data + row.to(tl.int64), 0, wanted, ASM).to(tl.float32, bitcast=True)
        out += tl.where(wanted, term, 0.0)
    return out


@triton.jit
def _store(y, row, n, value, ASM: tl.constexpr):
    """Store the value of each row, if there is such a row, from the thread that has it."""
    if ASM == "ptx":
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.f32 [$1], $2; mov.u32 $0, 0; }", "=r,l,r,r",
            [(y + row.to(tl.int64)).to(tl.int64), value, (row < n).to(tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )
    else:
        tl.store(y + row, value, mask=row < n)


@triton.jit
def _finish(loaded, token, points, own, start, kept, turn, lane, shape: tl.constexpr, LAYOUT: tl.constexpr,
            ASM: tl.constexpr):
    """kept, and in lane `turn` of each warp its part of the products of the rows that `_load` has."""
    total = _multiply(loaded, token, points, own, start, shape.copies, LAYOUT, ASM)  # [R, LANES]
    if LAYOUT.factor != 1.0:
        total *= LAYOUT.factor
    if LAYOUT.kp // 128 < total.shape[1]:
        total = tl.where(lane < LAYOUT.kp // 128, total, 0.0)
    return kept + tl.where(lane % 32 == turn, _warp_sums(total, shape.warps, ASM), 0.0)


@triton.jit
def points_stream_kernel(w, x, terms, y, n, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr):
    """y f32 [1, N] = x W^T + terms; x is q8_1 with codes as int32.

    Of P programs p has rows p R to p R + R - 1, those P R further on, and so on. A row is multiplied while the next is
    on its way. Two turns are one pass of a loop, and only one row of a warp is kept to the next pass: a compiler has a
    loop wait at its begin for all that the pass before has loaded, so that with both kept each row would wait for one
    just asked for. Lane t of a warp keeps its part of turn t; after 32 turns warps that share rows add theirs.
    """
    if PDL:
        gdc_launch_dependents()
    L: tl.constexpr = w.layout
    LANES: tl.constexpr = 32 * shape.warps
    R: tl.constexpr = shape.rows
    lane, of_program = tl.arange(0, LANES)[None, :], tl.arange(0, R)[:, None]
    stride = tl.num_programs(0) * R
    now = _load(w, tl.program_id(0) * R + of_program, n, lane, ASM)
    points, own = w.points, 0
    if shape.copies > 0:
        points = in_shared_memory(w.points, tl.arange(0, R * LANES), L.grid.count, shape.copies, R * LANES)
        own = lane % shape.copies * 4
    if PDL:
        gdc_wait()
    token = _token(x, lane, L.kp // 128, ASM)
    magic = tl.full((R, LANES), MAGIC, tl.int32)
    for begin in range(tl.program_id(0) * R, n, 32 * stride):
        of_lane = begin + of_program + lane % 32 * stride  # the row whose product a lane keeps
        kept = _sums(terms, of_lane, (of_lane < n) & (lane < 32), ASM)
        for turn in range(0, tl.minimum(32, tl.cdiv(n - begin, stride)), 2):
            row = begin + turn * stride + of_program
            following = _load(w, row + stride, n, lane, ASM)
            magic = here(magic, ASM)
            kept = _finish(now, token, points, own, magic, kept, turn, lane, shape, L, ASM)
            now = _load(w, row + 2 * stride, n, lane, ASM)
            magic = here(magic, ASM)
            kept = _finish(following, token, points, own, magic, kept, turn + 1, lane, shape, L, ASM)
        if shape.warps > 1:
            kept = tl.sum(tl.reshape(kept, (R, shape.warps, 32)), 1)
            of_lane = begin + of_program + tl.arange(0, 32)[None, :] * stride
        _store(y.data, of_lane, n, kept, ASM)
