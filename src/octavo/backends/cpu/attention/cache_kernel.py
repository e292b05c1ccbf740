# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""The KV cache: the loops that write and read keys and values of a page of 64 positions, as `cache_layout.py` has them.

Algorithm: a paged KV cache with transposed keys, so that no sum crosses lanes.
Tile:
    keys     [D, 64 positions]    scores [n queries, 16 to 64 positions] in registers, += k[d] * q[d] for each d
    values   [64 positions, 32 columns]    sums [n queries, columns] in registers, += v[position] * weight
Bound: bytes: a token at depth 16,384 takes 5.3 ms from f16 in memory and 1.9 from the L1 with AVX-512, 3.1 and 1.9 from
    q8_0 (docs/log.md, "Attention of one token waited for scales and for lines fetched in leaps").
Tried: docs/log.md: "Attention of one token waited for scales and for lines fetched in leaps"; "Integer scores for a
    q8_0 KV cache gain little where memory is slow"; "A KV cache in small memory pages costs more than reading it".
Twin: `octavo.formats.cache_formats.CacheFormat.rounded`, `octavo.backends.reference.ops.set_rows`

Where a key or value has a scale, a static one for all of a head or one of its own, a query is multiplied with the
static one of keys beforehand; that of values is left to who divides by the total of weights.
"""

from __future__ import annotations

from typing import Any

from numba import float32

from octavo.backends.cpu.attention import cache_int4_kernel as cache_int4
from octavo.backends.cpu.attention import cache_int8_kernel as cache_int8
from octavo.backends.cpu.attention.cache_layout import (
    ROW_SCALES,
    SCALES,
    SUMS,
    WIDTH,
    Kind,
    fetch,
    head_bytes,
    largest_of,
    scale_row,
    score_width,
    value_columns,
)
from octavo.graph.node import PAGE_SIZE
from octavo.jit.compile import exact, inner
from octavo.jit.simd import (
    add_blocks,
    div_exact,
    f32_pointer,
    fma_columns_f16,
    fma_panel_e4m3,
    fma_panel_f16,
    fma_panel_f32,
    fma_panel_s8,
    i8_pointer,
    largest_magnitude,
    load_f16x16,
    load_f32x16,
    load_panel,
    maximum,
    minimum,
    mul,
    quantize16,
    scale_columns,
    scale_panel,
    scatter_f16,
    splat,
    stack,
    store_e4m3x16,
    store_f16,
    store_f16x16,
    store_f32x16,
    store_panel,
    zeros,
)

_FMA = {
    "f16": fma_panel_f16, "f32": fma_panel_f32, "q8_0": fma_panel_s8, "fp8": fma_panel_e4m3,
    "fp8_static": fma_panel_e4m3,
}
UNIT = {"fp8": 256.0, "fp8_static": 256.0}
"""What numbers are divided by as kernels load them, for what loads them to make up for; 1 of others."""


def is_static(kind: Kind) -> bool:
    """Whether a head of keys, or of values, has one scale for all."""
    return kind.endswith("_static")


def is_rotated(kind: Kind) -> bool:
    """Whether keys and values are rotated, queries too, and results to be rotated back."""
    return kind == "int4"


def query_bytes(kind: Kind, dim: int) -> int:
    """Bytes of a query as `score_function` reads it."""
    if kind == "int4":
        return cache_int4.nibble_query_bytes(dim)
    return cache_int8.QUERY_HEADER + 2 * dim if kind.startswith("int8") else 4 * dim


def query_function(kind: Kind, dim: int) -> Any:
    """A function (target, source, scale): a query as `score_function` reads it of D floats, times a static scale."""
    if kind == "int4":
        return cache_int4.nibble_query_function(kind, dim)
    if kind.startswith("int8"):
        return cache_int8.pair_query_function(kind, dim)
    static = is_static(kind)

    def set_query(target, source, scale):
        x, y = f32_pointer(source), f32_pointer(target)
        for d in range(dim):
            y[d] = x[d] * scale if static else x[d]

    return inner(set_query, kind, dim)


def score_function(kind: Kind, n: int, dim: int) -> Any:
    """A function (scores, q, at, ahead, rows): scores [n, 64] = queries q [n, D] times a head's keys of a page.

    Queries are as `query_function` makes them. Scores past `rows` may be left as they were. What lies at
    `ahead` is read next and fetched meanwhile.
    """
    if n > SUMS:
        first, rest = score_function(kind, SUMS, dim), score_function(kind, n - SUMS, dim)
        score_bytes, those = SUMS * PAGE_SIZE * 4, SUMS * query_bytes(kind, dim)

        def scores_of_all(scores, q, page, ahead, rows):
            first(scores, q, page, ahead, rows)
            rest(scores + score_bytes, q + those, page, page, rows)

        return inner(scores_of_all, kind, n, dim)
    if kind == "int4":
        return cache_int4.nibble_score_function(kind, n, dim)
    if kind.startswith("int8"):
        return cache_int8.pair_score_function(kind, n, dim)
    width = score_width(n)
    size, parts = n * width, 4 // width
    columns, row_bytes = 16 * width, PAGE_SIZE * WIDTH[kind]
    part_bytes, fma_panel = columns * WIDTH[kind], _FMA[kind]
    coded, scaled = kind == "q8_0", kind == "fp8"
    blocks, of_block = (dim // 32, 32) if coded else (1, dim)
    header = ROW_SCALES if scaled else 0
    block_bytes = head_bytes(kind, dim) // blocks
    fetched = (block_bytes - header) // parts

    def scores_of(scores, q, page, ahead, rows):
        fetch(ahead, header)
        for part in range(min(parts, -(-rows // columns))):
            total = zeros(size)  # [n, columns]
            for block in range(blocks):
                start = page + header + block * block_bytes
                at, x = start + part * part_bytes, q + block * of_block * 4
                next_part = ahead + header + (part * blocks + block) * fetched
                if coded:
                    fetch(next_part, SCALES // parts)
                    at, next_part = at + SCALES, next_part + SCALES // parts
                dots = zeros(size)
                for d in range(of_block):
                    fetch(next_part + d * part_bytes, part_bytes)
                    dots = fma_panel(dots, at + d * row_bytes, width, x + d * 4, dim * 4)  # [n, columns]
                if coded:
                    total = fma_columns_f16(total, dots, width, start + part * columns * 2)
                elif scaled:
                    total = scale_columns(dots, width, page + part * columns * 4)
                else:
                    total = dots
            store_panel(scores + part * columns * 4, 256, width, total)

    return inner(scores_of, kind, n, dim)


def value_function(kind: Kind, n: int, dim: int) -> Any:
    """A function that adds the values of a page, weighted, to sums [n, D] scaled by factors, a float every 16 bytes.

    Its arguments: sums, weights [n, 64], factors, where the values lie, what to fetch meanwhile, rows.
    """
    width = value_columns(dim) // 16
    if n * width > SUMS:
        some = SUMS // width
        first, others = value_function(kind, some, dim), value_function(kind, n - some, dim)
        sum_bytes, these, factor_bytes = some * dim * 4, some * PAGE_SIZE * 4, some * 16

        def add_all_values(sums, weights, factors, at, ahead, rows):
            first(sums, weights, factors, at, ahead, rows)
            others(sums + sum_bytes, weights + these, factors + factor_bytes, at, at, rows)

        return inner(add_all_values, kind, n, dim)
    if kind == "int4":
        return cache_int4.nibble_value_function(kind, n, dim)
    if kind.startswith("int8"):
        return cache_int8.pair_value_function(kind, n, dim)
    size = n * width
    columns, row_bytes = dim // (16 * width), 16 * width * WIDTH[kind]
    coded, scaled_rows, in_pairs, fma_panel = kind == "q8_0", kind == "fp8", 2 * size <= SUMS, _FMA[kind]
    weight_bytes = n * 256 if coded else 16

    def add_values(sums, weights, factors, at, ahead, rows):
        ahead -= at
        scaled = stack(weight_bytes)
        if scaled_rows:
            for t in range(n):
                scale_row(weights + t * 256, at, rows)
            fetch(ahead + at, ROW_SCALES)
            at += ROW_SCALES
        for column in range(columns):
            x = weights
            if coded:
                scale_weights(scaled, weights, at, n)
                fetch(ahead + at, SCALES)
                at, x = at + SCALES, scaled
            place = sums + column * 64 * width
            acc = scale_panel(load_panel(place, dim * 4, n, width), width, factors, 16)  # [n, 16 * width]
            odd = zeros(size)
            if in_pairs:
                for r in range(0, rows - 1, 2):
                    fetch(ahead + at + r * row_bytes, 2 * row_bytes)
                    acc = fma_panel(acc, at + r * row_bytes, width, x + r * 4, 256)
                    odd = fma_panel(odd, at + (r + 1) * row_bytes, width, x + r * 4 + 4, 256)
                if rows % 2:
                    acc = fma_panel(acc, at + (rows - 1) * row_bytes, width, x + (rows - 1) * 4, 256)
                acc = add_blocks(acc, odd)
            else:  # the same sums, one after the other, as registers hold no more
                for r in range(0, rows, 2):
                    fetch(ahead + at + r * row_bytes, 2 * row_bytes)
                    acc = fma_panel(acc, at + r * row_bytes, width, x + r * 4, 256)
                store_panel(place, dim * 4, width, acc)
                for r in range(1, rows, 2):
                    odd = fma_panel(odd, at + r * row_bytes, width, x + r * 4, 256)
                acc = add_blocks(load_panel(place, dim * 4, n, width), odd)
            store_panel(place, dim * 4, width, acc)
            at += 64 * row_bytes

    return inner(add_values, kind, n, dim)


@exact
def scale_weights(out, weights, scales, n):
    """out [n, 64] = weights [n, 64] times 64 f16 scales."""
    for i in range(4):
        scale = load_f16x16(scales + 32 * i)  # [16]
        for t in range(n):
            at = t * 256 + 64 * i
            store_f32x16(out + at, mul(load_f32x16(weights + at), scale))


def set_key_function(kind: Kind, dim: int) -> Any:
    """A function (keys, key, row, kv_head, kv_heads, scale) that writes the float32 key [D] of one head.

    A static scale is used, any other is not.
    """
    if kind == "int4":
        return cache_int4.set_nibble_key_function(kind, dim)
    if kind.startswith("int8"):
        return cache_int8.set_pair_key_function(kind, dim)
    piece, half, coded = head_bytes(kind, dim), kind == "f16", kind == "q8_0"
    small, scaled, block_bytes = kind.startswith("fp8"), kind == "fp8", SCALES + 64 * 32

    def set_key(keys, key, row, kv_head, kv_heads, scale):
        at, lane = keys + (row // PAGE_SIZE * kv_heads + kv_head) * piece, row % PAGE_SIZE
        x = f32_pointer(key)
        if coded:
            codes = stack(32)
            for block in range(dim // 32):
                store_f16(at + 2 * lane, quantize_block(codes, key + block * 128))
                for i in range(32):
                    i8_pointer(at + SCALES)[i * 64 + lane] = i8_pointer(codes)[i]
                at += block_bytes
        elif small:
            codes = stack(dim)
            if scaled:
                scale = largest_of(key, dim) / float32(448.0)
                f32_pointer(at)[lane] = scale * float32(256.0)
                at += ROW_SCALES
            set_e4m3(codes, key, dim, scale)
            for i in range(dim):
                i8_pointer(at)[i * 64 + lane] = i8_pointer(codes)[i]
        elif half:
            for i in range(dim // 16):
                scatter_f16(at + i * 2048 + lane * 2, 128, load_f32x16(key + i * 64))
        else:
            for i in range(dim):
                f32_pointer(at + i * 256)[lane] = x[i]

    return inner(set_key, kind, dim)


def set_value_function(kind: Kind, dim: int) -> Any:
    """A function (values, value, row, kv_head, kv_heads, scale) that writes the float32 value [D] of one head."""
    if kind == "int4":
        return cache_int4.set_nibble_value_function(kind, dim)
    if kind.startswith("int8"):
        return cache_int8.set_pair_value_function(kind, dim)
    piece, half, coded = head_bytes(kind, dim), kind == "f16", kind == "q8_0"
    small, scaled = kind.startswith("fp8"), kind == "fp8"
    columns = value_columns(dim)
    column_bytes = PAGE_SIZE * columns * WIDTH[kind] + (SCALES if coded else 0)
    halves, row_bytes = columns // 16, columns * WIDTH[kind]

    def set_value(values, value, row, kv_head, kv_heads, scale):
        at, place = values + (row // PAGE_SIZE * kv_heads + kv_head) * piece, row % PAGE_SIZE
        if scaled:
            scale = largest_of(value, dim) / float32(448.0)
            f32_pointer(at)[place] = scale * float32(256.0)
            at += ROW_SCALES
        for column in range(dim // columns):
            x = value + column * columns * 4
            if coded:
                store_f16(at + 2 * place, quantize_block(at + SCALES + place * row_bytes, x))
            if small:
                set_e4m3(at + place * row_bytes, x, columns, scale)
            for i in range(0 if coded or small else halves):
                if half:
                    store_f16x16(at + place * row_bytes + i * 32, load_f32x16(x + i * 64))
                else:
                    store_f32x16(at + place * row_bytes + i * 64, load_f32x16(x + i * 64))
            at += column_bytes

    return inner(set_value, kind, dim)


@exact
def set_e4m3(codes, x, count, scale):
    """`count` floats over their scale, cut off at 448, as e4m3 numbers at `codes`."""
    over, top, low = splat(scale if scale > 0 else float32(1.0)), splat(float32(448.0)), splat(float32(-448.0))
    for i in range(0, count, 16):
        value = div_exact(load_f32x16(x + 4 * i), over)
        store_e4m3x16(codes + i, minimum(maximum(value, low), top))


@exact
def quantize_block(codes, x):
    """32 floats at address x as codes round(x / d); returns d = max|x| / 127."""
    low, high = load_f32x16(x), load_f32x16(x + 64)
    largest = largest_magnitude(low, high)
    inverse = splat(float32(127.0) / largest if largest > 0 else float32(0.0))
    quantize16(codes, mul(low, inverse))
    quantize16(codes + 16, mul(high, inverse))
    return largest / float32(127.0)
