# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""A tile: 16 groups of values, one to a lane, on their way in (scaled, weighted) and out (packed).

In memory it is three arrays of float32 [group, 16]: values, weights and levels. Vector i, the i-th value of each group,
lies 64 i bytes from an array's address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.jit.argument_record import record
from octavo.jit.compile import inner
from octavo.jit.simd import (
    add_exact,
    div_exact,
    f32_pointer,
    fma,
    i64_pointer,
    load_f32x16,
    maximum,
    mul_exact,
    splat,
    stack,
    store_f16,
    store_f32x16,
)
from octavo.quantizers.encoding.kernels.recipe import LEAST_IMPORTANCE, Recipe
from octavo.quantizers.encoding.kernels.search_lanes import (
    as_half,
    copy_bytes,
    emit_block,
    load_transposed,
    magnitude,
    max_within,
    min_within,
    minimum,
    power_above,
    square_root,
    store_bytes,
    store_codes_transposed,
    sum_within,
    to_code,
    where_less,
)

SEARCH = record("x importance columns", "out", "supers tiles")
"""What the kernels that search take.

x, importance  float32 [rows, columns] and [columns]; no importance: 0
out            the packed super-blocks
supers         super-blocks of all tasks, of 16 groups at least
tiles          tiles of a task; the last tile of all is moved back so that it ends with the last super-block
"""

BEYOND = float("inf")
"""The scale that is stored where none that f16 can hold is large enough."""


def _half(x, up):
    """x as it comes back from an f16 of x / up."""
    return mul_exact(as_half(div_exact(x, up)), up)


def _ratio(x, y):
    """x / y, 0 where y is 0."""
    size = magnitude(y)
    return where_less(splat(0.0), size, div_exact(x, y), splat(0.0))


half, ratio = inner(_half), inner(_ratio)


def _clip(recipe: Recipe) -> Any:
    """A function (values, importance) that clips values of the least importance to the range of the others.

    Those are the others of the group where they are half of it or more, else those of the super-block; where it has
    none nothing is clipped.
    """
    group, supers = recipe.group, recipe.supers
    least, most = float(np.float32(LEAST_IMPORTANCE)), float(np.finfo(np.float32).max)

    def clip(values, importance):
        bound, count = splat(least), splat(0.0)
        low, high = splat(most), splat(-most)
        for i in range(group):
            x, w = load_f32x16(values + 64 * i), load_f32x16(importance + 64 * i)  # [16]
            low = where_less(bound, w, minimum(low, x), low)
            high = where_less(bound, w, maximum(high, x), high)
            count = add_exact(count, where_less(bound, w, splat(1.0), splat(0.0)))
        wide_low, wide_high, half_of_it = min_within(low, supers), max_within(high, supers), splat(group / 2)
        low, high = where_less(count, half_of_it, wide_low, low), where_less(count, half_of_it, wide_high, high)
        low = where_less(wide_high, wide_low, splat(-most), low)
        high = where_less(wide_high, wide_low, splat(most), high)
        for i in range(group):
            x = load_f32x16(values + 64 * i)  # [16]
            clipped = minimum(maximum(x, low), high)
            store_f32x16(values + 64 * i, where_less(bound, load_f32x16(importance + 64 * i), x, clipped))

    return inner(clip, recipe)


