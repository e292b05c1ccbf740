# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Ops on rows of floats: norms, softmax, copies.

Algorithm: two passes over a row in the L1: a sum or a maximum, then the values.
Tile:
    task t   row t: | 16 | 16 | ... -> factor; | 16 | 16 | ... times the factor
Bound: latency, of waking threads for a few KiB; not measured by itself.
Tried: docs/log.md: "AltUp's steps need no kernels of their own".
Twin: `octavo.backends.reference.ops.rms_norm`, `octavo.backends.reference.ops.layer_norm`,
    `octavo.backends.reference.ops.soft_max`, `octavo.backends.reference.ops.keep_largest`

Task t works on row t. Strides are in bytes, so that a row may be part of a wider one.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.backends.cpu.pointwise.math import largest, rms_factor
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import f32_pointer, i32_pointer, load_f32x16, mul, splat, store_f32x16

ROW = "y y_stride x x_stride"
"""Where rows of results and of inputs lie, and bytes from one to the next."""

RMS_NORM = record(ROW, "weight k eps:f4", "heads y_head_stride x_head_stride")


@kernels(RMS_NORM)
def rms_norm_kernel() -> Any:
    """Each of a row's `heads` times 1 / sqrt(mean(x^2) + eps) and times the weight [k]."""

    def rms_norm(a, task):
        k, weight = a.k, a.weight
        for row in range(a.heads):
            y = a.y + task * a.y_stride + row * a.y_head_stride
            x = a.x + task * a.x_stride + row * a.x_head_stride
            factor = rms_factor(x, k, a.eps)
            wide = splat(factor)
            for i in range(k // 16):
                store_f32x16(y + 64 * i, mul(mul(load_f32x16(x + 64 * i), wide), load_f32x16(weight + 64 * i)))
            ys, xs, ws = f32_pointer(y), f32_pointer(x), f32_pointer(weight)
            for i in range(k // 16 * 16, k):
                ys[i] = xs[i] * factor * ws[i]

    return rms_norm


LAYER_NORM = record(ROW, "weight bias k eps:f4")


@kernels(LAYER_NORM)
def layer_norm_kernel(biased: bool) -> Any:
    """(x - mean) / sqrt(variance + eps) times the weight [k], and plus the bias [k]."""

    def layer_norm(a, task):
        k = a.k
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        ws, bs = f32_pointer(a.weight), f32_pointer(a.bias)
        total = 0.0
        for i in range(k):
            total += xs[i]
        mean = total / k
        squares = 0.0
        for i in range(k):
            squares += (xs[i] - mean) * (xs[i] - mean)
        factor = 1.0 / math.sqrt(squares / k + a.eps)
        for i in range(k):
            ys[i] = (xs[i] - mean) * factor * ws[i]
        if biased:
            for i in range(k):
                ys[i] += bs[i]

    return layer_norm


ROWS_OF_K = record(ROW, "k")


@kernels(ROWS_OF_K)
def soft_max_kernel() -> Any:
    """y = exp(x - max(x)) over its sum."""

    def soft_max(a, task):
        x, k = a.x + task * a.x_stride, a.k
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(x)
        top, total = largest(x, k), 0.0
        for i in range(k):
            ys[i] = math.exp(xs[i] - top)
            total += ys[i]
        for i in range(k):
            ys[i] /= total

    return soft_max


@kernels(ROWS_OF_K)
def normalize_kernel() -> Any:
    """y = x over its sum."""

    def normalize(a, task):
        k = a.k
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        total = 0.0
        for i in range(k):
            total += xs[i]
        for i in range(k):
            ys[i] = xs[i] / total

    return normalize


@kernels(record(ROW, "k"))
def largest_magnitude_kernel() -> Any:
    """y [1] = max |x|, NaN if one is."""

    def largest_magnitude(a, task):
        xs, ys = f32_pointer(a.x + task * a.x_stride), f32_pointer(a.y + task * a.y_stride)
        ys[0] = 0.0
        for i in range(a.k):
            here = abs(xs[i])
            if not math.isnan(ys[0]) and not here <= ys[0]:  # NaN stays
                ys[0] = here

    return largest_magnitude


KEEP_LARGEST = record(ROW, "k spread:f4")


@kernels(KEEP_LARGEST)
def keep_largest_kernel() -> Any:
    """What of each value lies over mean + spread * deviation, otherwise 0."""

    def keep_largest(a, task):
        k = a.k
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        total = 0.0
        for i in range(k):
            total += xs[i]
        mean = total / k
        squares = 0.0
        for i in range(k):
            squares += (xs[i] - mean) * (xs[i] - mean)
        least = mean + a.spread * math.sqrt(squares / k)
        for i in range(k):
            over = xs[i] - least
            ys[i] = 0.0 if over < 0.0 else over  # not a maximum, which would lose a NaN

    return keep_largest


AS_LARGE_AS = record(ROW, "like like_stride streams k least:f4")


@kernels(AS_LARGE_AS)
def as_large_as_kernel() -> Any:
    """Each stream with the mean square of `like`."""

    def as_large_as(a, task):
        y, x, k = a.y + task * a.y_stride, a.x + task * a.x_stride, a.k
        ys, xs, ls = f32_pointer(y), f32_pointer(x), f32_pointer(a.like + task * a.like_stride)
        wanted = 0.0
        for i in range(k):
            wanted += ls[i] * ls[i]
        for s in range(a.streams):
            found = 0.0
            for i in range(s * k, s * k + k):
                found += xs[i] * xs[i]
            factor = math.sqrt(wanted / max(found, a.least * k))
            wide = splat(factor)
            for i in range(k // 16):
                store_f32x16(y + 4 * s * k + 64 * i, mul(load_f32x16(x + 4 * s * k + 64 * i), wide))
            for i in range(k // 16 * 16, k):
                ys[s * k + i] = xs[s * k + i] * factor

    return as_large_as


COPY_HEADS = record(ROW, "y_head_stride x_head_stride heads k")


@kernels(COPY_HEADS)
def copy_heads_kernel() -> Any:
    """k values of each head of a row."""

    def copy_heads(a, task):
        for head in range(a.heads):
            ys = f32_pointer(a.y + task * a.y_stride + head * a.y_head_stride)
            xs = f32_pointer(a.x + task * a.x_stride + head * a.x_head_stride)
            for i in range(a.k):
                ys[i] = xs[i]

    return copy_heads


COPY_ROWS = record(ROW, "rows k")


@kernels(COPY_ROWS)
def copy_rows_kernel() -> Any:
    """Row rows[t] of x."""

    def copy_rows(a, task):
        ys = f32_pointer(a.y + task * a.y_stride)
        xs = f32_pointer(a.x + i32_pointer(a.rows)[task] * a.x_stride)
        for i in range(a.k):
            ys[i] = xs[i]

    return copy_rows
