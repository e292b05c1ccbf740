"""Static scales of activations, of what a text gives a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from octavo.calibrate.methods import rounded_error, static_scale
from octavo.calibrate.methods.static_activations import TOPS
from octavo.calibrate.runner import ProductInput
from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import nearest, values_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.job.scheme_method import StaticInput

TOKENS = 512
"""Tokens with which scales are tried."""


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
    largest = max(float(np.abs(batch).max()) for batch in given.batches())
    found = static_scale(x, weights, largest, kind)
    beyond = np.float32(found.scale * (TOPS[kind] + 0.5 if kind.startswith("int8") else TOPS[kind]))
    over = sum(int((np.abs(batch) > beyond).sum()) for batch in given.batches())
    return StaticInput(
        tuple(names), found.scale, largest, over, given.vectors.size, found.before, found.after, found.dynamic, True,
        scheme.name,
    )


def _wrong(x: F32, weights: Sequence[F32], found: StaticInput, scheme: CheckpointScheme) -> float:
    """What products err with a scale where weights are rounded to nearest."""
    made = (values_of(scheme, nearest(scheme, weight)) for weight in weights)
    return rounded_error(x, weights, made, found.scale, scheme.activation)
