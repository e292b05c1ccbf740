# mypy: ignore-errors
"""Products of a few tokens in int8 with 4-bit weights (W4A8), by int8 `mma.sync`; what each lane holds is written out.

Algorithm: `mmq.mma_kernel`'s fragments straight from memory, and warps that divide K, with a scale a token. Scales of
    groups multiply each group's int32 sums, which are added up in float32.
Tile:
    program   16 rows or more, all tokens; its warps take groups of 128 values of K in turn
    W [16 rows, 128] @ a^T [128, 8 tokens]   lane 4 g + t: rows g and g + 8, bytes 16 t to 16 t + 15 of a group's 64
    a                                        the values that these bytes' low codes and high codes multiply
    acc       [16 rows, 8 tokens] a warp, summed over warps at the end
Bound: bytes of the weights; not measured yet.
Tried: docs/log.md: "Few tokens of W4A8 do not like rings".
Twin: `octavo.ops.definition.w4a8_gemm`

Names: lane 4 g + t of a warp has g and t. A tensor of 32 values a warp is a register of each lane.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.mmq.mma_kernel import places, summed
from octavo.backends.gpu.matmul.mmq.mma_ptx import here, mma_onto
from octavo.backends.gpu.weights.loads import four

HIGH = tl.constexpr(-0x0F0F0F10)  # the upper four bits of each byte


@triton.jit
def _load(w, groups, rows, group, t, n, LENGTH: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr):
    """Four words of codes of each of a lane's rows, and their scales, of a group, or of the last one."""
    group = group if EVEN else tl.minimum(group, LENGTH // 16 - 1)
    out = ()
    for r in tl.static_range(len(rows)):
        scale = 0.0
        if groups is not None:
            scale = tl.load(groups + group * n + rows[r]).to(tl.float32)
        out = out + ((four(w + rows[r] * LENGTH + group * 16 + t * 4, 0, None, ASM), scale),)  # noqa: RUF005
    return out


@triton.jit
def _load_tokens(x, group, LENGTH: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr):
    """For pointers to a lane's values of tokens g, g + 8 and so on, what low and high codes of a group are multiplied
    with, four words each, or zeros where there is no group."""
    at = (group if EVEN else tl.minimum(group, LENGTH // 16 - 1)) * 32
    out = ()
    for j in tl.static_range(len(x)):
        low, high = four(x[j] + at, 0, None, ASM), four(x[j] + at, 4, None, ASM)
        if not EVEN:
            kept = tl.where(group < LENGTH // 16, -1, 0)
            low = (low[0] & kept, low[1] & kept, low[2] & kept, low[3] & kept)
            high = (high[0] & kept, high[1] & kept, high[2] & kept, high[3] & kept)
        out = out + ((low, high),)  # noqa: RUF005
    return out


@triton.jit
def _low(words):
    return (words[0] << 4) & HIGH, (words[1] << 4) & HIGH, (words[2] << 4) & HIGH, (words[3] << 4) & HIGH


@triton.jit
def _high(words):
    return words[0] & HIGH, words[1] & HIGH, words[2] & HIGH, words[3] & HIGH


@triton.jit
def _multiply(acc, loaded, tokens, GROUPED: tl.constexpr, SHAPE: tl.constexpr, ASM: tl.constexpr):
    """acc + the products of a group's codes with tokens, as loaded."""
    M: tl.constexpr = SHAPE.token_tiles
    out = ()
    zero = tl.zeros_like(loaded[0][0][0])
    for r in tl.static_range(SHAPE.row_tiles):
        upper, lower = loaded[2 * r], loaded[2 * r + 1]
        low, high = (_low(upper[0]), _low(lower[0])), (_high(upper[0]), _high(lower[0]))
        for j in tl.static_range(M):
            old = acc[r * M + j]
            sums = (zero, zero, zero, zero) if GROUPED else old
            sums = mma_onto(sums, low[0], low[1], tokens[j][0], ASM)  # [16, 64] @ [64, 8]
            sums = mma_onto(sums, high[0], high[1], tokens[j][1], ASM)  # [16, 64] @ [64, 8]
            if GROUPED:
                sums = (
                    tl.fma(sums[0].to(tl.float32), upper[1], old[0]), tl.fma(sums[1].to(tl.float32), upper[1], old[1]),
                    tl.fma(sums[2].to(tl.float32), lower[1], old[2]), tl.fma(sums[3].to(tl.float32), lower[1], old[3]),
                )
            out = out + (sums,)  # noqa: RUF005
    return out


@triton.jit
def w4a8_mma_kernel(
    w, scales, groups, x, x_scales, terms, y, n, n_tokens, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr
):
    """y f32 [n_tokens, N] = x W^T * x_scales * scales + terms; w and x are codes as int32 words, `groups` float16
    [K / 128, N] or None; shape is a W4A8MmaShape."""
    if PDL:
        gdc_launch_dependents()
    LENGTH: tl.constexpr = shape.k // 8
    WARPS: tl.constexpr = shape.warps
    STEPS: tl.constexpr = (LENGTH // 16 + WARPS - 1) // WARPS
    EVEN: tl.constexpr = LENGTH // 16 % WARPS == 0
    TILES: tl.constexpr = shape.row_tiles * shape.token_tiles
    GROUPED: tl.constexpr = groups is not None
    start = tl.program_id(0) * (16 * shape.row_tiles)
    thread = tl.arange(0, 32 * WARPS)
    g, t, warp = thread % 32 // 4, thread % 4, (thread // 32).to(tl.int64)
    rows = ()
    for r in tl.static_range(2 * shape.row_tiles):
        rows = rows + (tl.minimum(start + 8 * r + g, n - 1).to(tl.int64),)  # noqa: RUF005
    coming = _load(w, groups, rows, warp, t, n, LENGTH, EVEN, ASM)
    if PDL:
        gdc_wait()
    of_tokens = ()
    for j in tl.static_range(shape.token_tiles):
        token = tl.minimum(8 * j + g, n_tokens - 1).to(tl.int64)
        of_tokens = of_tokens + (x + token * (2 * LENGTH) + t * 4,)  # noqa: RUF005
    zero = tl.zeros((32 * WARPS,), tl.float32 if GROUPED else tl.int32)
    acc = ()
    for _ in tl.static_range(TILES):
        acc = acc + ((zero, zero, zero, zero),)  # noqa: RUF005
    AHEAD: tl.constexpr = shape.token_tiles <= 2  # registers
    tokens = _load_tokens(of_tokens, warp, LENGTH, EVEN, ASM)
    for i in tl.range(STEPS - 1):
        following = warp + (i + 1) * WARPS
        loaded = coming
        coming = _load(w, groups, rows, following, t, n, LENGTH, EVEN, ASM)
        if AHEAD:
            tokens_coming = _load_tokens(of_tokens, following, LENGTH, EVEN, ASM)
        t = here(t, ASM)
        acc = _multiply(acc, loaded, tokens, GROUPED, shape, ASM)
        tokens = tokens_coming if AHEAD else _load_tokens(of_tokens, following, LENGTH, EVEN, ASM)
    acc = _multiply(acc, coming, tokens, GROUPED, shape, ASM)
    PAIR: tl.constexpr = 2 if TILES > 1 else 1  # tiles that are added up at once
    for i in tl.static_range(0, TILES, PAIR):
        total = summed(acc[i], acc[i + PAIR - 1], WARPS, PAIR).to(tl.float32)  # [32, 2, 2, PAIR]
        row, token = places(i, start, shape, PAIR)
        inside = (row < n) & (token < n_tokens)
        of_row = tl.load(scales + row, mask=inside, other=0.0) * (1 / 16)
        total *= tl.load(x_scales + token, mask=inside, other=0.0) * of_row
        at = token.to(tl.int64)
        for j in tl.static_range(len(terms)):
            term = tl.load(terms[j].data + at * terms[j].stride + row, mask=inside, other=0.0)
            total += term.to(tl.float32)
        tl.store(y.data + at * y.stride + row, total, mask=inside)
