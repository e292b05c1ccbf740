# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Ops on rows of floats: norms, sums, products, SwiGLU, GeGLU, softmax and what routing to experts needs.

Task t works on row t. Strides are in bytes, so that a row may be part of a wider one.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from octavo.backends.cpu.pointwise.math import ROOT_HALF, gelu, gelu_erf, gelu_exponent, largest, rms_factor, silu
from octavo.jit.compile import inner, kernels
from octavo.jit.record import record
from octavo.jit.simd import (
    add,
    f32_pointer,
    i32_pointer,
    load_f32x16,
    mul,
    splat,
    store_f32x16,
)

Binary = Literal["add", "mul", "swiglu", "geglu"]


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


BINARY = record("y y_stride", "a a_stride b b_stride k")


@kernels(BINARY)
def binary_kernel(op: Binary) -> Any:
    """y = a + b, a * b, silu(a) * b or gelu(a) * b; where b's stride is 0, it is one row for all."""
    adds, silus, gelus = op == "add", op == "swiglu", op == "geglu"

    def binary(a, task):
        y, k = a.y + task * a.y_stride, a.k
        x, z = a.a + task * a.a_stride, a.b + task * a.b_stride
        for i in range(k // 16):
            u, v = load_f32x16(x + 64 * i), load_f32x16(z + 64 * i)  # [16] each
            if adds:
                store_f32x16(y + 64 * i, add(u, v))
            elif silus:
                store_f32x16(y + 64 * i, mul(silu(u), v))
            elif gelus:
                store_f32x16(y + 64 * i, mul(gelu(u), v))
            else:
                store_f32x16(y + 64 * i, mul(u, v))
        ys, us, vs = f32_pointer(y), f32_pointer(x), f32_pointer(z)
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


CLAMPED_SWIGLU = record(ROW, "up up_stride k", "slope:f4 limit:f4")


@kernels(CLAMPED_SWIGLU)
def clamped_swiglu_kernel() -> Any:
    """y = g / (1 + exp(-slope g)) * (u + 1), of g = x up to the limit and u = up within it."""

    def clamped_swiglu(a, task):
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        us, limit, slope = f32_pointer(a.up + task * a.up_stride), a.limit, a.slope
        for i in range(a.k):
            g, u = xs[i], us[i]  # comparisons, that a NaN stays one
            g = limit if g > limit else g
            u = limit if u > limit else -limit if u < -limit else u
            ys[i] = g / (1.0 + math.exp(-slope * g)) * (u + 1.0)

    return clamped_swiglu


SCALE_ROWS = record(ROW, "scales k")


@kernels(SCALE_ROWS)
def scale_rows_kernel() -> Any:
    """Row t of x times scales[t]."""

    def scale_rows(a, task):
        y, x, k = a.y + task * a.y_stride, a.x + task * a.x_stride, a.k
        scale = f32_pointer(a.scales)[task]
        wide = splat(scale)
        for i in range(k // 16):
            store_f32x16(y + 64 * i, mul(load_f32x16(x + 64 * i), wide))
        ys, xs = f32_pointer(y), f32_pointer(x)
        for i in range(k // 16 * 16, k):
            ys[i] = xs[i] * scale

    return scale_rows


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


SOFT_CAP = record(ROW, "k cap:f4")


@kernels(SOFT_CAP)
def soft_cap_kernel() -> Any:
    """y = cap * tanh(x / cap)."""

    def soft_cap(a, task):
        k, cap = a.k, a.cap
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        for i in range(k):
            ys[i] = cap * math.tanh(xs[i] / cap)

    return soft_cap


CLAMP = record(ROW, "k low:f4 high:f4")


@kernels(CLAMP)
def clamp_kernel() -> Any:
    """y = max(low, min(high, x))."""

    def clamp(a, task):
        low, high = a.low, a.high
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        for i in range(a.k):
            value = xs[i]
            ys[i] = low if value < low else high if value > high else value  # a NaN stays one

    return clamp


@kernels(ROWS_OF_K)
def relu_squared_kernel() -> Any:
    """y = max(0, x)^2."""

    def relu_squared(a, task):
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        for i in range(a.k):
            value = xs[i]
            ys[i] = 0.0 if value < 0.0 else value * value  # not a maximum, which would lose a NaN

    return relu_squared


XIELU = record(ROW, "k", "positive:f4 negative:f4 beta:f4 least:f4")


@kernels(XIELU)
def xielu_kernel() -> Any:
    """y = positive x^2 + beta x over 0, and negative (exp(min(x, least)) - 1 - x) + beta x elsewhere."""

    def xielu(a, task):
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        for i in range(a.k):
            value = xs[i]
            if value > 0.0:
                ys[i] = a.positive * value * value + a.beta * value
            else:
                low = a.least if value > a.least else value
                ys[i] = a.negative * (math.expm1(low) - value) + a.beta * value

    return xielu


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


@kernels(ROWS_OF_K)
def sigmoid_kernel() -> Any:
    """y = 1 / (1 + exp(-x))."""

    def sigmoid(a, task):
        k = a.k
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        for i in range(k):
            ys[i] = 1.0 / (1.0 + math.exp(-xs[i]))

    return sigmoid


@kernels(ROWS_OF_K)
def gelu_kernel() -> Any:
    """y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""

    def gelu_of_one(x):
        return x / (1.0 + math.exp(-gelu_exponent(x)))

    return _by_16(gelu, inner(gelu_of_one, inline="always"))


@kernels(ROWS_OF_K)
def gelu_erf_kernel() -> Any:
    """y = x / 2 * (1 + erf(x / sqrt(2)))."""

    def gelu_erf_of_one(x):
        return x * 0.5 * (1.0 + math.erf(x * ROOT_HALF))

    return _by_16(gelu_erf, inner(gelu_erf_of_one, inline="always"))


def _by_16(sixteen: Any, one: Any) -> Any:
    """A kernel's function that takes a row by vectors of 16 values, and what is left of it one by one."""

    def rows(a, task):
        y, x, k = a.y + task * a.y_stride, a.x + task * a.x_stride, a.k
        for i in range(k // 16):
            store_f32x16(y + 64 * i, sixteen(load_f32x16(x + 64 * i)))
        ys, xs = f32_pointer(y), f32_pointer(x)
        for i in range(k // 16 * 16, k):
            ys[i] = one(xs[i])

    return rows


SCALE_BY_POSITION = record(ROW, "k positions length offset factor:f4")


@kernels(SCALE_BY_POSITION)
def scale_by_position_kernel() -> Any:
    """y = x * (1 + factor * log(1 + (position + offset) // length)), the same for all of a token's values."""

    def scale_by_position(a, task):
        spans = (i32_pointer(a.positions)[task] + a.offset) // a.length
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        scale = 1.0 + a.factor * math.log(1.0 + spans)
        for i in range(a.k):
            ys[i] = xs[i] * scale

    return scale_by_position


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
