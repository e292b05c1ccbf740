"""Clipping: the largest weights of a group cut off where smaller steps for the others are worth more (AWQ)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.quantizers.smoothing.rounding import Rounding

STEPS = 10
"""Limits that are tried, each a twentieth of the largest magnitude below the one before."""


@dataclass(frozen=True, eq=False)
class Clipped:
    """What a search for limits chose.

    weight  float32 [N, K], values cut off at their group's limit
    limits  float32 [N, K / group]
    before, after  sum over groups and tokens of the square of what a group's part of a product errs, rounded
    """

    weight: F32
    limits: F32
    before: float
    after: float


def clip(weight: F32, inputs: F32, rounding: Rounding, group: int = 128) -> Clipped:
    """Find for each group of each row the limit with which its rounded values serve `inputs` [T, K] best.

    Not meant for q and k, whose errors a softmax makes larger than this measure says (the reference leaves them out).
    Raises UsageError for rows that are no multiple of the group.
    """
    n, k = weight.shape
    if k % group:
        raise UsageError(f"group is {group} for rows of {k} values (allowed: what divides them)")
    shape = n, k // group, group
    x = inputs.reshape(len(inputs), *shape[1:]).astype(np.float64)
    grams = np.einsum("tgi,tgj->gij", x, x)
    whole = np.abs(weight.reshape(shape)).max(axis=-1)
    best, limits, before = np.full(shape[:2], np.inf), whole, np.zeros(shape[:2])
    for step in range(STEPS):
        tried = whole * np.float32(1 - step / (2 * STEPS))
        wrong = rounding(_cut(weight, tried, group)).astype(np.float64) - weight
        error = np.einsum("ngi,gij,ngj->ng", wrong.reshape(shape), grams, wrong.reshape(shape), optimize=True)
        before = error if step == 0 else before
        limits = np.where(error < best, tried, limits)
        best = np.minimum(best, error)
    return Clipped(_cut(weight, limits, group), limits, float(before.sum()), float(best.sum()))


def _cut(weight: F32, limits: F32, group: int) -> F32:
    parts = weight.reshape(len(weight), -1, group)
    out: F32 = np.clip(parts, -limits[..., None], limits[..., None]).reshape(weight.shape)
    return out
