# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Ops on several streams of a token.

Task t works on token t, whose streams lie one after the other. Strides are in bytes.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.backends.cpu.pointwise.kernel import ROW
from octavo.jit.compile import kernels
from octavo.jit.record import record
from octavo.jit.simd import add, f32_pointer, fma, load_f32x16, mul, splat, store_f32x16

PREDICT = record(ROW, "coefs coefs_stride streams k")


@kernels(PREDICT)
def predict_streams_kernel() -> Any:
    """Each stream plus the sum of all of them, each times a coefficient."""

    def predict_streams(a, task):
        y, x, k, streams = a.y + task * a.y_stride, a.x + task * a.x_stride, a.k, a.streams
        coefs = f32_pointer(a.coefs + task * a.coefs_stride)
        ys, xs = f32_pointer(y), f32_pointer(x)
        for s in range(streams):
            for i in range(k // 16):
                total = load_f32x16(x + 4 * s * k + 64 * i)
                for r in range(streams):
                    total = fma(splat(coefs[s * streams + r]), load_f32x16(x + 4 * r * k + 64 * i), total)
                store_f32x16(y + 4 * s * k + 64 * i, total)
            for i in range(k // 16 * 16, k):
                left = xs[s * k + i]
                for r in range(streams):
                    left += coefs[s * streams + r] * xs[r * k + i]
                ys[s * k + i] = left

    return predict_streams


CORRECT = record(ROW, "first first_stride coefs coefs_stride streams k")


@kernels(CORRECT)
def correct_streams_kernel() -> Any:
    """Each stream plus what the first one lacks, times one and a coefficient."""

    def correct_streams(a, task):
        y, x, k = a.y + task * a.y_stride, a.x + task * a.x_stride, a.k
        first, coefs = a.first + task * a.first_stride, f32_pointer(a.coefs + task * a.coefs_stride)
        ys, xs, fs, minus = f32_pointer(y), f32_pointer(x), f32_pointer(first), splat(-1.0)
        for s in range(a.streams):
            share = 1.0 + coefs[s]
            wide = splat(share)
            for i in range(k // 16):
                lacks = fma(minus, load_f32x16(x + 64 * i), load_f32x16(first + 64 * i))
                store_f32x16(y + 4 * s * k + 64 * i, fma(wide, lacks, load_f32x16(x + 4 * s * k + 64 * i)))
            for i in range(k // 16 * 16, k):
                ys[s * k + i] = xs[s * k + i] + share * (fs[i] - xs[i])

    return correct_streams


ADD_TO_OTHERS = record(ROW, "row row_stride streams k")


@kernels(ADD_TO_OTHERS)
def add_to_others_kernel() -> Any:
    """The first stream as it is, and the others plus a row."""

    def add_to_others(a, task):
        y, x, k = a.y + task * a.y_stride, a.x + task * a.x_stride, a.k
        row = a.row + task * a.row_stride
        ys, xs, rs = f32_pointer(y), f32_pointer(x), f32_pointer(row)
        for i in range(k):
            ys[i] = xs[i]
        for s in range(1, a.streams):
            for i in range(k // 16):
                at = 4 * s * k + 64 * i
                store_f32x16(y + at, add(load_f32x16(x + at), load_f32x16(row + 64 * i)))
            for i in range(k // 16 * 16, k):
                ys[s * k + i] = xs[s * k + i] + rs[i]

    return add_to_others


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
