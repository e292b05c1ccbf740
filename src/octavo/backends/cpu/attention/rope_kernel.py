# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Rotary embedding, with the norms before it and the writes to the KV cache after it.

Algorithm: RoPE (arXiv 2104.09864), cosines and sines once a token (`rope_table_kernel`), fused with norms and writes.
Tile:
    task   one head of q, k or v for a run of tokens:  norm -> 16 pairs a vector turned -> out, or codes in the cache
Bound: instructions of the conversions; not measured by itself.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.rope_set_rows`, `octavo.backends.reference.ops.rope`
"""

from __future__ import annotations

import math
from typing import Any

from numba import float32

from octavo.backends.cpu.attention.cache_kernel import is_static, set_key_function, set_value_function
from octavo.backends.cpu.attention.cache_layout import Kind
from octavo.backends.cpu.pointwise.math import rms_factor
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    f32_pointer,
    fma,
    i32_pointer,
    i64_pointer,
    load_f32x16,
    mul,
    splat,
    stack,
    store_f32x16,
    sub,
)

ROPE_TABLE = record("table", "positions freqs pairs scale:f4")


@kernels(ROPE_TABLE)
def rope_table_kernel() -> Any:
    """Task t writes the cosines and then the sines of token t, [2, pairs], times the scale."""

    def rope_table(a, task):
        pairs, scale = a.pairs, a.scale
        table = f32_pointer(a.table + task * pairs * 8)
        position, freqs = float32(i32_pointer(a.positions)[task]), f32_pointer(a.freqs)
        for i in range(pairs):
            angle = position * freqs[i]
            table[i] = math.cos(angle) * scale
            table[pairs + i] = math.sin(angle) * scale

    return rope_table


ROPE = record("y y_stride x x_stride", "heads table")


@kernels(ROPE)
def rope_kernel(interleaved: bool, dim: int, pairs: int) -> Any:
    """Task t turns the heads of token t, by the table of `rope_table_kernel`."""
    rotate = _rotary_function(interleaved, False, dim, pairs)

    def rope(a, task):
        table = a.table + task * pairs * 8
        for h in range(a.heads):
            y, x = a.y + task * a.y_stride, a.x + task * a.x_stride
            rotate(y + h * dim * 4, x + h * dim * 4, table, 0, 0.0)

    return rope


ROPE_SET_ROWS = record(
    "y y_stride",
    "q q_stride heads",
    "k k_stride v v_stride kv_heads",
    "keys values rows k_scales v_scales",
    "table",
    "q_weight k_weight eps:f4",
    "tokens run",
)
"""y, q                float32 [tokens, heads, D]: q, turned, and q; strides are bytes from token to token
k, v                float32 [tokens, kv_heads, D]
keys, values, rows  the caches (`cache_layout.py` says how they lie), and int64, the row of each token in them
k_scales, v_scales  float32 [kv_heads], where the caches have static ones
table               of `rope_table_kernel`
q_weight, k_weight  of the norms, float32 [D]
run                 tokens that a task does
"""


@kernels(ROPE_SET_ROWS)
def rope_set_rows_kernel(kind: Kind, interleaved: bool, normed: bool, dim: int, pairs: int) -> Any:
    """Task i does one head of a run of tokens: turns q's, turns k's and writes it to the cache, or writes v's."""
    rotate = _rotary_function(interleaved, normed, dim, pairs)
    set_key, set_value = set_key_function(kind, dim), set_value_function(kind, dim)
    nbytes, table_bytes, static = dim * 4, pairs * 8, is_static(kind)

    def rope_set_rows(a, task):
        heads, kv_heads, run = a.heads, a.kv_heads, a.run
        each = heads + 2 * kv_heads
        first, h = task // each * run, task % each
        table, eps, rows = a.table, a.eps, i64_pointer(a.rows)
        key = stack(nbytes)
        for token in range(first, min(first + run, a.tokens)):
            if h < heads:
                at = h * nbytes
                q = a.q + token * a.q_stride + at
                rotate(a.y + token * a.y_stride + at, q, table + token * table_bytes, a.q_weight, eps)
            elif h < heads + kv_heads:
                head = h - heads
                k = a.k + token * a.k_stride + head * nbytes
                rotate(key, k, table + token * table_bytes, a.k_weight, eps)
                scale = f32_pointer(a.k_scales)[head] if static else float32(1.0)
                set_key(a.keys, key, rows[token], head, kv_heads, scale)
            else:
                head = h - heads - kv_heads
                v = a.v + token * a.v_stride + head * nbytes
                scale = f32_pointer(a.v_scales)[head] if static else float32(1.0)
                set_value(a.values, v, rows[token], head, kv_heads, scale)

    return rope_set_rows


def _rotary_function(interleaved: bool, normed: bool, dim: int, pairs: int) -> Any:
    """A function (y, x, table, norm weight, eps) that norms and turns one head."""
    wide = not interleaved and pairs % 16 == 0

    def rotate(y, x, table, weight, eps):
        ys, xs, ws = f32_pointer(y), f32_pointer(x), f32_pointer(weight)
        factor = rms_factor(x, dim, eps) if normed else float32(1.0)
        if normed:
            scale = splat(factor)
            for i in range(dim // 16):
                store_f32x16(y + 64 * i, mul(mul(load_f32x16(x + 64 * i), scale), load_f32x16(weight + 64 * i)))
            for i in range(dim // 16 * 16, dim):
                ys[i] = xs[i] * factor * ws[i]
        else:
            for i in range(dim):
                ys[i] = xs[i]
        if wide:
            for i in range(pairs // 16):
                first, second = y + 64 * i, y + 64 * i + pairs * 4
                a, b = load_f32x16(first), load_f32x16(second)  # [16] each
                cos, sin = load_f32x16(table + 64 * i), load_f32x16(table + 64 * i + pairs * 4)  # [16] each
                store_f32x16(first, sub(mul(a, cos), mul(b, sin)))
                store_f32x16(second, fma(a, sin, mul(b, cos)))
        else:
            table_ = f32_pointer(table)
            for i in range(pairs):
                first = 2 * i if interleaved else i
                second = first + 1 if interleaved else i + pairs
                a, b = ys[first], ys[second]
                ys[first] = a * table_[i] - b * table_[pairs + i]
                ys[second] = a * table_[pairs + i] + b * table_[i]

    return inner(rotate, interleaved, normed, dim, pairs)


SET_ROWS = record("cache", "x x_stride heads", "rows scales")
"""x [tokens, heads, D] to the rows of a cache that `rows`, int64, says for each token; scales float32 [heads], if any
are static."""


@kernels(SET_ROWS)
def set_keys_kernel(kind: Kind, dim: int) -> Any:
    """Task t writes token t's keys."""
    return _set_rows(set_key_function(kind, dim), kind, dim)


@kernels(SET_ROWS)
def set_values_kernel(kind: Kind, dim: int) -> Any:
    """Task t writes token t's values."""
    return _set_rows(set_value_function(kind, dim), kind, dim)


def _set_rows(write: Any, kind: Kind, dim: int) -> Any:
    static, nbytes = is_static(kind), dim * 4

    def set_rows(a, task):
        row, heads = i64_pointer(a.rows)[task], a.heads
        for h in range(heads):
            scale = f32_pointer(a.scales)[h] if static else float32(1.0)
            x = a.x + task * a.x_stride + h * nbytes
            write(a.cache, x, row, h, heads, scale)

    return set_rows
