# mypy: no-warn-return-any
"""The functions that pointwise ops are defined with."""

from __future__ import annotations

import math

import numpy as np
from numpy import exp, expm1, maximum, minimum, tanh, where

from octavo.formats.spec import F32, AnyArray

__all__ = ["exp", "expm1", "gelu", "gelu_erf", "log", "maximum", "minimum", "silu", "tanh", "where"]


def log(x: AnyArray) -> F32:
    """Of float64 too, which sums of integers and floats are."""
    return np.log(x.astype(np.float32))


def silu(x: F32) -> F32:
    return x / (1 + np.exp(-x))


def gelu(x: F32) -> F32:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def gelu_erf(x: F32) -> F32:
    erf = np.frompyfunc(math.erf, 1, 1)(x * math.sqrt(0.5)).astype(np.float32)
    return np.float32(0.5) * x * (1 + erf)
