"""The KV cache: how keys and values of a page of 64 positions lie, and the loops that write and read them.

Keys lie so that 64 positions are side by side, and no sum crosses lanes; values so that a head's D are.

    f16, f32   keys [pages, Hkv, D, 64], values [pages, Hkv, 64, D]
    q8_0       keys [pages, Hkv, D / 32, 64 f16 scales and 32 x 64 s8],
               values [pages, Hkv, 64, D / 32, f16 scale and 32 s8]

A head's part of a page is in one piece: it takes few memory pages, and its rows don't compete for cache sets.
"""

from __future__ import annotations

from typing import Any, Literal

from numba import float32, njit

from octavo.backends.cpu.compile import inner
from octavo.backends.cpu.simd import (
    add_blocks,
    f32_pointer,
    fma_blocks,
    fma_splat_strided,
    i8_pointer,
    load_block,
    load_f16,
    load_f16x16,
    load_f32x16,
    load_s8x16,
    mul,
    scale_block,
    splat,
    store_block,
    store_f16,
    zeros,
)

Kind = Literal["f16", "f32", "q8_0"]
PAGE = 64

_LOADS = {"f16": load_f16x16, "f32": load_f32x16}
_WIDTH = {"f16": 2, "f32": 4}
BLOCK_BYTES = 34  # of 32 values in q8_0
KEY_BLOCK_BYTES = PAGE * BLOCK_BYTES


def score_function(kind: Kind, n: int, dim: int) -> Any:
    """A function (scores, q, keys, row, kv_head, kv_heads): scores [n, 64] = q [n, D] times the page at row."""
    if kind == "q8_0":
        return _score_q8_0(n, dim)
    load, width, page_bytes = _LOADS[kind], _WIDTH[kind], PAGE * _WIDTH[kind]

    def scores_of(scores, q, keys, row, kv_head, kv_heads):
        page = keys + (row * kv_heads + kv_head * 64) * dim * width
        for part in range(2):
            low, high = zeros(n), zeros(n)
            at = page + part * 32 * width
            for d in range(dim):
                low = fma_splat_strided(low, load(at), q + d * 4, dim * 4)
                high = fma_splat_strided(high, load(at + 16 * width), q + d * 4, dim * 4)
                at += page_bytes
            store_block(scores + part * 128, 256, low)
            store_block(scores + part * 128 + 64, 256, high)

    return inner(scores_of, kind, n, dim)


