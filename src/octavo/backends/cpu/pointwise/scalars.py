# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""The functions of one value that pointwise ops are compiled with. Comparisons, so that a NaN stays one."""

from __future__ import annotations

import math
from math import exp, expm1, log, tanh

from octavo.backends.cpu.pointwise.math import ROOT_HALF, gelu_exponent
from octavo.jit.compile import inner

__all__ = ["exp", "expm1", "gelu", "gelu_erf", "log", "maximum", "minimum", "silu", "tanh", "where"]


def _where(condition, a, b):
    return a if condition else b


def _minimum(a, b):
    return b if a > b else a


def _maximum(a, b):
    return b if a < b else a


def _silu(x):
    return x / (1.0 + math.exp(-x))


def _gelu(x):
    return x / (1.0 + math.exp(-gelu_exponent(x)))


def _gelu_erf(x):
    return x * 0.5 * (1.0 + math.erf(x * ROOT_HALF))


where, minimum, maximum, silu, gelu, gelu_erf = (
    inner(function, inline="always") for function in (_where, _minimum, _maximum, _silu, _gelu, _gelu_erf)
)
