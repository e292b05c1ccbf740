# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Codes whose errors make up for each other: columns in turn, then scales and codes once more, 16 rows at a time.

With e = w - w_hat, what a product loses over the calibration text is e^T H e. H = M^T D M, M unit lower triangular,
makes it the sum of D_j (e_j + sum_{i<j} M_ji e_i)^2: column j, when its turn comes, is to be w_j + sum_{i<j} M_ji e_i,
and takes the nearest level. These are the codes of GPTQ (arXiv 2210.17323), which goes by a factor of the inverse of H.

Then scales, minima and codes are gone through once more, each where it lowers e^T H e most while all others stay. Along
a direction v the error is e - t v, and e^T H e is least for t = v^T H e / v^T H v. What is stored is the nearest that
the format can hold, and only if it lowers the error: so no step raises it.

A vector has one column of 16 rows. Addresses are of a tile: vector k lies 64 k bytes from where an array begins.
"""

from __future__ import annotations

from typing import Any

from numba.extending import intrinsic

from octavo.calibrate.methods.gptq.grid import Grid
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add_exact,
    f32_pointer,
    fma,
    i64_pointer,
    largest_magnitude,
    load_f32x16,
    mul_exact,
    splat,
    stack,
    store_f32x16,
    sub_exact,
)
from octavo.jit.simd.emit import V_F32, V_I32, f32x16, fill
from octavo.quantizers.encoding.kernels.search_lanes import as_half, clamp_round, to_level, where_less
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


def _sum_rows(out, matrix, columns, rows, first, last, vectors):
    """out[j] = sum of matrix[j, i] * vectors[i] over `first` <= i < `last`; j < rows, a multiple of 4."""
    m = f32_pointer(matrix)
    for j in range(0, rows, 4):
        s0, s1, s2, s3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        row = j * columns
        for i in range(first, last):
            x = load_f32x16(vectors + 64 * i)  # [16]
            s0 = fma(splat(m[row + i]), x, s0)
            s1 = fma(splat(m[row + columns + i]), x, s1)
            s2 = fma(splat(m[row + 2 * columns + i]), x, s2)
            s3 = fma(splat(m[row + 3 * columns + i]), x, s3)
        store_f32x16(out + 64 * j, s0)
        store_f32x16(out + 64 * j + 64, s1)
        store_f32x16(out + 64 * j + 128, s2)
        store_f32x16(out + 64 * j + 192, s3)


sum_rows = inner(_sum_rows)


def spread_scales(grid: Grid) -> Any:
    """A function (a, tile) that sets what a level of each group is worth: step * level - shift."""
    group, supers = grid.group, grid.supers

    def spread(a, tile):
        groups = a.k // (group or a.k)
        at, top = 64 * tile * groups, 64 * tile * (groups // supers)
        for g in range(groups):
            above = top + 64 * (g // supers)
            step = mul_exact(load_f32x16(a.d + above), load_f32x16(a.sc + at + 64 * g))  # [16]
            low = mul_exact(load_f32x16(a.dmin + above), load_f32x16(a.m + at + 64 * g))
            store_f32x16(a.step + at + 64 * g, step)
            store_f32x16(a.shift + at + 64 * g, fma(step, load_f32x16(a.zero + at + 64 * g), low))

    return inner(spread, grid)


@intrinsic
def as_bf16(ty, x):
    """x as it is read back from a bf16, ties to even."""

    def gen(c, b, s, a):
        bits = b.bitcast(a[0], V_I32)
        odd = b.and_(b.lshr(bits, fill(V_I32, 16)), fill(V_I32, 1))
        rounded = b.add(bits, b.add(odd, fill(V_I32, 0x7FFF)))
        return b.bitcast(b.and_(rounded, fill(V_I32, -65536)), V_F32)

    return f32x16(f32x16), gen


@intrinsic
def as_it_is(ty, x):
    """x."""
    return f32x16(f32x16), lambda c, b, s, a: a[0]


STORED = {"f16": as_half, "bf16": as_bf16, "f32": as_it_is}
"""A scale as it will be read back."""


def _slope(a, tile, first, count, along):
    """v^T H e and v^T H v of the direction v = `along` [count, 16] from column `first` on, by these columns alone."""
    at = 64 * (tile * a.k + first)
    sum_rows(a.product + at, a.hessian + 4 * first * (a.k + 1), a.k, count, 0, count, along)
    down, curve = splat(0.0), splat(0.0)
    for i in range(count):
        v = load_f32x16(along + 64 * i)  # [16]
        down = fma(v, load_f32x16(a.gradient + at + 64 * i), down)
        curve = fma(v, load_f32x16(a.product + at + 64 * i), curve)
    return down, curve


def _step(a, tile, first, count, along, length):
    """Go `length` along the direction of `_slope`; only where some row does is H v made of all columns."""
    here = 64 * tile * a.k
    if largest_magnitude(length, length) == 0.0:
        return
    back = sub_exact(splat(0.0), length)
    for i in range(count):
        at = a.errors + here + 64 * (first + i)
        store_f32x16(at, fma(back, load_f32x16(along + 64 * i), load_f32x16(at)))
    sum_rows(a.product + here, a.hessian + 4 * first, a.k, a.k, 0, count, along)
    for j in range(a.k):
        at = a.gradient + here + 64 * j
        store_f32x16(at, fma(back, load_f32x16(a.product + here + 64 * j), load_f32x16(at)))


def _better(old, new, down, curve):
    """`new` in the lanes where going there from `old` lowers the error, else `old`."""
    length = sub_exact(new, old)
    gain = mul_exact(length, sub_exact(add_exact(down, down), mul_exact(length, curve)))
    return where_less(splat(0.0), gain, new, old)


slope, step, better = inner(_slope), inner(_step), inner(_better)


def _floating(grid: Grid) -> Any:
    """A function (a, tile) that fits d, and dmin where there are minima, of each super-block."""
    group, supers, has_min, stored = grid.group, grid.supers, grid.has_min, STORED[grid.scale]

    def floating(a, tile):
        size = group or a.k
        count, here, at = size * supers, 64 * tile * a.k, 64 * tile * (a.k // size)
        along = a.along + here
        for s in range(a.k // count):
            for minimum in range(2 if has_min else 1):
                for i in range(count):
                    g = at + 64 * (s * supers + i // size)
                    if minimum:
                        v = sub_exact(splat(0.0), load_f32x16(a.m + g))  # [16]
                    else:
                        level = load_f32x16(a.levels + here + 64 * (s * count + i))
                        v = mul_exact(load_f32x16(a.sc + g), sub_exact(level, load_f32x16(a.zero + g)))
                    store_f32x16(along + 64 * i, v)
                down, curve = slope(a, tile, s * count, count, along)
                where = (a.dmin if minimum else a.d) + 64 * (tile * (a.k // count) + s)
                old = load_f32x16(where)
                new = better(old, stored(add_exact(old, ratio(down, curve))), down, curve)
                store_f32x16(where, new)
                step(a, tile, s * count, count, along, sub_exact(new, old))

    return inner(floating, grid)


def _integers(grid: Grid) -> Any:
    """A function (a, tile) that fits sc, and m where there are minima, of each group."""
    group, supers, has_min = grid.group, grid.supers, grid.has_min
    assert grid.integers is not None
    low, high, top = float(grid.integers[0]), float(grid.integers[1]), float(grid.integers[2])

    def integers(a, tile):
        here, groups = 64 * tile * a.k, a.k // group
        along = a.along + here
        for g in range(groups):
            above = 64 * (tile * (groups // supers) + g // supers)
            for minimum in range(2 if has_min else 1):
                unit = load_f32x16((a.dmin if minimum else a.d) + above)  # [16]
                for i in range(group):
                    level = load_f32x16(a.levels + here + 64 * (g * group + i))
                    v = sub_exact(splat(0.0), unit) if minimum else mul_exact(unit, level)
                    store_f32x16(along + 64 * i, v)
                down, curve = slope(a, tile, g * group, group, along)
                where = (a.m if minimum else a.sc) + 64 * (tile * groups + g)
                old = load_f32x16(where)
                wish = add_exact(old, ratio(down, curve))
                if minimum:
                    wish = clamp_round(wish, splat(0.0), splat(top))
                else:
                    wish = clamp_round(wish, splat(low), splat(high))
                new = better(old, wish, down, curve)
                store_f32x16(where, new)
                step(a, tile, g * group, group, along, sub_exact(new, old))

    return inner(integers, grid)


def _codes(grid: Grid) -> Any:
    """A function (a, tile) that gives each value in turn the level that is best while others stay."""
    group, level = grid.group, to_level(grid.low, grid.high, grid.table)

    def codes(a, tile):
        size, hessian = group or a.k, f32_pointer(a.hessian)
        here, groups = 64 * tile * a.k, 64 * tile * (a.k // size)
        for k in range(a.k):
            g, own = groups + 64 * (k // size), splat(hessian[k * a.k + k])
            unit, old = load_f32x16(a.step + g), load_f32x16(a.levels + here + 64 * k)  # [16]
            down = load_f32x16(a.gradient + here + 64 * k)
            wish = add_exact(mul_exact(unit, old), ratio(down, own))
            found = level(mul_exact(wish, ratio(splat(1.0), unit)))
            new = better(old, found, mul_exact(unit, down), mul_exact(mul_exact(unit, unit), own))
            moved = mul_exact(unit, sub_exact(old, new))
            if largest_magnitude(moved, moved) > 0.0:
                store_f32x16(a.levels + here + 64 * k, new)
                for j in range(a.k):
                    at = a.gradient + here + 64 * j
                    store_f32x16(at, fma(splat(hessian[k * a.k + j]), moved, load_f32x16(at)))

    return inner(codes, grid)


def _nothing(a, tile):
    pass


def refine_of(grid: Grid) -> Any:
    """A function (a, tile): scales and minima, then codes, from errors and H e of what there is."""
    nothing = inner(_nothing)
    spread, codes = spread_scales(grid), _codes(grid)
    floating = nothing if grid.scale == "fixed" else _floating(grid)
    integers = nothing if grid.integers is None else _integers(grid)

    def refine(a, tile):
        floating(a, tile)
        integers(a, tile)
        spread(a, tile)
        codes(a, tile)

    return inner(refine, grid)


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
