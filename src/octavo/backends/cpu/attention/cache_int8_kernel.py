# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Keys and values of 8 bits in the KV cache (types `int8`), multiplied as integers: no code becomes a float.

Algorithm: a KV cache of int8 with a scale for each head's key and value; 16-bit integer products (vpmaddwd, vpdpwssd).
Tile: two codes of a column lie side by side, as the instructions want them:
    int8         keys [pages, Hkv, 64 f32 scales and D / 2 x 64 x 2 s8],
                 values [pages, Hkv, 64 f32 scales and D / 32 x 32 x 32 x 2 s8]
    int8_static  the same without the scales, which are a number for each head
Bound: bytes: a token at depth 16,384 takes 2.9 ms from memory and 1.1 from the L1 with AVX-512 (3.0 and 1.6 with AVX2;
    docs/log.md, "Attention of one token waited for scales and for lines fetched in leaps").
Tried: docs/log.md: "Attention of one token waited for scales and for lines fetched in leaps"; "Integer scores for a
    q8_0 KV cache gain little where memory is slow".
Twin: `octavo.formats.cache_formats.CacheFormat.rounded`, `octavo.backends.reference.ops.attention`

Queries, and the weights of a page, become numbers of 16 bits with a scale for each query; sums of their products with
codes are exact integers. A query is a float32 scale, 12 unused bytes, and its D numbers.
"""

from __future__ import annotations

from typing import Any

from numba import float32

from octavo.backends.cpu.attention.cache_layout import (
    ROW_SCALES,
    Kind,
    fetch,
    head_bytes,
    larger,
    largest_of,
    scale_row,
    score_width,
    value_columns,
)
from octavo.graph.node import PAGE_SIZE
from octavo.jit.compile import exact, inner
from octavo.jit.simd import (
    add_blocks,
    add_pairs,
    div_exact,
    f32_pointer,
    i8_pointer,
    largest_magnitude,
    load_f32x16,
    load_panel,
    mul,
    round16,
    scale_columns,
    scale_panel,
    splat,
    stack,
    store_panel,
    store_s16x16,
    to_floats,
    zero_sums,
)

QUERY_HEADER = 16
"""Bytes before the numbers of a query."""


@exact
def set_query(target, source, dim, key_scale):
    """A query of 16-bit numbers from `dim` floats; its scale has that of the head's keys in it."""
    largest = largest_of(source, dim)
    inverse = splat(float32(32767.0) / largest if largest > 0 else float32(0.0))
    for i in range(0, dim, 16):
        store_s16x16(target + QUERY_HEADER + 2 * i, mul(load_f32x16(source + 4 * i), inverse))
    f32_pointer(target)[0] = largest / float32(32767.0) * key_scale


def pair_query_function(kind: Kind, dim: int) -> Any:
    """A function as `kv.query_function` has it."""

    def set_pair_query(target, source, scale):
        set_query(target, source, dim, scale)

    return inner(set_pair_query, kind, dim)


