# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Codes whose errors make up for each other: columns in turn, then scales and codes once more, 16 rows at a time.

With e = w - w_hat, what a product loses over the calibration text is e^T H e. H = M^T D M, M unit lower triangular,
makes it the sum of D_j (e_j + sum_{i<j} M_ji e_i)^2: column j, when its turn comes, is to be w_j + sum_{i<j} M_ji e_i,
and takes the nearest level. These are the codes of GPTQ (arXiv 2210.17323), which goes by a factor of the inverse of H.

A vector has one column of 16 rows. Addresses are of a tile: vector k lies 64 k bytes from where an array begins.
"""

from __future__ import annotations

from typing import Any

from octavo.calibrate.methods.gptq.grid import Grid, spread_scales, sum_rows
from octavo.calibrate.methods.gptq.refine_kernel import refine_of
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add_exact,
    f32_pointer,
    fma,
    i64_pointer,
    load_f32x16,
    mul_exact,
    splat,
    stack,
    store_f32x16,
    sub_exact,
)
from octavo.quantizers.encoding.kernels.levels import to_level
from octavo.quantizers.encoding.kernels.tile import ratio

GPTQ_WAYS = record(
    "w levels d sc dmin m zero",
    "hessian factor order damping:f4 k columns rounds",
    "step shift errors gradient product along before after",
)
"""What the kernel takes; a task is a tile of 16 rows, G the columns of a group, S those of a super-block.

w              float32 [tasks, K, 16], the weights
levels         float32 [tasks, K, 16], in: what the plain encoder took; out: what was found
d, dmin        float32 [tasks, K / S, 16], in and out
sc, m          float32 [tasks, K / G, 16], in and out; 1 where there is one level
zero           float32 [tasks, K / G, 16]: zero points, else 0
hessian        float32 [K, K], symmetric, with `damping` added to its diagonal
factor         float32 [K, K], M of the columns in the order in which they are taken
order          int64 [K], that order
columns        of a block, BLOCK at most, in fours: sums over the columns before it are made at once
rounds         how often scales and codes are gone through again
before, after  float32 [tasks, 16]: e^T H e without the damping, of the plain encoder and of what was found
others         memory: step, shift [tasks, K / G, 16], errors, gradient, product, along [tasks, K, 16]
"""

BLOCK = 128
"""Columns of a block at most."""


def _measure(grid: Grid) -> Any:
    """A function (a, tile, at) that works out errors and H e, and stores e^T H e, damping left out, at `at`."""
    group = grid.group

    def measure(a, tile, at):
        size = group or a.k
        here, groups = 64 * tile * a.k, 64 * tile * (a.k // size)
        for k in range(a.k):
            g = groups + 64 * (k // size)
            value = sub_exact(
                mul_exact(load_f32x16(a.step + g), load_f32x16(a.levels + here + 64 * k)), load_f32x16(a.shift + g)
            )
            store_f32x16(a.errors + here + 64 * k, sub_exact(load_f32x16(a.w + here + 64 * k), value))
        sum_rows(a.gradient + here, a.hessian, a.k, a.k, 0, a.k, a.errors + here)
        total, damping = splat(0.0), splat(a.damping)
        for k in range(a.k):
            e = load_f32x16(a.errors + here + 64 * k)  # [16]
            total = fma(e, sub_exact(load_f32x16(a.gradient + here + 64 * k), mul_exact(damping, e)), total)
        store_f32x16(at + 64 * tile, total)

    return inner(measure, grid)


def _sweep(grid: Grid) -> Any:
    """A function (a, tile) that gives each column in turn its nearest level; `gradient` keeps errors in their order."""
    group, level, block_bytes = grid.group, to_level(grid.low, grid.high, grid.table), 64 * BLOCK

    def sweep(a, tile):
        size = group or a.k
        here, groups = 64 * tile * a.k, 64 * tile * (a.k // size)
        sums, order, factor = stack(block_bytes), i64_pointer(a.order), f32_pointer(a.factor)
        for start in range(0, a.k, a.columns):
            stop = min(start + a.columns, a.k)
            sum_rows(sums, a.factor + 4 * start * a.k, a.k, stop - start, 0, start, a.gradient + here)
            for j in range(start, stop):
                k, wanted = order[j], load_f32x16(sums + 64 * (j - start))  # [16]
                for i in range(start, j):
                    wanted = fma(splat(factor[j * a.k + i]), load_f32x16(a.gradient + here + 64 * i), wanted)
                w, g = load_f32x16(a.w + here + 64 * k), groups + 64 * (k // size)
                step, shift = load_f32x16(a.step + g), load_f32x16(a.shift + g)
                wanted = add_exact(add_exact(w, wanted), shift)
                found = level(mul_exact(wanted, ratio(splat(1.0), step)))
                store_f32x16(a.levels + here + 64 * k, found)
                store_f32x16(a.gradient + here + 64 * j, sub_exact(w, sub_exact(mul_exact(step, found), shift)))

    return inner(sweep, grid)


@kernels(GPTQ_WAYS)
def gptq_kernel(grid: Grid) -> Any:
    """Task t finds levels, scales and minima of 16 rows."""
    spread, measure, sweep, refine = spread_scales(grid), _measure(grid), _sweep(grid), refine_of(grid)

    def gptq(a, task):
        spread(a, task)
        measure(a, task, a.before)
        sweep(a, task)
        measure(a, task, a.after)
        for _ in range(a.rounds):
            refine(a, task)
            measure(a, task, a.after)

    return gptq
