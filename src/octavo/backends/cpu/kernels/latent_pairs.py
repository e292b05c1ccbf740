"""Keys of 8 bits that are values too, for 16 query heads at a time: both products of integers, which are exact.

`kv_pairs.py` says how keys of type `int8` lie. Here too queries, and the weights of a page, become numbers of 16 bits
with a scale for each head, two of a head side by side:

    queries  float32 scales [LANES], then s16 [D / 2, LANES, 2]
    weights  s16 [64 / 2, LANES, 2], with the scales of a page's keys in them

Codes of a page become numbers of 16 bits a few values of each key at a time; each pair of them multiplies all heads.
"""

from __future__ import annotations

import math
from typing import Any

from numba import float32

from octavo.backends.cpu.kernels.kv_layout import ROW_SCALES, SUMS, fetch
from octavo.graph.node import PAGE_SIZE
from octavo.jit.compile import exact, inner
from octavo.jit.simd import (
    add,
    add_blocks,
    add_splat_pairs,
    div,
    f32_pointer,
    fma_blocks,
    load_block,
    load_f32x16,
    maximum,
    mul,
    part_pairs,
    splat,
    stack,
    store_block,
    store_f32x16,
    store_pairs,
    sub,
    to_floats,
    widen_bytes,
    zero_sums,
    zeros,
)

LANES = 16
"""Query heads of a task."""
QUERY_SCALES = 4 * LANES
"""Bytes before the numbers of queries."""
MOST_CHUNK = 64
"""Values whose sums of products fit 32 bits; a page's keys of so many stay in the first level of the cache."""
assert MOST_CHUNK * 127 * 32767 < 2**31


def pair_query_bytes(dim: int) -> int:
    """Bytes of 16 heads' queries."""
    return QUERY_SCALES + dim * 2 * LANES


@exact
def set_pair_queries(queries, turned, dim):
    """Queries from floats [dim, LANES]."""
    store_f32x16(queries, pairs_of_rows(queries + QUERY_SCALES, turned, dim))


@exact
def pairs_of_rows(pairs, x, rows):
    """Floats x [rows, LANES] as pairs of rows, whose number is even; returns scales of lanes, NaN where one has NaN."""
    largest, marks = splat(float32(1e-30)), splat(float32(0.0))
    for r in range(rows):
        row = load_f32x16(x + r * 64)
        largest = maximum(largest, maximum(row, sub(splat(float32(0.0)), row)))
        marks = add(marks, mul(row, splat(float32(0.0))))
    inverse = div(splat(float32(32767.0)), largest)
    for r in range(0, rows, 2):
        first, second = load_f32x16(x + r * 64), load_f32x16(x + r * 64 + 64)
        store_pairs(pairs + r * 32, mul(first, inverse), mul(second, inverse))
    return add(div(largest, splat(float32(32767.0))), marks)


def pair_score_function(dim: int) -> Any:
    """A function (scores, queries, page, ahead, rows) as `latent_attention` has it for other types."""
    chunk, tile = math.gcd(dim, MOST_CHUNK), SUMS
    key_bytes, row_bytes = chunk * PAGE_SIZE * 2, 4 * PAGE_SIZE

    def scores_of(scores, queries, page, ahead, rows):
        keys = stack(key_bytes)  # [chunk / 2, 64, 2]
        fetch(ahead, ROW_SCALES)
        for start in range(0, dim, chunk):
            place, pairs = ROW_SCALES + start * PAGE_SIZE, queries + QUERY_SCALES + start * 32
            fetch(ahead + place, chunk * PAGE_SIZE)
            for i in range(0, key_bytes, 64):
                widen_bytes(keys + i, page + place + i // 2)
            for r in range(0, rows, tile):
                at = scores + r * 64
                sums = zero_sums(tile)  # [tile, LANES]
                for d in range(chunk // 2):
                    sums = add_splat_pairs(sums, pairs + d * 64, keys + d * row_bytes + r * 4, 4)
                found = to_floats(sums)
                if start > 0:
                    found = add_blocks(found, load_block(at, 64, tile))
                store_block(at, 64, found)
        scale, scales = load_f32x16(queries), f32_pointer(page)
        for r in range(rows):
            store_f32x16(scores + r * 64, mul(mul(load_f32x16(scores + r * 64), scale), splat(scales[r])))

    return inner(scores_of, dim)


def pair_value_function(dim: int, value_dim: int) -> Any:
    """A function (sums, weights, factor, page, low, high) as `latent_attention` has it for other types."""
    chunk, tile = math.gcd(dim, 32), SUMS
    pair_bytes, float_bytes, key_bytes = PAGE_SIZE * 2 * LANES, PAGE_SIZE * 4 * LANES, chunk * PAGE_SIZE * 2
    row_bytes = 2 * PAGE_SIZE

    def add_values(sums, weights, factor, page, low, high):
        pairs, scaled, keys = stack(pair_bytes), stack(float_bytes), stack(key_bytes)  # keys [chunk, 64]
        scales, first, end = f32_pointer(page), low // 2 * 2, (high + 1) // 2 * 2
        for r in range(first, end):  # one before and one after may be no number
            visible = low <= r < high
            row = mul(load_f32x16(weights + r * 64), splat(scales[r])) if visible else splat(float32(0.0))
            store_f32x16(scaled + r * 64, row)
        scale = pairs_of_rows(pairs + first * 32, scaled + first * 64, end - first)
        for start in range(0, value_dim, chunk):
            place = page + ROW_SCALES + start * PAGE_SIZE
            for d in range(0, chunk, 2):
                for half in range(2):
                    to = keys + d * row_bytes + half * 64
                    part_pairs(to, to + row_bytes, place + d * PAGE_SIZE + half * 64)
            for d in range(0, chunk, tile):
                total = zero_sums(tile)  # [tile, LANES]
                for r in range(first, end, 2):
                    total = add_splat_pairs(total, pairs + r * 32, keys + d * row_bytes + r * 2, row_bytes)
                at = sums + (start + d) * 64
                before = fma_blocks(zeros(tile), load_block(at, 64, tile), factor)
                store_block(at, 64, fma_blocks(before, to_floats(total), scale))

    return inner(add_values, dim, value_dim)