def pair_score_function(kind: Kind, n: int, dim: int) -> Any:
    """A function (scores, q, page, ahead, rows) as `kv.score_function` has it, of n queries as `set_query` makes them.

    There are no more than SUMS queries.
    """
    width = score_width(n)
    size, parts = n * width, 4 // width
    columns, part_bytes = 16 * width, 32 * width
    scaled, query_bytes = kind == "int8", QUERY_HEADER + 2 * dim
    header, fetched = ROW_SCALES if scaled else 0, part_bytes * dim // 2

    def scores_of(scores, q, page, ahead, rows):
        fetch(ahead, header)
        for part in range(min(parts, -(-rows // columns))):
            at = page + header + part * part_bytes
            next_part = ahead + header + part * fetched
            sums = zero_sums(size)  # [n, columns]
            for d in range(dim // 2):
                fetch(next_part + d * part_bytes, part_bytes)
                sums = add_pairs(sums, at + d * 128, width, q + QUERY_HEADER + d * 4, query_bytes)
            dots = scale_panel(to_floats(sums), width, q, query_bytes)
            if scaled:
                dots = scale_columns(dots, width, page + part * columns * 4)
            store_panel(scores + part * columns * 4, 256, width, dots)

    return inner(scores_of, kind, n, dim)


def pair_value_function(kind: Kind, n: int, dim: int) -> Any:
    """A function as `kv.value_function` has it, of values that are codes; n rows of columns fit SUMS.

    A static scale is left to who divides by the total of the weights.
    """
    width = value_columns(dim) // 16
    size, columns, row_bytes = n * width, dim // (16 * width), 32 * width
    scaled = kind == "int8"
    header, pair_bytes, scale_bytes = (ROW_SCALES if scaled else 0), n * 128, n * 16

    def add_values(sums, weights, factors, at, ahead, rows):
        ahead -= at
        pairs, scales = stack(pair_bytes), stack(scale_bytes)
        for t in range(n):
            if scaled:
                scale_row(weights + t * 256, at, rows)
            f32_pointer(scales)[4 * t] = pairs_of(pairs + t * 128, weights + t * 256)
        fetch(ahead + at, header)
        at += header
        for column in range(columns):
            place = sums + column * 64 * width
            total = zero_sums(size)  # [n, 16 * width]
            for r in range((rows + 1) // 2):
                fetch(ahead + at + r * row_bytes, row_bytes)
                total = add_pairs(total, at + r * row_bytes, width, pairs + r * 4, 128)
            before = scale_panel(load_panel(place, dim * 4, n, width), width, factors, 16)  # [n, 16 * width]
            store_panel(place, dim * 4, width, add_blocks(before, scale_panel(to_floats(total), width, scales, 16)))
            at += 32 * row_bytes

    return inner(add_values, kind, n, dim)


@exact
def pairs_of(pairs, weights):
    """64 weights as numbers of 16 bits at `pairs`; returns their scale, which is NaN if a weight is."""
    a, b = load_f32x16(weights), load_f32x16(weights + 64)  # [16] each
    c, d = load_f32x16(weights + 128), load_f32x16(weights + 192)  # [16] each
    largest = larger(largest_magnitude(a, b), largest_magnitude(c, d))
    inverse = splat(float32(32767.0) / largest if largest > 0 else float32(0.0))
    store_s16x16(pairs, mul(a, inverse))
    store_s16x16(pairs + 32, mul(b, inverse))
    store_s16x16(pairs + 64, mul(c, inverse))
    store_s16x16(pairs + 96, mul(d, inverse))
    return largest / float32(32767.0)


@exact
def set_pair_codes(codes, x, dim, scale):
    """`dim` floats over their scale as bytes from -127 to 127, at `codes`."""
    over = splat(scale if scale > 0 else float32(1.0))
    for i in range(0, dim, 16):
        round16(codes + i, div_exact(load_f32x16(x + 4 * i), over), float32(-127.0), float32(127.0), 0)


def set_pair_key_function(kind: Kind, dim: int) -> Any:
    """A function as `kv.set_key_function` has it."""
    piece, scaled = head_bytes(kind, dim), kind == "int8"

    def set_key(keys, key, row, kv_head, kv_heads, scale):
        at, lane = keys + (row // PAGE_SIZE * kv_heads + kv_head) * piece, row % PAGE_SIZE
        if scaled:
            scale = largest_of(key, dim) / float32(127.0)
            f32_pointer(at)[lane] = scale
            at += ROW_SCALES
        codes = stack(dim)
        set_pair_codes(codes, key, dim, scale)
        source, target = i8_pointer(codes), i8_pointer(at + 2 * lane)
        for d in range(0, dim, 2):
            target[d * 64], target[d * 64 + 1] = source[d], source[d + 1]

    return inner(set_key, kind, dim)


def set_pair_value_function(kind: Kind, dim: int) -> Any:
    """A function as `kv.set_value_function` has it."""
    piece, scaled, columns = head_bytes(kind, dim), kind == "int8", value_columns(dim)

    def set_value(values, value, row, kv_head, kv_heads, scale):
        at, place = values + (row // PAGE_SIZE * kv_heads + kv_head) * piece, row % PAGE_SIZE
        if scaled:
            scale = largest_of(value, dim) / float32(127.0)
            f32_pointer(at)[place] = scale
            at += ROW_SCALES
        codes = stack(dim)
        set_pair_codes(codes, value, dim, scale)
        source = i8_pointer(codes)
        for column in range(dim // columns):
            target = i8_pointer(at + (column * PAGE_SIZE + place // 2 * 2) * columns + place % 2)
            for i in range(columns):
                target[2 * i] = source[column * columns + i]

    return inner(set_value, kind, dim)