def _score_q8_0(n: int, dim: int) -> Any:
    block_bytes, blocks = KEY_BLOCK_BYTES, dim // 32

    def scores_of(scores, q, keys, row, kv_head, kv_heads):
        page = keys + (row // 64 * kv_heads + kv_head) * blocks * block_bytes
        for part in range(2):
            low, high = zeros(n), zeros(n)
            for block in range(blocks):
                scales = page + block * block_bytes + part * 64
                at = page + block * block_bytes + 128 + part * 32
                low_dots, high_dots = zeros(n), zeros(n)
                for d in range(32):
                    x = q + (block * 32 + d) * 4
                    low_dots = fma_splat_strided(low_dots, load_s8x16(at), x, dim * 4)
                    high_dots = fma_splat_strided(high_dots, load_s8x16(at + 16), x, dim * 4)
                    at += 64
                low = fma_blocks(low, low_dots, load_f16x16(scales))
                high = fma_blocks(high, high_dots, load_f16x16(scales + 32))
            store_block(scores + part * 128, 256, low)
            store_block(scores + part * 128 + 64, 256, high)

    return inner(scores_of, "q8_0", n, dim)


def value_function(kind: Kind, n: int, dim: int) -> Any:
    """A function that adds the values of a page, weighted, to sums [n, D] scaled by factors, a float every 16 bytes.

    Its arguments: sums, weights [n, 64], factors, values, row, kv_head, kv_heads, rows.
    """
    if kind == "q8_0":
        return _value_q8_0(n, dim)
    load, width = _LOADS[kind], _WIDTH[kind]
    chunks = dim // 16

    def add_values(sums, weights, factors, values, row, kv_head, kv_heads, rows):
        stride = dim * width
        page = values + (row * kv_heads + kv_head * 64) * stride
        for chunk in range(chunks):
            acc = scale_block(load_block(sums + chunk * 64, dim * 4, n), factors, 16)
            even, odd, at = acc, zeros(n), page + chunk * 16 * width
            for pair in range(rows // 2):
                even = fma_splat_strided(even, load(at), weights + pair * 8, 256)
                odd = fma_splat_strided(odd, load(at + stride), weights + pair * 8 + 4, 256)
                at += 2 * stride
            if rows % 2:
                even = fma_splat_strided(even, load(at), weights + (rows - 1) * 4, 256)
            store_block(sums + chunk * 64, dim * 4, add_blocks(even, odd))

    return inner(add_values, kind, n, dim)


def _value_q8_0(n: int, dim: int) -> Any:
    block_bytes, blocks = BLOCK_BYTES, dim // 32

    def add_values(sums, weights, factors, values, row, kv_head, kv_heads, rows):
        stride = blocks * block_bytes
        page = values + (row * kv_heads + kv_head * 64) * stride
        for block in range(blocks):
            low = scale_block(load_block(sums + block * 128, dim * 4, n), factors, 16)
            high = scale_block(load_block(sums + block * 128 + 64, dim * 4, n), factors, 16)
            at = page + block * block_bytes
            for r in range(rows):
                scaled = splat(load_f16(at))
                low = fma_splat_strided(low, mul(load_s8x16(at + 2), scaled), weights + r * 4, 256)
                high = fma_splat_strided(high, mul(load_s8x16(at + 18), scaled), weights + r * 4, 256)
                at += stride
            store_block(sums + block * 128, dim * 4, low)
            store_block(sums + block * 128 + 64, dim * 4, high)

    return inner(add_values, "q8_0", n, dim)


def set_key_function(kind: Kind, dim: int) -> Any:
    """A function (keys, key, row, kv_head, kv_heads) that writes the float32 key [D] of one head."""
    if kind == "q8_0":
        return _set_key_q8_0(dim)
    half, width = kind == "f16", _WIDTH[kind]

    def set_key(keys, key, row, kv_head, kv_heads):
        at = keys + ((row // 64 * kv_heads + kv_head) * dim * 64 + row % 64) * width
        x = f32_pointer(key)
        for i in range(dim):
            if half:
                store_f16(at + i * 128, x[i])
            else:
                f32_pointer(at + i * 256)[0] = x[i]

    return inner(set_key, kind, dim)


def set_value_function(kind: Kind, dim: int) -> Any:
    """A function (values, value, row, kv_head, kv_heads) that writes the float32 value [D] of one head."""
    if kind == "q8_0":
        return _set_value_q8_0(dim)
    half, width = kind == "f16", _WIDTH[kind]

    def set_value(values, value, row, kv_head, kv_heads):
        at = values + ((row // 64 * kv_heads + kv_head) * 64 + row % 64) * dim * width
        x = f32_pointer(value)
        for i in range(dim):
            if half:
                store_f16(at + i * 2, x[i])
            else:
                f32_pointer(at)[i] = x[i]

    return inner(set_value, kind, dim)


@njit(error_model="numpy")
def scale_of(x):
    """d = max|x| / 127 of 32 floats at address x, as f16 holds it; and 127 / max|x|."""
    values = f32_pointer(x)
    largest = float32(0.0)
    for i in range(32):
        largest = max(largest, abs(values[i]))
    return largest / float32(127.0), float32(127.0) / largest if largest > 0 else float32(0.0)


def _set_key_q8_0(dim: int) -> Any:
    block_bytes, blocks = KEY_BLOCK_BYTES, dim // 32

    def set_key(keys, key, row, kv_head, kv_heads):
        at = keys + (row // 64 * kv_heads + kv_head) * blocks * block_bytes
        lane = row % 64
        for block in range(blocks):
            d, inverse = scale_of(key + block * 128)
            store_f16(at + 2 * lane, d)
            x, codes = f32_pointer(key + block * 128), i8_pointer(at + 128)
            for i in range(32):
                codes[i * 64 + lane] = round(x[i] * inverse)
            at += block_bytes

    return inner(set_key, "q8_0", dim)


def _set_value_q8_0(dim: int) -> Any:
    block_bytes, blocks = BLOCK_BYTES, dim // 32

    def set_value(values, value, row, kv_head, kv_heads):
        at = values + ((row // 64 * kv_heads + kv_head) * 64 + row % 64) * blocks * block_bytes
        for block in range(blocks):
            d, inverse = scale_of(value + block * 128)
            store_f16(at, d)
            x, codes = f32_pointer(value + block * 128), i8_pointer(at + 2)
            for i in range(32):
                codes[i] = round(x[i] * inverse)
            at += block_bytes

    return inner(set_value, "q8_0", dim)
