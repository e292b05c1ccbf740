# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Keys of 8 and 4 bits that are values too, for 16 query heads at a time: both products of integers, which are exact.

Algorithm: multi-head latent attention with absorbed projections (DeepSeek-V2, arXiv 2405.04434), by 16-bit products.
Tile: numbers of 16 bits with a scale for each head, two of a head side by side; LANES heads are the lanes:
    queries  float32 scales [LANES], then s16 [D / 2, LANES, 2]
    weights  s16 [64 / 2, LANES, 2], with the scales of a page's keys in them
    keys     a chunk of up to 64 values of a page as s16 [chunk / 2, 64, 2], in the L1 for all that reads it
Bound: instructions: with 8,192 tokens in the cache a step of DeepSeek V2 Lite's shape is 1.30 times as fast from int8
    as from f16, and 0.96 times from int4 (bench/results/cache-speed-2026-11-26.json).
Tried: nothing else.
Twin: `octavo.backends.reference.ops.attention`

`cache_int8_kernel.py` and `cache_int4_kernel.py` say how keys of types `int8` and `int4` lie. Codes of a page become
numbers of 16 bits a few values of each key at a time; each pair of them multiplies all heads.
"""

from __future__ import annotations

import math
from typing import Any

from numba import float32

from octavo.backends.cpu.attention.cache_int4_kernel import CODES, GROUP
from octavo.backends.cpu.attention.cache_layout import ROW_SCALES, SCALES, SUMS, fetch
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
    load_f16x16,
    load_f32x16,
    maximum,
    mul,
    part_pairs,
    scale_block,
    splat,
    stack,
    store_block,
    store_f32x16,
    store_nibble_pairs,
    store_nibbles,
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
MAX_CHUNK = 64
"""Values whose sums of products fit 32 bits; a page of them stays in the first level of the cache."""
assert MAX_CHUNK * 127 * 32767 < 2**31


def pair_query_bytes(dim: int) -> int:
    """Bytes of 16 heads' queries."""
    return QUERY_SCALES + dim * 2 * LANES


@exact
def set_pair_queries(queries, rotated, dim):
    """Queries from floats [dim, LANES]."""
    store_f32x16(queries, pairs_of_rows(queries + QUERY_SCALES, rotated, dim))


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


@exact
def weight_pairs(pairs, scaled, weights, scales, low, high):
    """Pairs of rows `low` to `high` of weights [64, LANES] times 64 float32 scales; returns scales of lanes."""
    first, end, numbers = low // 2 * 2, (high + 1) // 2 * 2, f32_pointer(scales)
    for r in range(first, end):  # one before and one after may be no number
        visible = low <= r < high
        row = mul(load_f32x16(weights + r * 64), splat(numbers[r])) if visible else splat(float32(0.0))
        store_f32x16(scaled + r * 64, row)
    return pairs_of_rows(pairs + first * 32, scaled + first * 64, end - first)


@exact
def set_scales(scales, halves):
    """64 float32 scales of float16 ones."""
    for i in range(4):
        store_f32x16(scales + 64 * i, load_f16x16(halves + 32 * i))


def _dots(count: int) -> Any:
    """A function (pairs, keys): the products of a tile of keys, `count` values of each, as floats [SUMS, LANES].

    Keys are s16 [count / 2, 64, 2], from the tile's first on.
    """
    tile, steps, row_bytes = SUMS, count // 2, 4 * PAGE_SIZE

    def dots(pairs, keys):
        sums = zero_sums(tile)  # [tile, LANES]
        for d in range(steps):
            sums = add_splat_pairs(sums, pairs + d * 64, keys + d * row_bytes, 4)
        return to_floats(sums)

    return inner(dots, count, inline="always")


