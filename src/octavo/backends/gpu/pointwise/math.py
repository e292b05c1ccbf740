# mypy: ignore-errors
"""The functions that pointwise ops are compiled with. Comparisons, so that a NaN stays one."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["exp", "expm1", "gelu", "gelu_erf", "log", "maximum", "minimum", "silu", "tanh", "where"]


@triton.jit
def where(condition, a, b):
    return tl.where(condition, a, b)


@triton.jit
def minimum(a, b):
    return tl.where(a > b, b, a)


@triton.jit
def maximum(a, b):
    return tl.where(a < b, b, a)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def expm1(x):
    return tl.exp(x) - 1


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def tanh(x):
    doubled = tl.exp(-2 * tl.abs(x))
    size = (1 - doubled) / (1 + doubled)
    return tl.where(x < 0, -size, size)


@triton.jit
def silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def gelu(x):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as x / (1 + exp(-z))."""
    return x / (1 + tl.exp(-x * (1.5957691216057308 + 0.07135481627260025 * x * x)))


@triton.jit
def gelu_erf(x):
    return x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))
