"""Rotary embedding, with the norms before it and the writes to the KV cache after it."""

from __future__ import annotations

import math
from typing import Any

from numba import float32

from octavo.backends.cpu.kernels.kv import Kind, set_key_function, set_value_function
from octavo.backends.cpu.kernels.math import rms_factor
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    arg,
    arg_f32,
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


@kernels
def rope_table_kernel() -> Any:
    """Task t writes the cosines and then the sines of token t. Arguments: table, positions, freqs, pairs, scale."""

    def rope_table(args, task):
        pairs, scale = arg(args, 3), arg_f32(args, 4)
        table = f32_pointer(arg(args, 0) + task * pairs * 8)
        position, freqs = float32(i32_pointer(arg(args, 1))[task]), f32_pointer(arg(args, 2))
        for i in range(pairs):
            angle = position * freqs[i]
            table[i] = math.cos(angle) * scale
            table[pairs + i] = math.sin(angle) * scale

    return rope_table


@kernels
def rope_kernel(interleaved: bool, normed: bool, dim: int, pairs: int) -> Any:
    """Task t turns the heads of token t. Arguments: y, y stride, x, x stride, heads, table, norm weight, eps."""
    turn = _turn(interleaved, normed, dim, pairs)

    def rope(args, task):
        table = arg(args, 5) + task * pairs * 8
        for h in range(arg(args, 4)):
            y, x = arg(args, 0) + task * arg(args, 1), arg(args, 2) + task * arg(args, 3)
            turn(y + h * dim * 4, x + h * dim * 4, table, arg(args, 6), arg_f32(args, 7))

    return rope


@kernels
def rope_set_rows_kernel(kind: Kind, interleaved: bool, normed: bool, dim: int, pairs: int) -> Any:
    """Task i does one head of a run of tokens: turns q's, turns k's and writes it to the cache, or writes v's.

    Arguments: y, y stride, q, q stride, k, k stride, v, v stride, key cache, value cache, rows, table, heads, key
    heads, q's norm, k's norm, eps, tokens, tokens of a run.
    """
    turn = _turn(interleaved, normed, dim, pairs)
    set_key, set_value = set_key_function(kind, dim), set_value_function(kind, dim)
    nbytes, turn_bytes = dim * 4, pairs * 8

    def rope_set_rows(args, task):
        heads, kv_heads, run = arg(args, 12), arg(args, 13), arg(args, 18)
        each = heads + 2 * kv_heads
        first, h = task // each * run, task % each
        table, eps, rows = arg(args, 11), arg_f32(args, 16), i64_pointer(arg(args, 10))
        key = stack(nbytes)
        for token in range(first, min(first + run, arg(args, 17))):
            if h < heads:
                at = h * nbytes
                q = arg(args, 2) + token * arg(args, 3) + at
                turn(arg(args, 0) + token * arg(args, 1) + at, q, table + token * turn_bytes, arg(args, 14), eps)
            elif h < heads + kv_heads:
                head = h - heads
                k = arg(args, 4) + token * arg(args, 5) + head * nbytes
                turn(key, k, table + token * turn_bytes, arg(args, 15), eps)
                set_key(arg(args, 8), key, rows[token], head, kv_heads)
            else:
                head = h - heads - kv_heads
                v = arg(args, 6) + token * arg(args, 7) + head * nbytes
                set_value(arg(args, 9), v, rows[token], head, kv_heads)

    return rope_set_rows


def _turn(interleaved: bool, normed: bool, dim: int, pairs: int) -> Any:
    """A function (y, x, table, norm weight, eps) that norms and turns one head."""
    wide = not interleaved and pairs % 16 == 0

    def turn(y, x, table, weight, eps):
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
                a, b = load_f32x16(first), load_f32x16(second)
                cos, sin = load_f32x16(table + 64 * i), load_f32x16(table + 64 * i + pairs * 4)
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

    return inner(turn, interleaved, normed, dim, pairs)


@kernels
def set_keys_kernel(kind: Kind, dim: int) -> Any:
    """Task t writes token t's keys. Arguments: cache, x, x stride, rows, heads."""
    return _set_rows(set_key_function(kind, dim), dim)


@kernels
def set_values_kernel(kind: Kind, dim: int) -> Any:
    """Task t writes token t's values. Arguments: cache, x, x stride, rows, heads."""
    return _set_rows(set_value_function(kind, dim), dim)


def _set_rows(write: Any, dim: int) -> Any:
    def set_rows(args, task):
        row, heads = i64_pointer(arg(args, 3))[task], arg(args, 4)
        for h in range(heads):
            write(arg(args, 0), arg(args, 1) + task * arg(args, 2) + h * dim * 4, row, h, heads)

    return set_rows