def _add_tile() -> Any:
    """A function (sums, pairs, keys, low, high, factor, scale): sums [SUMS, LANES] times `factor`, plus `scale` times
    rows `low` to `high` of keys s16 [SUMS, 64], each times its pairs of weights."""
    tile, row_bytes = SUMS, 2 * PAGE_SIZE

    def add_tile(sums, pairs, keys, low, high, factor, scale):
        total = zero_sums(tile)  # [tile, LANES]
        for r in range(low // 2 * 2, (high + 1) // 2 * 2, 2):
            total = add_splat_pairs(total, pairs + r * 32, keys + r * 2, row_bytes)
        before = fma_blocks(zeros(tile), load_block(sums, 64, tile), factor)
        store_block(sums, 64, fma_blocks(before, to_floats(total), scale))

    return inner(add_tile, inline="always")


def pair_score_function(dim: int) -> Any:
    """A function (scores, queries, page, ahead, rows) as `latent_attention` has it for other types."""
    chunk, tile = math.gcd(dim, MAX_CHUNK), SUMS
    key_bytes, dots = chunk * PAGE_SIZE * 2, _dots(chunk)

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
                found = dots(pairs, keys + r * 4)
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
    row_bytes, add_tile = 2 * PAGE_SIZE, _add_tile()

    def add_values(sums, weights, factor, page, low, high):
        pairs, scaled, keys = stack(pair_bytes), stack(float_bytes), stack(key_bytes)  # keys [chunk, 64]
        scale = weight_pairs(pairs, scaled, weights, page, low, high)
        for start in range(0, value_dim, chunk):
            place = page + ROW_SCALES + start * PAGE_SIZE
            for d in range(0, chunk, 2):
                for half in range(2):
                    to = keys + d * row_bytes + half * 64
                    part_pairs(to, to + row_bytes, place + d * PAGE_SIZE + half * 64)
            for d in range(0, chunk, tile):
                add_tile(sums + (start + d) * 64, pairs, keys + d * row_bytes, low, high, factor, scale)

    return inner(add_values, dim, value_dim)


def nibble_score_function(dim: int) -> Any:
    """The same of keys of 4 bits, whose groups have scales of their own."""
    tile, key_bytes, row_bytes, group_bytes = SUMS, GROUP * PAGE_SIZE * 2, 4 * PAGE_SIZE, SCALES + CODES
    dots = _dots(GROUP)

    def scores_of(scores, queries, page, ahead, rows):
        keys, scales = stack(key_bytes), stack(row_bytes)  # keys [GROUP / 2, 64, 2]
        for group in range(dim // GROUP):
            at, pairs = page + group * group_bytes, queries + QUERY_SCALES + group * GROUP * 32
            fetch(ahead + group * group_bytes, group_bytes)
            set_scales(scales, at)
            for row in range(4):
                for part in range(4):
                    codes = at + SCALES + row * 256 + part * 64
                    for i in range(4):
                        pair = 2 * row + i // 2 + i % 2 * 8  # of the low four bits, or of the high ones
                        store_nibble_pairs(keys + pair * row_bytes + part * 64, codes, i // 2 * 16 + i % 2 * 4)
            for r in range(0, rows, tile):
                found = scale_block(dots(pairs, keys + r * 4), scales + r * 4, 4)
                if group > 0:
                    found = add_blocks(found, load_block(scores + r * 64, 64, tile))
                store_block(scores + r * 64, 64, found)
        scale = load_f32x16(queries)
        for r in range(rows):
            store_f32x16(scores + r * 64, mul(load_f32x16(scores + r * 64), scale))

    return inner(scores_of, dim)


def nibble_value_function(dim: int, value_dim: int) -> Any:
    """The same of keys of 4 bits; the weights of a page are made pairs for each group."""
    tile, pair_bytes, float_bytes = SUMS, PAGE_SIZE * 2 * LANES, PAGE_SIZE * 4 * LANES
    key_bytes, row_bytes, scale_bytes, group_bytes = GROUP * PAGE_SIZE * 2, 2 * PAGE_SIZE, 4 * PAGE_SIZE, SCALES + CODES
    add_tile = _add_tile()

    def add_values(sums, weights, factor, page, low, high):
        pairs, scaled = stack(pair_bytes), stack(float_bytes)
        keys, scales = stack(key_bytes), stack(scale_bytes)  # keys [GROUP, 64]
        for group in range((value_dim + GROUP - 1) // GROUP):
            place = page + group * group_bytes
            set_scales(scales, place)
            scale = weight_pairs(pairs, scaled, weights, scales, low, high)
            for row in range(4):
                for part in range(4):
                    codes = place + SCALES + row * 256 + part * 64
                    for i in range(8):
                        d = 4 * row + i // 2 + i % 2 * 16
                        store_nibbles(keys + d * row_bytes + part * 32, codes, i // 2 * 8 + i % 2 * 4)
            for d in range(0, GROUP, tile):
                add_tile(sums + (group * GROUP + d) * 64, pairs, keys + d * row_bytes, low, high, factor, scale)

    return inner(add_values, dim, value_dim)
