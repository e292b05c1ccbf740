# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Keys and values of 4 bits in the KV cache (type `int4`), rotated, and multiplied as integers.

Algorithm: a KV cache of 4 bits behind a Hadamard rotation of heads, as QuaRot's (arXiv 2404.00456); integer products.
Tile: a byte has two codes of one position; those of 32 of D lie behind their 64 f16 scales, one a position:
    keys    [pages, Hkv, D / 32, 64 f16 scales and 4 x 64 x 4 bytes]: row j has d = 4 j to 4 j + 3, and those 16 later,
            as codes from 0 to 15, which are 8 more than numbers
    values  [pages, Hkv, D / 32, 64 f16 scales and 16 x 16 x 4 bytes]: four positions, of which the second comes after
            the third, of 16 columns and of those 16 later, in two's complement
Bound: bytes, then instructions: a token at depth 16,384 takes 2.1 ms from memory and 1.3 from the L1 with AVX-512 (2.4
    and 1.9 with AVX2; docs/log.md, "Attention of one token waited for scales and for lines fetched in leaps").
Tried: docs/log.md: "Weights of 8 bits for int4 values were not worth it"; "Attention of one token waited for scales and
    for lines fetched in leaps".
Twin: `octavo.formats.cache_formats.CacheFormat.rounded`, `octavo.backends.reference.ops.attention`

