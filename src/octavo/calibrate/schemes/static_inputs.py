"""Static scales of activations: one for all tokens of an input, chosen by what its products err over a text.

What is beyond the scale's range is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo.calibrate.methods.channel_scales import F64
from octavo.calibrate.runner import ProductInput
from octavo.formats import rows
from octavo.formats.activation import STATIC, QuantizedActivation, activation
from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import nearest, values_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.job.scheme_method import StaticInput

SHARES: Mapping[str, tuple[float, ...]] = {
    "int8_static": tuple(1 - 0.05 * i for i in range(15)), "fp8_static": (64.0, 32.0, 16.0, 8.0, 4.0)
}
"""Shares of the largest magnitude that may become the largest code, by format, the widest first. e4m3 numbers have room
for what no text had: their steps grow with the values."""
WIDER = 1.1
"""Times the least error may a wider share err and be taken: other text has larger values."""
TOPS = {"int8_static": float(rows.INT8_TOP), "fp8_static": rows.FP8_TOP["e4m3"]}
"""The largest codes of formats."""
DYNAMIC = {static: token for token, static in STATIC.items()}
FLOOR = 0.1
"""The least weight of a token, as a share of the mean: tokens with hardly any output would be all that counts."""
LARGEST_GRAM = 8192
"""Inputs of products up to which a matrix of this size is cheaper than the products themselves."""
TINY = float(np.finfo(np.float32).tiny)
"""The least scale: that of inputs which are all 0."""
TOKENS = 512
"""Tokens with which scales are tried."""


@dataclass(frozen=True)
class StaticScale:
    """What a search for a scale chose.

    scale    value = code * scale
    share    of the largest magnitude that becomes the largest code; what is beyond is cut off. The widest that errs
             not much more than the best
    before   the error of products, see `relative`, with the widest share
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
    assert given is not None
    assert of_tokens is not None
    of = _power_of(weights)
    power = of(inputs)

    def error(made: QuantizedActivation) -> float:
        return relative(of(made.dequantize() - inputs), power)

    scales = [max(float(np.float32(largest * share / TOPS[kind])), TINY) for share in SHARES[kind]]
    errors = [error(given(inputs, scale)) for scale in scales]
    best = next(i for i, wrong in enumerate(errors) if wrong <= WIDER * min(errors))
    return StaticScale(scales[best], SHARES[kind][best], errors[0], errors[best], error(of_tokens(inputs)))


def rounded_error(inputs: F32, weights: Sequence[F32], rounded: Iterable[F32], scale: float, kind: str) -> float:
    """The error of products of inputs [T, K] with `weights` [N, K], both rounded, inputs by a scale; see `relative`."""
    given = activation(kind).given
    assert given is not None
    x, wrong, power = given(inputs, scale).dequantize(), np.zeros(len(inputs)), np.zeros(len(inputs))
    for weight, made in zip(weights, rounded, strict=True):
        want = inputs @ weight.T
        wrong += np.square(x @ made.T - want, dtype=np.float64).sum(axis=1)
        power += np.square(want, dtype=np.float64).sum(axis=1)
    return relative(wrong, power)


def relative(wrong: F64, power: F64) -> float:
    """The root of the mean over tokens of |y' - y|^2 / (|y|^2 + FLOOR of its mean), of squares over tokens [T].

    Each token counts alike: what follows is a norm, and few tokens with large outputs say little of the others.
    """
    floor = FLOOR * float(power.mean()) or 1.0
    return float(np.mean(wrong / (power + floor)) ** 0.5)


def _power_of(weights: Sequence[F32]) -> Callable[[F32], F64]:
    """|x W^T|^2 of rows of x [T, K], added up over weights W [N, K]: by their W^T W, where it is not too large."""
    if weights[0].shape[-1] > LARGEST_GRAM:
        return lambda x: sum((np.square(x @ w.T, dtype=np.float64).sum(axis=1) for w in weights), np.zeros(len(x)))
    gram = np.zeros((weights[0].shape[-1],) * 2, np.float32)
    for weight in weights:
        gram += weight.T @ weight
    return lambda x: np.asarray(np.einsum("tk,tk->t", x @ gram, x, dtype=np.float64)).clip(min=0.0)


def static_input(
    given: ProductInput, names: Sequence[str], weights: Sequence[F32], scheme: CheckpointScheme, most: float,
    other: CheckpointScheme | None,
) -> StaticInput:
    """The scale of an input whose products are with `weights` [N, K] of these names.

    most   times as much as with a scale for each token may products err, else the scale is not used
    other  a scheme that then takes the place of `scheme`, if products err less with it, both factors rounded
    """
    x = given.some(TOKENS)
    found = _choose_scale(given, names, weights, x, scheme)
    if found.after <= most * found.dynamic:
        return found
    if other is None:
        return replace(found, used=False)
    instead = _choose_scale(given, names, weights, x, other)
    wrong = [_wrong(x, weights, each, tried) for each, tried in ((found, scheme), (instead, other))]
    return instead if wrong[1] < wrong[0] else found


def _choose_scale(
    given: ProductInput, names: Sequence[str], weights: Sequence[F32], x: F32, scheme: CheckpointScheme
) -> StaticInput:
    """The scale that serves some of the inputs, x [T, K], best."""
    kind = scheme.activation
    largest = float(given.absmax().max())
    found = static_scale(x, weights, largest, kind)
    beyond = float(np.float32(found.scale * (TOPS[kind] + 0.5 if kind.startswith("int8") else TOPS[kind])))
    over = sum(int((abs(batch) > beyond).sum()) for batch in given.batches())
    return StaticInput(
        tuple(names), found.scale, largest, over, math.prod(given.vectors.shape), found.before, found.after,
        found.dynamic, True, scheme.name,
    )


def _wrong(x: F32, weights: Sequence[F32], found: StaticInput, scheme: CheckpointScheme) -> float:
    """What products err with a scale where weights are rounded to nearest."""
    made = (values_of(scheme, nearest(scheme, weight)) for weight in weights)
    return rounded_error(x, weights, made, found.scale, scheme.activation)
