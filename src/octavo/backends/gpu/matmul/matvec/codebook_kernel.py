# mypy: ignore-errors
"""Products with few tokens of weights that have a grid, or whose codes are digits: each thread decodes whole pieces of
some rows. A piece is a chunk, or a lane's chunks of both tiles of a block of digits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.launch.arguments import Q8Activation
from octavo.backends.gpu.matmul.matvec.int8_dot import MAGIC, MAGIC_FLOAT, dot4, scaled
from octavo.backends.gpu.weights.decode_codebook import (
    codes_of_chunk,
    in_shared_memory,
    load_chunk,
    own_copy,
    scales_of_chunk,
)
from octavo.backends.gpu.weights.decode_ternary import codes_of_piece, load_piece
from octavo.backends.gpu.weights.loads import four, load_or_zero


@triton.constexpr_function
def _pieces(layout):
    """Pieces of a row."""
    return layout.kp // (64 if layout.digits else 32)


@triton.jit
def _load(w, rows, lane, STEP: tl.constexpr, LANES: tl.constexpr):
    """Piece STEP of a thread of each of its rows: what its codes are in, and scales, which are 0 past a row's end."""
    L: tl.constexpr = w.layout
    piece = STEP * LANES + lane
    mask = None
    PIECES: tl.constexpr = _pieces(L)
    if (STEP + 1) * LANES > PIECES:
        mask = piece < PIECES
    out = ()
    for r in tl.static_range(len(rows)):
        if L.digits:
            d = load_or_zero(w.scale + rows[r] * (L.kp // L.group) + piece * 64 // L.group, mask)
            loaded = (load_piece(w, rows[r], piece, mask), d)
        else:
            loaded = (load_chunk(w, rows[r], piece, mask), scales_of_chunk(w, rows[r], piece, mask))
        out = out + (loaded,)  # noqa: RUF005
    return out


@triton.jit
def _load_chunk_of_token(x, token: tl.constexpr, chunk, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """A token's low and high codes of a chunk: (four words, their scale, what a sum of products begins below) of each.

    A sum begins at MAGIC, and above the codes' sum times the offset.
    """
    at = token * (LAYOUT.kp // 16) + (chunk // 4) * 8 + chunk % 4
    group = (chunk // 4) * 4 + (chunk % 4) // 2
    out = ()
    for p in tl.static_range(2):
        words, d = four(x.codes, at + 4 * p, None, ASM), tl.load(x.scale + token + (group + 2 * p) * x.stride)
        begin = tl.full(chunk.shape, MAGIC, tl.int32)
        for i in tl.static_range(4 if LAYOUT.offset else 0):
            begin = dot4(tl.full(chunk.shape, 0x01010101 * LAYOUT.offset, tl.int32), words[i], begin, ASM)
        out = out + ((words, d, begin.to(tl.float32, bitcast=True)),)  # noqa: RUF005
    return out


@triton.jit
def _load_token(x, token: tl.constexpr, lane, STEP: tl.constexpr, LAYOUT: tl.constexpr, LANES: tl.constexpr,
                ASM: tl.constexpr):
    """A token's part for piece STEP of a thread, by sixteen codes as `_load_chunk_of_token` has them."""
    piece = tl.minimum(STEP * LANES + lane, _pieces(LAYOUT) - 1)
    if LAYOUT.digits:
        chunk = piece // 4 * 8 + piece % 4
        out = _load_chunk_of_token(x, token, chunk, LAYOUT, ASM)
        out = out + _load_chunk_of_token(x, token, chunk + 4, LAYOUT, ASM)
    else:
        out = _load_chunk_of_token(x, token, piece, LAYOUT, ASM)
    return out


@triton.jit
def _codes_of(loaded, points, t, LAYOUT: tl.constexpr, COPIES: tl.constexpr, ASM: tl.constexpr):
    """The codes of a piece, by sixteen."""
    out = ()
    if LAYOUT.digits:
        for i in tl.static_range(0, 16, 4):
            out = out + (codes_of_piece(loaded, t, i, ASM),)  # noqa: RUF005
    else:
        for p in tl.static_range(2):
            out = out + (codes_of_chunk(loaded, points, p, LAYOUT, COPIES, ASM),)  # noqa: RUF005
    return out


@triton.jit
def _dot(codes, x, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """The sum of the products of four words of weights, less their offset, and of a token, times its scale."""
    words, d, begin = x
    total = tl.full(codes[0].shape, MAGIC, tl.int32)
    for i in tl.static_range(4):
        total = dot4(codes[i], words[i], total, ASM)
    if LAYOUT.offset:
        out = (total.to(tl.float32, bitcast=True) - begin) * d
    else:
        out = scaled(total, d, d * -MAGIC_FLOAT)
    return out


@triton.jit
def _product(codes, x, scale, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """A piece's products with a token."""
    low, high = _dot(codes[0], x[0], LAYOUT, ASM), _dot(codes[1], x[1], LAYOUT, ASM)
    if LAYOUT.digits:
        low, high = low + _dot(codes[2], x[2], LAYOUT, ASM), high + _dot(codes[3], x[3], LAYOUT, ASM)
        out = (low + high) * scale.to(tl.float32)
    else:
        out = low * scale[0] + high * scale[1]
    return out


@triton.jit
def _multiply(acc, loaded, x, points, lane, STEP: tl.constexpr, TOKENS: tl.constexpr, LAYOUT: tl.constexpr,
              shape: tl.constexpr, ASM: tl.constexpr):
    """acc, a sum for each token and row, + the products of piece STEP of each thread."""
    tokens = ()
    for t in tl.static_range(TOKENS):
        tokens = tokens + (_load_token(x, t, lane, STEP, LAYOUT, shape.lanes, ASM),)  # noqa: RUF005
    codes = ()
    for r in tl.static_range(shape.rows):
        codes = codes + (_codes_of(loaded[r][0], points, lane % 4, LAYOUT, shape.copies, ASM),)  # noqa: RUF005
    out = ()
    for t in tl.static_range(TOKENS):
        for r in tl.static_range(shape.rows):
            total = acc[t * shape.rows + r] + _product(codes[r], tokens[t], loaded[r][1], LAYOUT, ASM)
            out = out + (total,)  # noqa: RUF005
    return out


@triton.jit
def grid_matvec_kernel(
    w, x, experts, terms, y, n, TOKENS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr
):
    """y f32 [TOKENS, N] = x W^T + terms, as `matvec_kernel` has it. shape.lanes threads share rows, shape.groups of
    such threads have shape.rows each, and shape.prefetch pieces are loaded before an earlier kernel is waited for."""
    if PDL:
        gdc_launch_dependents()
    LAYOUT: tl.constexpr = w.layout
    LANES: tl.constexpr = shape.lanes
    GROUPS: tl.constexpr = shape.groups
    STEPS: tl.constexpr = (_pieces(LAYOUT) + LANES - 1) // LANES
    thread = tl.arange(0, GROUPS * LANES)
    lane = thread % LANES
    start = tl.program_id(0) * (GROUPS * shape.rows)
    base = 0
    out_row = y.data
    if experts is not None:
        if PDL:
            gdc_wait()
        pair = tl.program_id(1)
        base = tl.load(experts.ids + pair).to(tl.int64) * n
        token = pair // experts.sharing
        out_row += pair.to(tl.int64) * y.stride
        codes = x.codes + token.to(tl.int64) * (LAYOUT.kp // 4)
        x = Q8Activation(codes, x.scale + token, x.sums, x.sums16, x.stride)
    rows = ()
    for r in tl.static_range(shape.rows):
        row = tl.minimum(start + r * GROUPS + thread // LANES, n - 1).to(tl.int64)
        rows = rows + (row + base,)  # noqa: RUF005
    ahead = ()
    for i in tl.static_range(shape.prefetch):
        ahead = ahead + (_load(w, rows, lane, i, LANES),)  # noqa: RUF005
    points = w.points
    if shape.copies > 0:
        points = in_shared_memory(w.points, thread, LAYOUT.grid.count, shape.copies, GROUPS * LANES)
        points = own_copy(points, thread, shape.copies)
    if PDL and experts is None:
        gdc_wait()
    acc = ()
    for _ in tl.static_range(TOKENS * shape.rows):
        acc = acc + (tl.zeros((GROUPS * LANES,), tl.float32),)  # noqa: RUF005
    for i in tl.static_range(shape.prefetch):
        acc = _multiply(acc, ahead[i], x, points, lane, i, TOKENS, LAYOUT, shape, ASM)
    for i in tl.static_range(shape.prefetch, STEPS):
        loaded = _load(w, rows, lane, i, LANES)
        acc = _multiply(acc, loaded, x, points, lane, i, TOKENS, LAYOUT, shape, ASM)
    for t in tl.static_range(TOKENS):
        for r in tl.static_range(shape.rows):
            out = tl.sum(tl.reshape(acc[t * shape.rows + r], (GROUPS, LANES)), 1)  # [GROUPS]
            if LAYOUT.factor != 1.0:
                out *= LAYOUT.factor
            at = start + r * GROUPS + tl.arange(0, GROUPS)
            for i in tl.static_range(len(terms)):
                out += tl.load(terms[i].data + t * terms[i].stride + at, mask=at < n, other=0.0)  # [GROUPS]
            tl.store(out_row + t * y.stride + at, out, mask=at < n)
