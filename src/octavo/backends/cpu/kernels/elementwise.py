"""Ops on rows of floats: norms, sums, products, SwiGLU, GeGLU, softmax and what routing to experts needs.

Task t works on row t. Strides are in bytes, so that a row may be part of a wider one.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from octavo.backends.cpu.kernels.math import gelu, gelu_exponent, largest, rms_factor, silu
from octavo.jit.compile import kernels
from octavo.jit.simd import (
    add,
    arg,
    arg_f32,
    f32_pointer,
    i32_pointer,
    load_f32x16,
    mul,
    splat,
    store_f32x16,
)  # fmt: skip

Binary = Literal["add", "mul", "swiglu", "geglu"]


@kernels
def rms_norm_kernel() -> Any:
    """Arguments: y, y stride, x, x stride, weight, k, eps, rows a token, stride of those of y, and of x.

    A row may be several (heads): `rows` of them, each k long.
    """

    def rms_norm(args, task):
        k, weight = arg(args, 5), arg(args, 4)
        for row in range(arg(args, 7)):
            y = arg(args, 0) + task * arg(args, 1) + row * arg(args, 8)
            x = arg(args, 2) + task * arg(args, 3) + row * arg(args, 9)
            factor = rms_factor(x, k, arg_f32(args, 6))
            wide = splat(factor)
            for i in range(k // 16):
                store_f32x16(y + 64 * i, mul(mul(load_f32x16(x + 64 * i), wide), load_f32x16(weight + 64 * i)))
            ys, xs, ws = f32_pointer(y), f32_pointer(x), f32_pointer(weight)
            for i in range(k // 16 * 16, k):
                ys[i] = xs[i] * factor * ws[i]

    return rms_norm


@kernels
def binary_kernel(op: Binary) -> Any:
    """Arguments: y, y stride, a, a stride, b, b stride (0: one row for all), k."""
    adds, silus, gelus = op == "add", op == "swiglu", op == "geglu"

    def binary(args, task):
        y, k = arg(args, 0) + task * arg(args, 1), arg(args, 6)
        a, b = arg(args, 2) + task * arg(args, 3), arg(args, 4) + task * arg(args, 5)
        for i in range(k // 16):
            u, v = load_f32x16(a + 64 * i), load_f32x16(b + 64 * i)
            if adds:
                store_f32x16(y + 64 * i, add(u, v))
            elif silus:
                store_f32x16(y + 64 * i, mul(silu(u), v))
            elif gelus:
                store_f32x16(y + 64 * i, mul(gelu(u), v))
            else:
                store_f32x16(y + 64 * i, mul(u, v))
        ys, us, vs = f32_pointer(y), f32_pointer(a), f32_pointer(b)
        for i in range(k // 16 * 16, k):
            if adds:
                ys[i] = us[i] + vs[i]
            elif silus:
                ys[i] = us[i] / (1.0 + math.exp(-us[i])) * vs[i]
            elif gelus:
                ys[i] = us[i] / (1.0 + math.exp(-gelu_exponent(us[i]))) * vs[i]
            else:
                ys[i] = us[i] * vs[i]

    return binary


@kernels
def scale_rows_kernel() -> Any:
    """Arguments: y, y stride, x, x stride, scales, k: row `task` of x times scales[task]."""

    def scale_rows(args, task):
        y, x, k = arg(args, 0) + task * arg(args, 1), arg(args, 2) + task * arg(args, 3), arg(args, 5)
        scale = f32_pointer(arg(args, 4))[task]
        wide = splat(scale)
        for i in range(k // 16):
            store_f32x16(y + 64 * i, mul(load_f32x16(x + 64 * i), wide))
        ys, xs = f32_pointer(y), f32_pointer(x)
        for i in range(k // 16 * 16, k):
            ys[i] = xs[i] * scale

    return scale_rows


@kernels
def soft_max_kernel() -> Any:
    """Arguments: y, y stride, x, x stride, k."""

    def soft_max(args, task):
        x, k = arg(args, 2) + task * arg(args, 3), arg(args, 4)
        ys, xs = f32_pointer(arg(args, 0) + task * arg(args, 1)), f32_pointer(x)
        top, total = largest(x, k), 0.0
        for i in range(k):
            ys[i] = math.exp(xs[i] - top)
            total += ys[i]
        for i in range(k):
            ys[i] /= total

    return soft_max


@kernels
def normalize_kernel() -> Any:
    """Arguments: y, y stride, x, x stride, k."""

    def normalize(args, task):
        k = arg(args, 4)
        ys, xs = f32_pointer(arg(args, 0) + task * arg(args, 1)), f32_pointer(arg(args, 2) + task * arg(args, 3))
        total = 0.0
        for i in range(k):
            total += xs[i]
        for i in range(k):
            ys[i] = xs[i] / total

    return normalize


@kernels
def soft_cap_kernel() -> Any:
    """Arguments: y, y stride, x, x stride, k, cap."""

    def soft_cap(args, task):
        k, cap = arg(args, 4), arg_f32(args, 5)
        ys, xs = f32_pointer(arg(args, 0) + task * arg(args, 1)), f32_pointer(arg(args, 2) + task * arg(args, 3))
        for i in range(k):
            ys[i] = cap * math.tanh(xs[i] / cap)

    return soft_cap


@kernels
def top_k_kernel() -> Any:
    """Arguments: ids, ids stride, x, x stride, n, k. Largest first; of equals the lower place first."""

    def top_k(args, task):
        n, k = arg(args, 4), arg(args, 5)
        ids, xs = i32_pointer(arg(args, 0) + task * arg(args, 1)), f32_pointer(arg(args, 2) + task * arg(args, 3))
        for place in range(k):
            best = -1
            for i in range(n):
                taken = False
                for earlier in range(place):
                    taken = taken or ids[earlier] == i
                if not taken and (best < 0 or xs[i] > xs[best]):
                    best = i
            ids[place] = best

    return top_k


@kernels
def gather_kernel() -> Any:
    """Arguments: y, y stride, x, x stride, ids, ids stride, k."""

    def gather(args, task):
        ys, xs = f32_pointer(arg(args, 0) + task * arg(args, 1)), f32_pointer(arg(args, 2) + task * arg(args, 3))
        ids = i32_pointer(arg(args, 4) + task * arg(args, 5))
        for i in range(arg(args, 6)):
            ys[i] = xs[ids[i]]

    return gather


@kernels
def weighted_sum_kernel() -> Any:
    """Arguments: y, y stride, x, x stride, weights, weights stride, k, n."""

    def weighted_sum(args, task):
        k, n = arg(args, 6), arg(args, 7)
        ys, ws = f32_pointer(arg(args, 0) + task * arg(args, 1)), f32_pointer(arg(args, 4) + task * arg(args, 5))
        xs = f32_pointer(arg(args, 2) + task * arg(args, 3))
        for i in range(n):
            total = 0.0
            for j in range(k):
                total += xs[j * n + i] * ws[j]
            ys[i] = total

    return weighted_sum


@kernels
def copy_rows_kernel() -> Any:
    """Task t copies row rows[t] of x. Arguments: y, y stride, x, x stride, rows, k."""

    def copy_rows(args, task):
        ys = f32_pointer(arg(args, 0) + task * arg(args, 1))
        xs = f32_pointer(arg(args, 2) + i32_pointer(arg(args, 4))[task] * arg(args, 3))
        for i in range(arg(args, 5)):
            ys[i] = xs[i]

    return copy_rows
