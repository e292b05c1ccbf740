# mypy: ignore-errors
"""What all products of 8-bit numbers share: tiles in, split-K, and what follows their sums.

Arguments are records: `size` a ProblemSize, `end` an Epilogue, `split_k` a SplitK or None, and the constants `shape`, a
GemmShape, and `config`, a GemmConfig (see `arguments`). Where the factors of a product are swapped, a tile is
[rows of b, tokens].
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.matmul.split_k import is_last
from octavo.backends.gpu.pointwise.math import gelu


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
):
    """x [R, C] from (row, column) on, of a descriptor (TMA) or from a pointer; zeros from `columns` on.

    Rows from `rows` on may hold anything. EVEN: `columns` is a multiple of C.
    """
    if TMA:
        value = x.load([row, column])  # [R, C]
    else:
        at = tl.minimum(row + tl.arange(0, R), rows - 1).to(tl.int64)[:, None] * stride
        inner = column + tl.arange(0, C)[None, :]
        if EVEN:
            value = tl.load(x + at + inner)  # [R, C]
        else:
            value = tl.load(x + at + inner, mask=inner < columns, other=0.0)  # [R, C]
    return value


@triton.jit
def steps_of(split, k, BK: tl.constexpr, SPLIT_K: tl.constexpr):
    """The first step and the one after the last, of BK values each, of a program with split-K."""
    steps = tl.cdiv(k, BK)
    each = tl.cdiv(steps, SPLIT_K)
    return split * each, tl.minimum(split * each + each, steps)


@triton.jit
def sum_splits(
    acc, split_k, tile, split, R: tl.constexpr, C: tl.constexpr, SPLIT_K: tl.constexpr, WIDE: tl.constexpr
):
    """Adds up a tile's SPLIT_K partial sums `acc`, in order, in the program that is the last to finish.

    Returns whether this is that program, and the sums [R, C], of others just `acc`; as int64 if WIDE.
    """
    at = split_k.partial + tile.to(tl.int64) * (SPLIT_K * R * C) + tl.arange(0, R)[:, None] * C
    at += tl.arange(0, C)[None, :]
    tl.store(at + split * (R * C), acc)  # [R, C]
    last = is_last(split_k.counter + tile, SPLIT_K)
    total = acc.to(tl.int64) if WIDE else acc
    if last:
        total = tl.zeros_like(total)
        for other in range(SPLIT_K):
            total += tl.load(at + other * (R * C), cache_modifier=".cg").to(total.dtype)  # [R, C]
    return last, total


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """max(x, 0), x / (1 + e^-x), or GELU in the tanh form."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "silu":
        x = x / (1 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        x = gelu(x)
    return x


@triton.jit
def _finish_part(total, end, size, first_token, first_row, token, row, config: tl.constexpr):
    """`finish` for the sums at `token` and `row` of a tile, one of them [R, 1] and the other [1, C]."""
    here, there = token < size.m - first_token, row < size.n - first_row
    inside = here & there
    at, where = first_token + token, first_row + row
    if end.zero_a is not None:
        zero = tl.load(end.zero_a + at * config.step_zero, mask=here, other=0)  # [R, 1] or [1, C]
        total -= zero.to(total.dtype) * tl.load(end.sums_b + where, mask=there, other=0).to(total.dtype)  # [R, C]
    value = total.to(tl.float32)
    if end.zero_a is not None:
        value = tl.where((zero >= -128) & (zero <= 127), value, float("nan"))
    if end.scale_a is not None:
        value *= tl.load(end.scale_a + at * config.step_a, mask=here, other=0.0)  # [R, C]
        value *= tl.load(end.scale_b + where * config.step_b, mask=there, other=0.0) * config.factor  # [R, C]
    elif config.factor != 1:
        value *= config.factor
    if end.bias is not None:
        value += tl.load(end.bias + where, mask=there, other=0.0).to(tl.float32)  # [R, C]
    ACTIVATION: tl.constexpr = config.activation
    value = activated(value, ACTIVATION)
    if end.residual is not None:
        residual = end.residual.data + (first_token.to(tl.int64) * end.residual.stride + first_row)
        at = residual + (token * end.residual.stride + row)
        value += tl.load(at, mask=inside, other=0.0).to(tl.float32)  # [R, C]
    y = end.y.data + (first_token.to(tl.int64) * end.y.stride + first_row)
    tl.store(y + (token * end.y.stride + row), value.to(y.dtype.element_ty), mask=inside)  # [R, C]


@triton.jit
def finish(total, end, size, first_token, first_row, config: tl.constexpr, SWAPPED: tl.constexpr):
    """What `Epilogue` says, of a tile of sums from a token and a row of b on, and its store.

    total [R, C] is [tokens, rows], or if SWAPPED [rows, tokens]. Integers are exact up to the first scale; a token
    whose zero point is not a code is NaN, for its sum may not be exact. Wide tiles go half by half, as the registers do
    not hold all that is loaded for a whole one.
    """
    R: tl.constexpr = total.shape[0]
    C: tl.constexpr = total.shape[1]
    PIECES: tl.constexpr = 2 if C >= 128 else 1
    if PIECES == 2:
        parts = tl.split(tl.permute(tl.reshape(total, (R, 2, C // 2)), (0, 2, 1)))  # twice [R, C / 2]
    else:
        parts = (total,)
    for i in tl.static_range(PIECES):
        down, across = tl.arange(0, R)[:, None], i * (C // PIECES) + tl.arange(0, C // PIECES)[None, :]
        token, row = across if SWAPPED else down, down if SWAPPED else across
        _finish_part(parts[i], end, size, first_token, first_row, token, row, config)
