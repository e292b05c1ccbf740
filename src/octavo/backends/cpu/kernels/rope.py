"""Rotary embedding, with the norms before it and the writes to the KV cache after it.

The caches of a layer are float16: keys [pages, Hkv, D, 64], so that attention finds 64 positions side by side, and
values [rows, Hkv, D], row = page * 64 + position in it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import float32

from octavo.backends.cpu.kernels.math import rms_factor
from octavo.backends.cpu.program import kernel
from octavo.backends.cpu.simd import arg, arg_f32, f32_pointer, i32_pointer, i64_pointer, store_f16


@cache
def rope_kernel(interleaved: bool, normed: bool) -> Any:
    """Task t turns the heads of token t.

    Arguments: y, y stride, x, x stride, heads, dim, positions, freqs, pairs, scale, norm weight, eps.
    """
    stride = 2 if interleaved else 1

    def rope(args, task):
        x_at = arg(args, 2) + task * arg(args, 3)
        y, x = f32_pointer(arg(args, 0) + task * arg(args, 1)), f32_pointer(x_at)
        heads, dim, pairs = arg(args, 4), arg(args, 5), arg(args, 8)
        position = float32(i32_pointer(arg(args, 6))[task])
        freqs, scale, weight = f32_pointer(arg(args, 7)), arg_f32(args, 9), f32_pointer(arg(args, 10))
        second = 1 if interleaved else pairs
        for h in range(heads):
            at = h * dim
            factor = rms_factor(x_at + at * 4, dim, arg_f32(args, 11)) if normed else float32(1.0)
            for i in range(dim):
                y[at + i] = x[at + i] * factor * weight[i] if normed else x[at + i]
        for i in range(pairs):
            angle = position * freqs[i]
            cos, sin = math.cos(angle) * scale, math.sin(angle) * scale
            for h in range(heads):
                first = h * dim + i * stride
                a, b = y[first], y[first + second]
                y[first] = a * cos - b * sin
                y[first + second] = a * sin + b * cos

    return kernel(rope)


@cache
def set_keys_kernel() -> Any:
    """Task t writes token t's keys. Arguments: cache, x, x stride, rows, heads, dim."""

    def set_keys(args, task):
        x = f32_pointer(arg(args, 1) + task * arg(args, 2))
        row = i64_pointer(arg(args, 3))[task]
        heads, dim = arg(args, 4), arg(args, 5)
        at = arg(args, 0) + (row // 64 * heads * dim * 64 + row % 64) * 2
        for i in range(heads * dim):
            store_f16(at + i * 128, x[i])

    return kernel(set_keys)


@cache
def set_values_kernel() -> Any:
    """Task t writes token t's values. Arguments: cache, x, x stride, rows, heads, dim."""

    def set_values(args, task):
        x = f32_pointer(arg(args, 1) + task * arg(args, 2))
        row = i64_pointer(arg(args, 3))[task]
        size = arg(args, 4) * arg(args, 5)
        at = arg(args, 0) + row * size * 2
        for i in range(size):
            store_f16(at + i * 2, x[i])

    return kernel(set_values)
