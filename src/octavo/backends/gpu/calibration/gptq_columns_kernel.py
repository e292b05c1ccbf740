# mypy: ignore-errors
"""GPTQ's inner loop: a block of columns in turn, for some rows of a matrix a program.

Algorithm: GPTQ (arXiv 2210.17323), lazy batches; `fit_kernel` is coordinate descent on a row's scale or minimum.
Tile:
    columns  | done | block of up to 128, one after the other | to come |
    rows     a column's rounding error goes to the columns of the block behind it, by a factor of the inverse Hessian
Bound: latency, since columns follow each other: 190 instructions a column of 32 rows (docs/log.md, "Lanes that share a
    row make Triton load and round it in each of them").
Tried: docs/log.md: "Lanes that share a row make Triton load and round it in each of them".
Twin: `tests.calibrate.naive.gptq_columns`

What `columns_kernel` and `refine_kernel` of `octavo.calibrate.methods.gptq` do with vectors of 16 rows. Matrices are
[K, N] here, so that a column's rows lie side by side. Sums over what lies before a block are products of matrices,
made outside.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it and taking it away rounds to the nearest integer, ties to even


@triton.jit
def _steps(x, table, STEPS: tl.constexpr):
    """The entry of an ascending table that is nearest to x, the lower one of two.

    The table has 2^STEPS - 1 places halfway between entries, the last of them infinite, then its 2^STEPS entries.
    """
    passed = tl.zeros(x.shape, tl.int32)
    for i in tl.static_range(STEPS):
        half = 1 << (STEPS - 1 - i)
        passed += tl.where(x > tl.load(table + (passed + (half - 1))), half, 0)
    return tl.load(table + ((1 << STEPS) - 1) + passed)


@triton.jit
def _nearest(x, table, LOW: tl.constexpr, HIGH: tl.constexpr, STEPS: tl.constexpr, MIRRORED: tl.constexpr):
    """The level nearest to x: an integer from LOW to HIGH, or, with STEPS, an entry of a table, or its negative."""
    if STEPS == 0:
        found = tl.minimum(tl.maximum(x, LOW), HIGH) + ROUND - ROUND
    elif MIRRORED:
        size = _steps(tl.abs(x), table, STEPS)
        found = tl.where(x >= 0, size, -size)
    else:
        found = _steps(x, table, STEPS)
    return found


@triton.jit
def columns_kernel(base, matrix, made, grid, n, stride, start, count, shape: tl.constexpr):
    """Program p gives `count` columns, from the `start`-th of an order on, their levels in some rows.

    The j-th of them is given x_j = base[j] + sum over i < j of matrix[j, i] made[i]. With e = w - (step level - shift):

    not shape.again  base is w and what columns before make up for, matrix M: the level nearest to x_j; made[j] = e_j
    shape.again      base is H e, matrix H: the level that lowers the error most while others stay, of which its own is
                     one; made[j] is what e_j grows by

    base, made     float32 [count, N]
    matrix         float32 [count, count] with rows `stride` apart
    grid, shape    a `ColumnGrid` and a `ColumnShape`
    """
    AGAIN: tl.constexpr = shape.again
    LOW: tl.constexpr = shape.low
    HIGH: tl.constexpr = shape.high
    STEPS: tl.constexpr = shape.steps
    MIRRORED: tl.constexpr = shape.mirrored
    COLUMNS: tl.constexpr = shape.columns
    ROWS: tl.constexpr = shape.rows
    levels, step, inverse, shift, own = grid.levels, grid.step, grid.inverse, grid.shift, grid.own
    table, size, known = grid.table, grid.size, grid.levels if AGAIN else grid.w
    order = grid.order + start
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = rows < n
    columns = tl.arange(0, COLUMNS)
    done = tl.zeros((COLUMNS, ROWS), tl.float32)  # rows in lanes: a sum over columns is a thread's own
    k = tl.load(order).to(tl.int64)
    later = tl.load(order + tl.minimum(1, count - 1)).to(tl.int64)
    place, group = k * n + rows, k // size * n + rows
    x = tl.load(base + rows, mask=real, other=0.0)  # [ROWS]
    unit = tl.load(step + group, mask=real, other=0.0)
    back = tl.load(inverse + group, mask=real, other=0.0)
    given = tl.load(known + place, mask=real, other=0.0)
    more = tl.load(own + k) if AGAIN else tl.load(shift + group, mask=real, other=0.0)
    row = tl.load(matrix + columns, mask=columns < 0, other=0.0)  # [COLUMNS]
    for j in range(count):
        # What the next column needs is on its way while this one is rounded.
        next_place, next_group = later * n + rows, later // size * n + rows
        ahead = tl.minimum(j + 1, count - 1)
        next_x = tl.load(base + ahead * n + rows, mask=real, other=0.0)
        next_unit = tl.load(step + next_group, mask=real, other=0.0)
        next_back = tl.load(inverse + next_group, mask=real, other=0.0)
        next_given = tl.load(known + next_place, mask=real, other=0.0)
        next_more = tl.load(own + later) if AGAIN else tl.load(shift + next_group, mask=real, other=0.0)
        next_row = tl.load(matrix + ahead * stride + columns, mask=columns < ahead, other=0.0)
        after = tl.load(order + tl.minimum(j + 2, count - 1)).to(tl.int64)
        x += tl.sum(done * row[:, None], axis=0)
        if AGAIN:
            wish = unit * given + tl.where(more == 0, 0.0, tl.div_rn(x, tl.where(more == 0, 1.0, more)))
            found = _nearest(wish * back, table, LOW, HIGH, STEPS, MIRRORED)
            length = found - given
            gain = length * (2.0 * (unit * x) - length * (unit * unit * more))
            found = tl.where(gain > 0, found, given)
            value = unit * (given - found)
        else:
            found = _nearest((x + more) * back, table, LOW, HIGH, STEPS, MIRRORED)
            value = given - (unit * found - more)
        tl.store(levels + place, found, mask=real)
        tl.store(made + j * n + rows, value, mask=real)
        done = tl.where(columns[:, None] == j, value[None, :], done)
        place, later, x, unit, back, given = next_place, after, next_x, next_unit, next_back, next_given
        more, row = next_more, next_row


@triton.jit
def as_stored(x, KIND: tl.constexpr):
    """float32 numbers as they are read back from "f16" or "bf16", ties to even, or as they are."""
    if KIND == "f16":
        x = x.to(tl.float16).to(tl.float32)
    elif KIND == "bf16":
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + (((bits >> 16) & 1) + 0x7FFF)) & -65536).to(tl.float32, bitcast=True)
    return x


@triton.jit
def fit_kernel(
    along, product, slope, moved, number, n, first, count, width, stored: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program p sets a number of each of ROWS rows from p ROWS on to what lowers e^T H e most, rounded, if that does.

    along    float32 [count, N]: the direction v in which the number goes, in columns `first` to `first` + count of
             `width` ones
    product  float32 [width, N]: H v
    slope    float32 [width, N], in and out: H e
    moved    float32 [width, N], in and out: what errors grow by, added up
    number   float32 [N], in and out
    stored   a `NumberType`: what a number may be
    """
    KIND: tl.constexpr = stored.kind
    LOW: tl.constexpr = stored.low
    HIGH: tl.constexpr = stored.high
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = rows < n
    down = tl.zeros((ROWS,), tl.float32)
    curve = tl.zeros((ROWS,), tl.float32)
    for start in range(0, count, COLUMNS):
        i = start + tl.arange(0, COLUMNS)
        mask, inside = (i < count)[:, None] & real[None, :], (first + i)[:, None] * n + rows[None, :]
        v = tl.load(along + i[:, None] * n + rows[None, :], mask=mask, other=0.0)  # [COLUMNS, ROWS]
        down += tl.sum(v * tl.load(slope + inside, mask=mask, other=0.0), axis=0)
        curve += tl.sum(v * tl.load(product + inside, mask=mask, other=0.0), axis=0)
    old = tl.load(number + rows, mask=real, other=0.0)
    new = old + tl.where(curve == 0, 0.0, tl.div_rn(down, tl.where(curve == 0, 1.0, curve)))
    if KIND == "integer":
        new = tl.minimum(tl.maximum(new, LOW), HIGH) + ROUND - ROUND
    else:
        new = as_stored(new, KIND)
    length = new - old
    new = tl.where(length * (2.0 * down - length * curve) > 0, new, old)
    length = new - old
    tl.store(number + rows, new, mask=real)
    for start in range(0, width, COLUMNS):
        i = start + tl.arange(0, COLUMNS)
        mask, inside = (i < width)[:, None] & real[None, :], i[:, None] * n + rows[None, :]
        lower = tl.load(product + inside, mask=mask, other=0.0) * length[None, :]
        tl.store(slope + inside, tl.load(slope + inside, mask=mask, other=0.0) - lower, mask=mask)
    for start in range(0, count, COLUMNS):
        i = start + tl.arange(0, COLUMNS)
        mask, inside = (i < count)[:, None] & real[None, :], (first + i)[:, None] * n + rows[None, :]
        v = tl.load(along + i[:, None] * n + rows[None, :], mask=mask, other=0.0)
        went = tl.load(moved + inside, mask=mask, other=0.0) - v * length[None, :]
        tl.store(moved + inside, went, mask=mask)
