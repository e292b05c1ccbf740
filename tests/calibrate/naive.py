"""Naive twins of the kernels of calibration: what they compute, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.formats import BlockFormat, dequantize, quantize_reference

Array = np.ndarray[Any, Any]


def gptq_columns(w: Array, step: Array, shift: Array, m: Array, order: Array, levels: Array) -> Array:
    """Levels [K, N] of weights w [K, N], column after column in an order; step and shift [K / size, N] are of groups.

    The j-th column is what it is and what the columns before it erred by times row j of m, a factor of the inverse
    Hessian; its level is the nearest.
    """
    found, errors, size = np.empty_like(w), np.empty_like(w), len(w) // len(step)
    for j, column in enumerate(order):
        g = column // size
        x = w[column] + m[j, :j] @ errors[:j] + shift[g]
        found[column] = levels[np.abs(levels[:, None] - x / step[g]).argmin(0)]
        errors[j] = w[column] - (step[g] * found[column] - shift[g])
    return found


def clip_search(rows: Array, weights: Array, shares: Sequence[float], fmt: BlockFormat) -> tuple[Array, Array]:
    """For each group of rows [N, K] the number of the share of its range that leaves the least error, and the values.

    weights  [K], of squared errors
    """
    n, groups = len(rows), rows.shape[1] // fmt.group
    apart = rows.reshape(n, groups, fmt.group)
    low, high = (np.minimum(apart.min(2), 0), np.maximum(apart.max(2), 0))
    low, high = (np.repeat(end, fmt.group, axis=1) for end in (low, high))
    tried = [dequantize(quantize_reference(np.clip(rows, low * s, high * s), fmt)) for s in shares]
    errors = [(weights * np.square(x - rows)).reshape(apart.shape).sum(2) for x in tried]
    best = np.argmin(errors, axis=0)
    values = np.take_along_axis(np.array(tried), np.repeat(best, fmt.group, axis=1)[None], axis=0)[0]
    return best, values
