# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Small functions that several kernels call."""

from __future__ import annotations

import math

import numpy as np

from octavo.jit.compile import exact
from octavo.jit.simd import (
    add,
    div,
    exp,
    exp_or_inf,
    f32_pointer,
    fma,
    load_f32x16,
    max_lanes,
    maximum,
    mul,
    splat,
    sub,
    sum_lanes,
)

ROOT_HALF = np.float32(math.sqrt(0.5))
ERF_P = np.float32(0.3275911 * math.sqrt(0.5))
ERF_1, ERF_2, ERF_3, ERF_4, ERF_5 = (  # half the coefficients of erf
    np.float32(c / 2) for c in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
)
GELU_LINE = np.float32(2 * math.sqrt(2 / math.pi))
GELU_CUBE = np.float32(0.044715 * 2 * math.sqrt(2 / math.pi))


@exact
def rms_factor(x, k, eps):
    """1 / sqrt(mean(x^2) + eps) of k floats at address x."""
    total = splat(0.0)
    for i in range(k // 16):
        v = load_f32x16(x + 64 * i)
        total = fma(v, v, total)
    sum_of_squares = sum_lanes(total)
    values = f32_pointer(x)
    for i in range(k // 16 * 16, k):
        sum_of_squares += values[i] * values[i]
    return 1.0 / math.sqrt(sum_of_squares / k + eps)


@exact
def silu(x):
    """x / (1 + exp(-x)), 16 lanes."""
    return gated(x, x)


@exact
def gated(x, z):
    """x / (1 + exp(-z)), 16 lanes: 0 for the least of finite numbers, NaN for -Inf."""
    below = sub(splat(0.0), z)
    return div(x, add(splat(1.0), exp_or_inf(below, exp(below))))


@exact
def soft_plus(x):
    """log(1 + exp(x)), 16 lanes, as max(x, 0) + log(1 + u) with u = exp(-|x|).

    log(1 + u) is 2 atanh(z) with z = u / (2 + u), up to 1/3; the series of atanh goes to z^13, within 2e-8 of it.
    """
    u = exp(sub(splat(0.0), maximum(x, sub(splat(0.0), x))))
    z = div(u, add(u, splat(2.0)))
    square = mul(z, z)
    series = splat(np.float32(2 / 13))
    for n in (11, 9, 7, 5, 3, 1):
        series = fma(series, square, splat(np.float32(2 / n)))
    return fma(series, z, maximum(x, splat(0.0)))


@exact
def gelu_erf(x):
    """x / 2 * (1 + erf(x / sqrt(2))), 16 lanes, as max(x, 0) - |x| * (1 - Phi(|x|)).

    1 - Phi is within 1e-7: Abramowitz and Stegun, 7.1.26.
    """
    size = maximum(x, sub(splat(0.0), x))
    t = div(splat(1.0), fma(size, splat(ERF_P), splat(1.0)))
    series = fma(fma(fma(fma(splat(ERF_5), t, splat(ERF_4)), t, splat(ERF_3)), t, splat(ERF_2)), t, splat(ERF_1))
    tail = mul(mul(series, t), exp(mul(mul(x, x), splat(-0.5))))
    return sub(maximum(x, splat(0.0)), mul(size, tail))


@exact
def gelu(x):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), 16 lanes, as x / (1 + exp(-z))."""
    return gated(x, mul(x, fma(mul(x, x), splat(GELU_CUBE), splat(GELU_LINE))))


@exact
def gelu_exponent(x):
    """The z with which gelu(x) = x / (1 + exp(-z)), one number."""
    return x * (GELU_LINE + GELU_CUBE * x * x)


@exact
def soft_cap(x, cap):
    """cap * tanh(x / cap), 16 lanes."""
    return sub(splat(cap), gated(splat(2 * cap), mul(x, splat(-2 / cap))))


@exact
def largest(x, n):
    """The largest of n floats at address x."""
    best = splat(-math.inf)
    for i in range(n // 16):
        best = maximum(load_f32x16(x + 64 * i), best)
    found = max_lanes(best)
    values = f32_pointer(x)
    for i in range(n // 16 * 16, n):
        found = max(found, values[i])
    return found
