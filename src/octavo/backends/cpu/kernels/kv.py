"""The KV cache: how keys and values of a page of 64 positions lie, and the loops that write and read them.

A head's keys of a page lie so that 64 positions are side by side, and no sum crosses lanes; its values in columns of
32 (16 where D is no multiple of 32). q8_0 has a scale for 32 of D, and 64 scales, one a position, before their codes.

    f16, f32   keys [pages, Hkv, D, 64], values [pages, Hkv, D / 32, 64, 32]
    q8_0       keys [pages, Hkv, D / 32, 64 f16 scales and 32 x 64 s8],
               values [pages, Hkv, D / 32, 64 f16 scales and 64 x 32 s8]

So a head's part of a page is in one piece that is read from its first byte to its last.
"""

from __future__ import annotations

from typing import Any, Literal

from numba import float32

from octavo.graph.node import PAGE_SIZE
from octavo.jit import host
from octavo.jit.compile import exact, inner
from octavo.jit.simd import (
    add_blocks,
    f32_pointer,
    fma_columns_f16,
    fma_panel_f16,
    fma_panel_f32,
    fma_panel_s8,
    i8_pointer,
    largest_magnitude,
    load_f16x16,
    load_f32x16,
    load_panel,
    mul,
    prefetch,
    quantize16,
    scale_panel,
    scatter_f16,
    splat,
    stack,
    store_f16,
    store_f16x16,
    store_f32x16,
    store_panel,
    zeros,
)

assert PAGE_SIZE == 64  # a page's scores are four vectors of 16

Kind = Literal["f16", "f32", "q8_0"]
SUMS = 16 if "avx512f" in host.features() else 4
"""Vectors of sums that a loop keeps: as many as leave registers for the rest. With AVX2 each is two of 16 registers."""

_FMA = {"f16": fma_panel_f16, "f32": fma_panel_f32, "q8_0": fma_panel_s8}
_WIDTH = {"f16": 2, "f32": 4, "q8_0": 1}
SCALES = 2 * PAGE_SIZE
"""Bytes of the scales before the codes of 32 of D, in q8_0."""


