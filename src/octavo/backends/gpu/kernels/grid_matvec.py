"""Products with few tokens of weights that have a grid: each thread decodes whole chunks of some rows."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.arguments import Q8Activation
from octavo.backends.gpu.kernels.grid import codes_of_chunk, in_shared_memory, load_chunk, scales_of_chunk
from octavo.backends.gpu.kernels.int8_dot import MAGIC, MAGIC_FLOAT, dot4, scaled
from octavo.backends.gpu.kernels.loads import four


@triton.jit
def _load(w, rows, lane, STEP: tl.constexpr, LANES: tl.constexpr):
    """Chunk STEP of a thread of each of its rows: numbers, marks and scales, which are 0 past the end of a row."""
    CHUNKS: tl.constexpr = w.layout.kp // 32
    chunk = STEP * LANES + lane
    mask = None
    if (STEP + 1) * LANES > CHUNKS:
        mask = chunk < CHUNKS
    out = ()
    for r in tl.static_range(len(rows)):
        out = out + ((load_chunk(w, rows[r], chunk, mask), scales_of_chunk(w, rows[r], chunk, mask)),)  # noqa: RUF005
    return out


@triton.jit
def _load_token(x, token: tl.constexpr, lane, STEP: tl.constexpr, LAYOUT: tl.constexpr, LANES: tl.constexpr,
                ASM: tl.constexpr):  # fmt: skip
    """A token's codes and scales for chunk STEP of a thread: four words and a scale, of low codes and of high ones."""
    chunk = tl.minimum(STEP * LANES + lane, LAYOUT.kp // 32 - 1)
    at = token * (LAYOUT.kp // 16) + (chunk // 4) * 8 + chunk % 4
    low, high = four(x.codes, at, None, ASM), four(x.codes, at + 4, None, ASM)
    group = (chunk // 4) * 4 + (chunk % 4) // 2
    return low, high, tl.load(x.scale + token + group * x.stride), tl.load(x.scale + token + (group + 2) * x.stride)


@triton.jit
def _dot(codes, x, d, ASM: tl.constexpr):
    """The sum of the products of four words of weights and of a token, times its scale."""
    total = tl.full(codes[0].shape, MAGIC, tl.int32)
    for i in tl.static_range(4):
        total = dot4(codes[i], x[i], total, ASM)
    return scaled(total, d, d * -MAGIC_FLOAT)


@triton.jit
def _multiply(acc, loaded, x, points, lane, STEP: tl.constexpr, TOKENS: tl.constexpr, LAYOUT: tl.constexpr,
              shape: tl.constexpr, ASM: tl.constexpr):  # fmt: skip
    """acc, a sum for each token and row, + the products of chunk STEP of each thread."""
    tokens = ()
    for t in tl.static_range(TOKENS):
        tokens = tokens + (_load_token(x, t, lane, STEP, LAYOUT, shape.lanes, ASM),)  # noqa: RUF005
    codes = ()
    for r in tl.static_range(shape.rows):
        low = codes_of_chunk(loaded[r][0], points, 0, LAYOUT, shape.copies, ASM)
        high = codes_of_chunk(loaded[r][0], points, 1, LAYOUT, shape.copies, ASM)
        codes = codes + ((low, high),)  # noqa: RUF005
    out = ()
    for t in tl.static_range(TOKENS):
        x_low, x_high, d_low, d_high = tokens[t]
        for r in tl.static_range(shape.rows):
            s_low, s_high = loaded[r][1]
            low, high = _dot(codes[r][0], x_low, d_low, ASM), _dot(codes[r][1], x_high, d_high, ASM)
            out = out + (acc[t * shape.rows + r] + (low * s_low + high * s_high),)  # noqa: RUF005
    return out


@triton.jit
def grid_matvec_kernel(
    w, x, experts, terms, y, n, TOKENS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr
):
    """y f32 [TOKENS, N] = x W^T + terms, as `matvec_kernel` has it. shape.lanes threads share rows, shape.groups of
    such threads have shape.rows each, and shape.prefetch chunks are loaded before an earlier kernel is waited for."""
    if PDL:
        gdc_launch_dependents()
    LAYOUT: tl.constexpr = w.layout
    LANES: tl.constexpr = shape.lanes
    GROUPS: tl.constexpr = shape.groups
    STEPS: tl.constexpr = (LAYOUT.kp // 32 + LANES - 1) // LANES
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
