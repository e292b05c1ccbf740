"""Static scales: one for all tokens of an input, chosen by what its products err when what is beyond it is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.formats import rows
from octavo.formats.activation import STATIC, QuantizedActivation, activation
from octavo.formats.spec import F32

SHARES = tuple(1 - 0.05 * i for i in range(15))
"""Of the largest magnitude, which become the largest code."""
TOPS = {"int8_static": float(rows.INT8_TOP), "fp8_static": rows.FP8_TOP["e4m3"]}
"""The largest codes of formats."""
DYNAMIC = {static: token for token, static in STATIC.items()}
TINY = float(np.finfo(np.float32).tiny)
"""The least scale: that of inputs which are all 0."""


@dataclass(frozen=True)
class StaticScale:
    """What a search for a scale chose.

    scale    value = code * scale
    share    of the largest magnitude that becomes the largest code; what is beyond is cut off
    before   the root of sum |y' - y|^2 / sum |y|^2 of products y, with a share of 1
    after    the same with this share, never above `before`
    dynamic  the same with a scale for each token
    """

    scale: float
    share: float
    before: float
    after: float
    dynamic: float


def static_scale(inputs: F32, weights: Sequence[F32], largest: float, kind: str) -> StaticScale:
    """Find the scale of inputs [T, K] with which products with `weights` [N, K] err least, these as they are.

    largest  magnitude of many more inputs
    kind     of TOPS
    """
    given, of_tokens = activation(kind).given, activation(DYNAMIC[kind]).quantize
    gram = sum(weight.T @ weight for weight in weights)
    assert given is not None
    assert of_tokens is not None
    assert isinstance(gram, np.ndarray)
    power = _power(inputs, gram) or 1.0

    def error(made: QuantizedActivation) -> float:
        return float((_power(made.dequantize() - inputs, gram) / power) ** 0.5)

    scales = [max(float(np.float32(largest * share / TOPS[kind])), TINY) for share in SHARES]
    errors = [error(given(inputs, scale)) for scale in scales]
    best = int(np.argmin(errors))
    return StaticScale(scales[best], SHARES[best], errors[0], errors[best], error(of_tokens(inputs)))


def _power(x: F32, gram: F32) -> float:
    """Sum |x W^T|^2 over rows of x [T, K], for W^T W [K, K]."""
    return max(float(np.einsum("tk,tk->", x @ gram, x, dtype=np.float64)), 0.0)