def head_bytes(kind: Kind, dim: int) -> int:
    """Bytes of a head's keys, or values, in a page."""
    return PAGE_SIZE * dim * _WIDTH[kind] + (SCALES * (dim // 32) if kind == "q8_0" else 0)


def score_function(kind: Kind, n: int, dim: int) -> Any:
    """A function (scores, q, at, ahead, rows): scores [n, 64] = q [n, D] times a head's keys of a page.

    Scores past `rows` may be left as they were. What lies at `ahead` is read next and fetched meanwhile.
    """
    if n > SUMS:
        first, rest = score_function(kind, SUMS, dim), score_function(kind, n - SUMS, dim)
        score_bytes, query_bytes = SUMS * PAGE_SIZE * 4, SUMS * dim * 4

        def scores_of_all(scores, q, page, ahead, rows):
            first(scores, q, page, ahead, rows)
            rest(scores + score_bytes, q + query_bytes, page, page, rows)

        return inner(scores_of_all, kind, n, dim)
    width = min(4, max(1, SUMS // n))
    size, parts = n * width, 4 // width
    columns, row_bytes = 16 * width, PAGE_SIZE * _WIDTH[kind]
    part_bytes, fma_panel = columns * _WIDTH[kind], _FMA[kind]
    coded = kind == "q8_0"
    blocks, of_block = (dim // 32, 32) if coded else (1, dim)
    block_bytes = head_bytes(kind, dim) // blocks

    def scores_of(scores, q, page, ahead, rows):
        for part in range(min(parts, -(-rows // columns))):
            total = zeros(size)  # [n, columns]
            for block in range(blocks):
                start = page + block * block_bytes
                at, x = start + part * part_bytes, q + block * of_block * 4
                if coded:
                    at += SCALES
                dots = zeros(size)
                for d in range(of_block):
                    fetch(ahead + at - page + d * row_bytes, part_bytes)
                    dots = fma_panel(dots, at + d * row_bytes, width, x + d * 4, dim * 4)  # [n, columns]
                if coded:
                    total = fma_columns_f16(total, dots, width, start + part * columns * 2)
                else:
                    total = dots
            store_panel(scores + part * columns * 4, 256, width, total)

    return inner(scores_of, kind, n, dim)


def value_function(kind: Kind, n: int, dim: int) -> Any:
    """A function that adds the values of a page, weighted, to sums [n, D] scaled by factors, a float every 16 bytes.

    Its arguments: sums, weights [n, 64], factors, where the values lie, what to fetch meanwhile, rows.
    """
    width = _columns(dim) // 16
    if n * width > SUMS:
        some = SUMS // width
        first, others = value_function(kind, some, dim), value_function(kind, n - some, dim)
        sum_bytes, these, factor_bytes = some * dim * 4, some * PAGE_SIZE * 4, some * 16

        def add_all_values(sums, weights, factors, at, ahead, rows):
            first(sums, weights, factors, at, ahead, rows)
            others(sums + sum_bytes, weights + these, factors + factor_bytes, at, at, rows)

        return inner(add_all_values, kind, n, dim)
    size = n * width
    columns, row_bytes = dim // (16 * width), 16 * width * _WIDTH[kind]
    coded, in_pairs, fma_panel = kind == "q8_0", 2 * size <= SUMS, _FMA[kind]
    weight_bytes = n * 256 if coded else 16

    def add_values(sums, weights, factors, at, ahead, rows):
        ahead -= at
        scaled = stack(weight_bytes)
        for column in range(columns):
            x = weights
            if coded:
                scale_weights(scaled, weights, at, n)
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
def fetch(address, nbytes):
    for i in range(0, nbytes, 64):
        prefetch(address + i)


@exact
def scale_weights(out, weights, scales, n):
    """out [n, 64] = weights [n, 64] times 64 f16 scales."""
    for i in range(4):
        scale = load_f16x16(scales + 32 * i)  # [16]
        for t in range(n):
            at = t * 256 + 64 * i
            store_f32x16(out + at, mul(load_f32x16(weights + at), scale))


def set_key_function(kind: Kind, dim: int) -> Any:
    """A function (keys, key, row, kv_head, kv_heads) that writes the float32 key [D] of one head."""
    piece, half, coded = head_bytes(kind, dim), kind == "f16", kind == "q8_0"
    block_bytes = SCALES + 64 * 32

    def set_key(keys, key, row, kv_head, kv_heads):
        at, lane = keys + (row // PAGE_SIZE * kv_heads + kv_head) * piece, row % PAGE_SIZE
        x = f32_pointer(key)
        if coded:
            codes = stack(32)
            for block in range(dim // 32):
                store_f16(at + 2 * lane, quantize_block(codes, key + block * 128))
                for i in range(32):
                    i8_pointer(at + SCALES)[i * 64 + lane] = i8_pointer(codes)[i]
                at += block_bytes
        elif half:
            for i in range(dim // 16):
                scatter_f16(at + i * 2048 + lane * 2, 128, load_f32x16(key + i * 64))
        else:
            for i in range(dim):
                f32_pointer(at + i * 256)[lane] = x[i]

    return inner(set_key, kind, dim)


def set_value_function(kind: Kind, dim: int) -> Any:
    """A function (values, value, row, kv_head, kv_heads) that writes the float32 value [D] of one head."""
    piece, half, coded = head_bytes(kind, dim), kind == "f16", kind == "q8_0"
    columns = _columns(dim)
    column_bytes = PAGE_SIZE * columns * _WIDTH[kind] + (SCALES if coded else 0)
    halves, row_bytes = columns // 16, columns * _WIDTH[kind]

    def set_value(values, value, row, kv_head, kv_heads):
        at, place = values + (row // PAGE_SIZE * kv_heads + kv_head) * piece, row % PAGE_SIZE
        for column in range(dim // columns):
            x = value + column * columns * 4
            if coded:
                store_f16(at + 2 * place, quantize_block(at + SCALES + place * row_bytes, x))
            for i in range(0 if coded else halves):
                if half:
                    store_f16x16(at + place * row_bytes + i * 32, load_f32x16(x + i * 64))
                else:
                    store_f32x16(at + place * row_bytes + i * 64, load_f32x16(x + i * 64))
            at += column_bytes

    return inner(set_value, kind, dim)


@exact
def quantize_block(codes, x):
    """32 floats at address x as codes round(x / d); returns d = max|x| / 127."""
    low, high = load_f32x16(x), load_f32x16(x + 64)
    largest = largest_magnitude(low, high)
    inverse = splat(float32(127.0) / largest if largest > 0 else float32(0.0))
    quantize16(codes, mul(low, inverse))
    quantize16(codes + 16, mul(high, inverse))
    return largest / float32(127.0)


def _columns(dim: int) -> int:
    return 32 if dim % 32 == 0 else 16
