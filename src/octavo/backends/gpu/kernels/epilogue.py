"""What all products of 8-bit numbers share: tiles in, and what follows their sums.

Products whose factors are swapped end here too: a tile is [tokens, rows of b], or the other way round.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(pid, n_rows, n_columns, GROUP: tl.constexpr):
    """The tile (row, column) of a program, so that GROUP rows of tiles at a time share what they read in the L2."""
    group = pid // (GROUP * n_columns)
    size = tl.minimum(n_rows - group * GROUP, GROUP)
    rest = pid % (GROUP * n_columns)
    return group * GROUP + rest % size, rest // size


@triton.jit
def load_tile(
    x, row, column, rows, columns, stride,
    R: tl.constexpr, C: tl.constexpr, TMA: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """x [R, C] from (row, column) on, of a descriptor (TMA) or from a pointer; zeros from `columns` on.

    Rows that there are not may hold anything. EVEN: `columns` is a multiple of C.
    """
    if TMA:
        value = x.load([row, column])
    else:
        at = tl.minimum(row + tl.arange(0, R), rows - 1).to(tl.int64)[:, None] * stride
        inner = column + tl.arange(0, C)[None, :]
        if EVEN:
            value = tl.load(x + at + inner)
        else:
            value = tl.load(x + at + inner, mask=inner < columns, other=0.0)
    return value


@triton.jit
def steps_of(split, k, BK: tl.constexpr, SPLITS: tl.constexpr):
    """The first step and the one after the last, of BK values each, of a program that shares K with others."""
    steps = tl.cdiv(k, BK)
    each = tl.cdiv(steps, SPLITS)
    return split * each, tl.minimum(split * each + each, steps)


@triton.jit
def together(
    acc, shares, finished, tile, split, R: tl.constexpr, C: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Of a tile's SPLITS programs the last to finish gets the sums of all, added in order; others get what they had.

    Returns whether this is that program, and the sums [R, C], as int64 if WIDE. `shares` holds R * C of the type of
    `acc` for each program; `finished` a zero for each tile, and zeros again afterwards.
    """
    at = shares + tile.to(tl.int64) * (SPLITS * R * C) + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(at + split * (R * C), acc)
    tl.debug_barrier()
    last = tl.atomic_add(finished + tile, 1, sem="acq_rel") == SPLITS - 1
    total = acc.to(tl.int64) if WIDE else acc
    if last:
        tl.store(finished + tile, 0)
        total = tl.zeros_like(total)
        for other in range(SPLITS):
            total += tl.load(at + other * (R * C), cache_modifier=".cg").to(total.dtype)
    return last, total


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """max(x, 0), x / (1 + e^-x), or GELU in the tanh form."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "silu":
        x = x / (1 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        x = x / (1 + tl.exp(-x * (1.5957691216 + 0.0713548162726 * x * x)))
    return x


@triton.jit
def _finish(
    total, scale_a, scale_b, zero_a, sums, bias, residual, y, first, start, token, column, m, n,
    y_stride, residual_stride,
    A_STEP: tl.constexpr, B_STEP: tl.constexpr, ZERO_STEP: tl.constexpr, FACTOR: tl.constexpr, ZERO: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """`finish` for sums that lie at `token` and `column`, one [R, 1] and the other [1, C], of a tile from token `first`
    and column `start` on."""
    here, there = token < m - first, column < n - start
    inside = here & there
    at, where = first + token, start + column
    if ZERO:
        zero = tl.load(zero_a + at * ZERO_STEP, mask=here, other=0)
        total -= zero.to(total.dtype) * tl.load(sums + where, mask=there, other=0).to(total.dtype)
    value = total.to(tl.float32)
    if ZERO:
        value = tl.where((zero >= -128) & (zero <= 127), value, float("nan"))
    if A_STEP is not None:
        value *= tl.load(scale_a + at * A_STEP, mask=here, other=0.0)
        value *= tl.load(scale_b + where * B_STEP, mask=there, other=0.0) * FACTOR
    elif FACTOR != 1:
        value *= FACTOR
    if BIAS:
        value += tl.load(bias + where, mask=there, other=0.0).to(tl.float32)
    value = activated(value, ACTIVATION)
    if RESIDUAL:
        residual += first.to(tl.int64) * residual_stride + start
        value += tl.load(residual + (token * residual_stride + column), mask=inside, other=0.0).to(tl.float32)
    y += first.to(tl.int64) * y_stride + start
    tl.store(y + (token * y_stride + column), value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def finish(
    total, scale_a, scale_b, zero_a, sums, bias, residual, y, first, start, m, n, y_stride, residual_stride,
    A_STEP: tl.constexpr, B_STEP: tl.constexpr, ZERO_STEP: tl.constexpr, FACTOR: tl.constexpr, ZERO: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr, SWAPPED: tl.constexpr,
):  # fmt: skip
    """y = activation((total - zero_a * sums) * scale_a * (FACTOR * scale_b) + bias) + residual, and its store.

    Integers are exact up to the first scale; a token whose zero point is no code is NaN, for its sum may not be exact.
    A step is 1 where each token or column has a scale of its own, 0 where all share one, and None without scales; sums
    [n] are those of the rows of b. The tile begins at token `first` and column `start`. Wide tiles go half by half, as
    the registers do not hold all that is loaded for a whole one.
    """
    R: tl.constexpr = total.shape[0]
    C: tl.constexpr = total.shape[1]
    PIECES: tl.constexpr = 2 if C >= 128 else 1
    if PIECES == 2:
        parts = tl.split(tl.permute(tl.reshape(total, (R, 2, C // 2)), (0, 2, 1)))
    else:
        parts = (total,)
    for i in tl.static_range(PIECES):
        down, across = tl.arange(0, R)[:, None], i * (C // PIECES) + tl.arange(0, C // PIECES)[None, :]
        _finish(
            parts[i], scale_a, scale_b, zero_a, sums, bias, residual, y, first, start, across if SWAPPED else down,
            down if SWAPPED else across, m, n, y_stride, residual_stride, A_STEP, B_STEP, ZERO_STEP, FACTOR, ZERO,
            BIAS, ACTIVATION, RESIDUAL,
        )  # fmt: skip