Queries are rotated and rounded to 8 bits, a sixteenth of a code's step. A query is a float32 scale, 12 unused bytes,
its D numbers, and for each 32 of them their sum times -8 as int32. The weights of a page become numbers of 16 bits for
each 32 columns, whose scales they are multiplied with. Results are rotated back by who divides by the total of weights.
"""

from __future__ import annotations

from typing import Any

from numba import float32

from octavo.backends.cpu.attention.cache_int8_kernel import QUERY_HEADER, pairs_of
from octavo.backends.cpu.attention.cache_layout import (
    SCALES,
    Kind,
    fetch,
    head_bytes,
    largest_of,
    scale_row_f16,
    score_width,
)
from octavo.backends.cpu.attention.rotation import rotate
from octavo.graph.node import PAGE_SIZE
from octavo.jit.compile import exact, inner
from octavo.jit.simd import (
    add_blocks,
    add_nibble_dots,
    add_nibble_pairs,
    div_exact,
    f32_pointer,
    fma_columns_f16,
    i8_pointer,
    i32_pointer,
    largest_magnitude,
    load_f16,
    load_f32x16,
    load_panel,
    load_sums,
    max_lanes,
    maximum,
    mul,
    quantize16,
    round16,
    scale_panel,
    splat,
    stack,
    store_f16,
    store_panel,
    to_floats,
    u8_pointer,
    zero_sums,
    zeros,
)

GROUP = 32
CODES = PAGE_SIZE * GROUP // 2
"""Bytes of the codes of 32 of D in a page."""


def nibble_query_bytes(dim: int) -> int:
    """Bytes of a query."""
    return QUERY_HEADER + dim + dim // GROUP * 4


def nibble_query_function(kind: Kind, dim: int) -> Any:
    """A function as `kv.query_function` has it."""
    groups, nbytes = dim // GROUP, dim * 4

    def set_query(target, source, scale):
        rotated = stack(nbytes)
        rotate(rotated, source, dim)
        largest = largest_of(rotated, dim)
        inverse = splat(float32(127.0) / largest if largest > 0 else float32(0.0))
        f32_pointer(target)[0] = largest / float32(127.0)
        codes = target + QUERY_HEADER
        begins = i32_pointer(codes + dim)
        for i in range(groups):
            low = quantize16(codes + 32 * i, mul(load_f32x16(rotated + 128 * i), inverse))
            high = quantize16(codes + 32 * i + 16, mul(load_f32x16(rotated + 128 * i + 64), inverse))
            begins[i] = -8 * int(low + high)

    return inner(set_query, kind, dim)


def nibble_score_function(kind: Kind, n: int, dim: int) -> Any:
    """A function (scores, q, page, ahead, rows) as `kv.score_function` has it; there are no more than SUMS queries."""
    width = score_width(n)
    size, parts, groups = n * width, 4 // width, dim // GROUP
    columns, part_bytes, group_bytes = 16 * width, 64 * width, SCALES + CODES
    fetched = group_bytes // parts
    each = nibble_query_bytes(dim)

    def scores_of(scores, q, page, ahead, rows):
        for part in range(min(parts, -(-rows // columns))):
            total = zeros(size)  # [n, columns]
            for group in range(groups):
                at, codes = page + group * group_bytes, q + QUERY_HEADER + group * 32
                fetch(ahead + (part * groups + group) * fetched, fetched)
                sums = load_sums(q + QUERY_HEADER + dim + group * 4, each, n, width)  # [n, columns]
                sums = add_nibble_dots(sums, at + SCALES + part * part_bytes, width, codes, each)
                total = fma_columns_f16(total, to_floats(sums), width, at + part * columns * 2)
            store_panel(scores + part * columns * 4, 256, width, scale_panel(total, width, q, each))

    return inner(scores_of, kind, n, dim)


def nibble_value_function(kind: Kind, n: int, dim: int) -> Any:
    """A function as `kv.value_function` has it; 2 n vectors fit SUMS."""
    size, groups = 2 * n, dim // GROUP
    weight_bytes, pair_bytes, scale_bytes = n * 256, n * 128, n * 16

    def add_values(sums, weights, factors, at, ahead, rows):
        ahead -= at
        scaled, pairs, scales = stack(weight_bytes), stack(pair_bytes), stack(scale_bytes)
        for group in range(groups):
            fetch(ahead + at, SCALES)
            for t in range(n):
                scale_row_f16(scaled + t * 256, weights + t * 256, at, rows)
                f32_pointer(scales)[4 * t] = pairs_of(pairs + t * 128, scaled + t * 256)
            at += SCALES
            place = sums + group * 128
            total = zero_sums(size)  # [n, 32]
            for i in range((rows + 3) // 4):
                fetch(ahead + at + i * 64, 64)
                total = add_nibble_pairs(total, at + i * 64, pairs + i * 8, 128)
            before = scale_panel(load_panel(place, dim * 4, n, 2), 2, factors, 16)  # [n, 32]
            store_panel(place, dim * 4, 2, add_blocks(before, scale_panel(to_floats(total), 2, scales, 16)))
            at += CODES

    return inner(add_values, kind, n, dim)


@exact
def set_codes(codes, x, zero):
    """32 floats over their scale, from -8 to 7, plus `zero`, at `codes`; returns the scale, as f16 keeps it.

    What is largest becomes -8, so the scale has the other sign.
    """
    low, high = load_f32x16(x), load_f32x16(x + 64)
    largest = largest_magnitude(low, high)
    scale = largest * float32(-0.125 if max_lanes(maximum(low, high)) == largest else 0.125)
    kept = stack(16)
    store_f16(kept, scale)
    scale = load_f16(kept)
    over = splat(scale if scale != 0 else float32(1.0))
    round16(codes, div_exact(low, over), float32(-8.0), float32(7.0), zero)
    round16(codes + 16, div_exact(high, over), float32(-8.0), float32(7.0), zero)
    return scale


def set_nibble_key_function(kind: Kind, dim: int) -> Any:
    """A function as `kv.set_key_function` has it."""
    piece, nbytes, groups = head_bytes(kind, dim), dim * 4, dim // GROUP

    def set_key(keys, key, row, kv_head, kv_heads, scale):
        at, lane = keys + (row // PAGE_SIZE * kv_heads + kv_head) * piece, row % PAGE_SIZE
        rotated, codes = stack(nbytes), stack(32)
        rotate(rotated, key, dim)
        source = u8_pointer(codes)
        for group in range(groups):
            store_f16(at + 2 * lane, set_codes(codes, rotated + group * 128, 8))
            target = u8_pointer(at + SCALES + 4 * lane)
            for row_of_codes in range(4):
                for i in range(4):
                    d = 4 * row_of_codes + i
                    target[256 * row_of_codes + i] = source[d] | source[d + 16] << 4
            at += SCALES + CODES

    return inner(set_key, kind, dim)


def set_nibble_value_function(kind: Kind, dim: int) -> Any:
    """A function as `kv.set_value_function` has it."""
    piece, nbytes, groups = head_bytes(kind, dim), dim * 4, dim // GROUP

    def set_value(values, value, row, kv_head, kv_heads, scale):
        at, place = values + (row // PAGE_SIZE * kv_heads + kv_head) * piece, row % PAGE_SIZE
        rotated, codes = stack(nbytes), stack(32)
        rotate(rotated, value, dim)
        source = i8_pointer(codes)
        byte = place // 4 * 64 + place % 2 * 2 + place % 4 // 2
        for group in range(groups):
            store_f16(at + 2 * place, set_codes(codes, rotated + group * 128, 0))
            target = u8_pointer(at + SCALES + byte)
            for column in range(16):
                target[4 * column] = source[column] & 15 | source[column + 16] << 4 & 240
            at += SCALES + CODES

    return inner(set_value, kind, dim)
