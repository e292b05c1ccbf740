"""Clipping: the largest weights of a group cut off where smaller steps for the others are worth more (AWQ)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from octavo.calibrate.methods.channel_scales import Rounding
from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import row_parts
from octavo.quantizers.matrix_tiles import run_tiles, spans

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
    Raises UsageError for rows that are not a multiple of the group.
    """
    n, k = weight.shape
    if k % group:
        raise UsageError(f"group is {group} for rows of {k} values, which it does not divide")
    grams = _grams(inputs, group)
    parts = [_limits(weight[rows], grams, rounding, group) for rows in row_parts(n, k)]
    chosen = np.concatenate([limits for limits, _, _ in parts])
    before, after = sum(before for _, before, _ in parts), sum(after for _, _, after in parts)
    return Clipped(_cut(weight, chosen, group), chosen, before, after)


def _grams(inputs: F32, group: int) -> F32:
    """The sums of x x^T over inputs [T, K] for each group of columns, [groups, group, group], added up in float64."""
    x = inputs.reshape(len(inputs), -1, group).swapaxes(0, 1).astype(np.float64)
    grams = np.empty((len(x), group, group), np.float32)
    for rows in spans(group):
        grams[:, rows] = x.swapaxes(1, 2)[:, rows] @ x
    return grams


def _limits(weight: F32, grams: F32, rounding: Rounding, group: int) -> tuple[F32, float, float]:
    """The best limits [N, K / group] of some rows, and the errors without and with them."""
    shape = len(weight), len(grams), group
    whole = np.abs(weight.reshape(shape)).max(axis=-1)
    limits = [whole * np.float32(1 - step / (2 * STEPS)) for step in range(STEPS)]
    errors = np.empty((STEPS, *shape[:2]))

    def one(step: int) -> None:
        wrong = (rounding(_cut(weight, limits[step], group)) - weight).reshape(shape).swapaxes(0, 1)
        errors[step] = np.multiply(wrong @ grams, wrong).sum(axis=2, dtype=np.float64).T

    run_tiles(partial(one, step) for step in range(STEPS))
    best = errors.argmin(axis=0)  # the first of equals
    chosen = np.take_along_axis(np.stack(limits), best[None], axis=0)[0]
    return chosen, float(errors[0].sum()), float(errors.min(axis=0).sum())


def _cut(weight: F32, limits: F32, group: int) -> F32:
    parts = weight.reshape(len(weight), -1, group)
    out: F32 = np.clip(parts, -limits[..., None], limits[..., None]).reshape(weight.shape)
    return out