def load_tile(recipe: Recipe) -> Any:
    """A function (values, weights, x, importance, first, columns) -> the power of two that values were scaled by.

    Reads the 16 groups from the `first` super-block on of x; a row has `columns` values, as `importance` has. Values
    are scaled so that the largest magnitude of a super-block is in [1, 2): no square of them overflows or vanishes.
    Those without importance are clipped first.
    """
    group, supers, weighted, flat = recipe.group, recipe.supers, recipe.weighted, recipe.spread is None
    spread, clip = recipe.spread or 0.0, _clip(recipe)
    values_of_super = group * supers

    def load(values, weights, x, importance, first, columns):
        addresses = stack(128)
        where = i64_pointer(addresses)
        for j in range(16):
            where[j] = x + 4 * (first * values_of_super + j * group)
        load_transposed(values, addresses, group)
        if weighted:
            for j in range(16):
                where[j] = importance + 4 * ((first * values_of_super + j * group) % columns)
            load_transposed(weights, addresses, group)
            clip(values, weights)
        largest = splat(0.0)
        for i in range(group):
            largest = maximum(largest, magnitude(load_f32x16(values + 64 * i)))
        up = power_above(max_within(largest, supers))
        squares = splat(0.0)
        for i in range(group):
            v = mul_exact(load_f32x16(values + 64 * i), up)  # [16]
            store_f32x16(values + 64 * i, v)
            squares = fma(v, v, squares)
        base = mul_exact(sum_within(squares, supers), splat(spread / values_of_super))
        for i in range(group):
            v = load_f32x16(values + 64 * i)  # [16]
            w = splat(1.0) if flat else square_root(fma(v, v, base))
            if weighted:
                w = mul_exact(w, load_f32x16(weights + 64 * i))
            store_f32x16(weights + 64 * i, w)
        return up

    return inner(load, recipe)


def store_tile(recipe: Recipe) -> Any:
    """A function (out, values, levels, up, d, sc, dmin, m, inverse, shift) that packs 16 groups as blocks at `out`.

    d, dmin, sc and m are of each lane; (value + shift) * inverse is what is rounded to a level. `levels` is memory that
    is written over.
    """
    layout, group, supers = recipe.layout, recipe.group, recipe.supers
    code, emit = to_code(recipe.low, recipe.high, recipe.table), emit_block(layout)
    blocks, two_level, has_min = 16 // supers, layout.scales > 0, recipe.has_min
    block, scales, nbytes, scale_at, min_at = layout.block, layout.scales, layout.nbytes, layout.scale_at, layout.min_at
    sign = layout.min_sign

    def store(out, values, levels, up, d, sc, dmin, m, inverse, shift):
        codes, small, source, packed, floats = stack(512), stack(32), stack(320), stack(320), stack(128)
        for i in range(group):
            store_f32x16(levels + 64 * i, code(mul_exact(add_exact(load_f32x16(values + 64 * i), shift), inverse)))
        store_codes_transposed(codes, levels, group)
        if two_level:
            store_bytes(small, sc)
            store_bytes(small + 16, m)
        store_f32x16(floats, div_exact(d, up))
        store_f32x16(floats + 64, mul_exact(div_exact(dmin, up), splat(sign)))
        f = f32_pointer(floats)
        for b in range(blocks):
            copy_bytes(source, codes + b * block, block)
            if two_level:
                copy_bytes(source + block, small + b * scales, scales)
                if has_min:
                    copy_bytes(source + block + scales, small + 16 + b * scales, scales)
            emit(packed, source)
            if scale_at >= 0:
                store_f16(packed + scale_at, f[b * supers])
            if has_min:
                store_f16(packed + min_at, f[16 + b * supers])
            copy_bytes(out + b * nbytes, packed, nbytes)

    return inner(store, recipe)


def encode_tiles(recipe: Recipe, choose: Any) -> Any:
    """A kernel's function: task t encodes `tiles` tiles from tile t * tiles on.

    choose(values, weights, up) gives what `store_tile` stores: d, sc, dmin, m, inverse, shift.
    """
    load, store = load_tile(recipe), store_tile(recipe)
    per_tile, nbytes = 16 // recipe.supers, recipe.layout.nbytes

    def encode(a, task):
        values, weights, levels = stack(2048), stack(2048), stack(2048)  # [group, 16] each
        for tile in range(task * a.tiles, (task + 1) * a.tiles):
            first = min(tile * per_tile, a.supers - per_tile)
            up = load(values, weights, a.x, a.importance, first, a.columns)
            d, sc, dmin, m, inverse, shift = choose(values, weights, up)
            store(a.out + first * nbytes, values, levels, up, d, sc, dmin, m, inverse, shift)

    return encode
