"""Clipping: the largest weights of a group cut off where smaller steps for the others are worth more (AWQ)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.quantizers.smoothing.rounding import Rounding
from octavo.quantizers.tiles import run_tiles

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
    x = inputs.reshape(len(inputs), *shape[1:]).swapaxes(0, 1).astype(np.float64)
    grams = np.asarray(x.swapaxes(1, 2) @ x, np.float32)  # [groups, group, group]
    whole = np.abs(weight.reshape(shape)).max(axis=-1)
    limits = [whole * np.float32(1 - step / (2 * STEPS)) for step in range(STEPS)]
    errors = np.empty((STEPS, *shape[:2]))

    def one(step: int) -> None:
        wrong = (rounding(_cut(weight, limits[step], group)) - weight).reshape(shape).swapaxes(0, 1)
        errors[step] = np.multiply(wrong @ grams, wrong).sum(axis=2, dtype=np.float64).T

    run_tiles(partial(one, step) for step in range(STEPS))
    best = errors.argmin(axis=0)  # the first of equals
    chosen = np.take_along_axis(np.stack(limits), best[None], axis=0)[0]
    before, after = errors[0].sum(), errors.min(axis=0).sum()
    return Clipped(_cut(weight, chosen, group), chosen, float(before), float(after))


def _cut(weight: F32, limits: F32, group: int) -> F32:
    parts = weight.reshape(len(weight), -1, group)
    out: F32 = np.clip(parts, -limits[..., None], limits[..., None]).reshape(weight.shape)
    return out
