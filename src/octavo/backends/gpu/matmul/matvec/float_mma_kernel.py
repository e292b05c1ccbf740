# mypy: ignore-errors
"""Products of a few tokens with weights that are bfloat16 or float16, by `mma.sync`.

Algorithm: fragments loaded straight from memory, warps that divide K; the order of K is free, as long as weights and
    tokens agree, so that each lane loads 16 neighbouring bytes.
Tile:
    program    16 or more rows, all tokens; its warps take units of 64 values of K in turn
    W [16 rows, 64] @ x^T [64, 8 tokens]    lane 4 g + t: rows g and g + 8, values 8 t to 8 t + 7 of both halves
    x^T                                     lane 4 g + t: the same values of token g
Bound: bytes of the weights.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.mul_mat`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.mmq.mma_kernel import store
from octavo.backends.gpu.matmul.mmq.mma_ptx import mma_halves
from octavo.backends.gpu.weights.loads import four

HALF = 32
"""Values of a unit that four lanes load at once."""


@triton.jit
def _load(pointer, row, unit, t, k, ASM: tl.constexpr):
    """A lane's words of a unit of a row [k]: four of each half."""
    at = row * (k // 8) + unit * 8 + t
    return four(pointer, at, None, ASM), four(pointer, at + 4, None, ASM)


@triton.jit
def _multiply(acc, rows, tokens, KIND: tl.constexpr, N: tl.constexpr, M: tl.constexpr, ASM: tl.constexpr):
    """acc + the products of a unit: N tiles of 16 rows, M of 8 tokens."""
    for half in tl.static_range(2):
        for i in tl.static_range(0, 4, 2):
            before = acc
            acc = ()
            for r in tl.static_range(N):
                upper, lower = rows[2 * r][half], rows[2 * r + 1][half]
                for j in tl.static_range(M):
                    token = tokens[j][half]
                    acc = acc + (mma_halves(  # noqa: RUF005
                        (upper[i], lower[i], upper[i + 1], lower[i + 1]), (token[i], token[i + 1]), before[r * M + j],
                        KIND, ASM,
                    ),)
    return acc


@triton.jit
def float_mma_kernel(
    w, x, terms, y, splits, n, n_tokens, k: tl.constexpr, shape: tl.constexpr, KIND: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """y f32 [n_tokens, n] = x W^T + terms; W [n, k] and x are of the same type. Program (rows, split of K).

    k is a multiple of 64. A warp loads its next unit before it multiplies one.
    """
    if PDL:
        gdc_launch_dependents()
    N: tl.constexpr = shape.row_tiles
    M: tl.constexpr = shape.token_tiles
    STEP: tl.constexpr = shape.warps * shape.split_k
    UNITS: tl.constexpr = k // 64
    STEPS: tl.constexpr = (UNITS + STEP - 1) // STEP
    wanted = tl.program_id(0) * 16 * N
    start = tl.maximum(tl.minimum(wanted, n - 16 * N), 0)
    thread = tl.arange(0, 32 * shape.warps)
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    first = tl.program_id(1) * shape.warps + warp
    weights = w.to(tl.pointer_type(tl.int32))
    near = tl.minimum(first, UNITS - 1).to(tl.int64)
    rows, row = (), ()
    for r in tl.static_range(2 * N):
        at = tl.minimum((start + g).to(tl.int64) + 8 * r, n - 1)
        row = row + (at,)  # noqa: RUF005
        rows = rows + (_load(weights, at, near, t, k, ASM),)  # noqa: RUF005
    if PDL:
        gdc_wait()
    zero = tl.zeros((32 * shape.warps,), tl.float32)
    acc = ()
    for _ in tl.static_range(N * M):
        acc = acc + ((zero, zero, zero, zero),)  # noqa: RUF005
    given = x.data.to(tl.pointer_type(tl.int32))
    for i in tl.range(STEPS):
        unit = first + i * STEP
        near = tl.minimum(unit, UNITS - 1).to(tl.int64)
        kept = tl.where(unit < UNITS, -1, 0)
        tokens = ()
        for j in tl.static_range(M):
            token = tl.minimum(8 * j + g, n_tokens - 1).to(tl.int64)
            low, high = _load(given, token, near, t, k, ASM)
            if UNITS % STEP != 0:
                low = (low[0] & kept, low[1] & kept, low[2] & kept, low[3] & kept)
                high = (high[0] & kept, high[1] & kept, high[2] & kept, high[3] & kept)
            tokens = tokens + ((low, high),)  # noqa: RUF005
        following = tl.minimum(unit + STEP, UNITS - 1).to(tl.int64)
        coming = ()
        for r in tl.static_range(2 * N):
            coming = coming + (_load(weights, row[r], following, t, k, ASM),)  # noqa: RUF005
        acc = _multiply(acc, rows, tokens, KIND, N, M, ASM)
        rows = coming
    store(acc, terms, y, splits, start, wanted, n, n_tokens, 1.0, shape)
