"""Intervals of 95% from clusters of tokens, which are alike where they are near together: no independent draws.

A mean is resampled by whole clusters, each time divided by its own error (the bootstrap-t of Efron and Tibshirani, An
Introduction to the Bootstrap, 12.5): it keeps its promise where a few clusters have most of a divergence, as plain
percentiles and normal intervals don't. Percentiles of tokens are those of resampled clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from octavo.evals.stats import F64

DRAWS, DRAWS_OF_PERCENTILES = 2000, 400
LEAST = 5
"""Clusters below which there are no intervals: of fewer, not even all of them span a percentile 19 times in 20."""
FEW = 10
"""Clusters below which there is too little to resample, and Student's t is taken."""
T_QUANTILES = (2.776, 2.571, 2.447, 2.365, 2.306)
"""97.5% of Student's t with LEAST - 1 to FEW - 2 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and where it is with 95%; both ends are NaN of fewer than LEAST clusters."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there were enough clusters for it."""
        return self.low == self.low

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.3g}, {self.high:.3g}]"


class Clusters:
    """Tokens in clusters: `labels` [n] has a number for each token, the same for those of a cluster."""

    def __init__(self, labels: npt.ArrayLike) -> None:
        self._of = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)
        self.sizes = np.bincount(self._of).astype(np.float64)
        self.count = len(self.sizes)

    def mean(self, values: F64, *, positive: bool = False) -> Interval:
        """The mean of `values` [n]; of what is `positive` ratios are resampled, not differences."""
        s, n = np.bincount(self._of, values, self.count).astype(np.float64), self.sizes
        value = float(s.sum() / n.sum())
        if self.count < LEAST:
            return Interval(value, math.nan, math.nan)
        error = self._error(np.ones((1, self.count)), s)[1][0]
        if error == 0:
            return Interval(value, value, value)
        ratios = positive and bool((s > 0).all())  # of a cluster without any there is no logarithm
        if self.count < FEW:
            low = high = T_QUANTILES[self.count - LEAST]
        else:
            means, errors = self._error(self._draws, s)
            moved = means * np.log(means / value) if ratios else means - value
            t = moved[errors > 0] / errors[errors > 0]
            high, low = (float(x) for x in np.abs(np.quantile(t, [0.025, 0.975])))
        if ratios:
            return Interval(value, *(float(value * np.exp(x * error / value)) for x in (-low, high)))
        return Interval(value, float(value - low * error), float(value + high * error))

    def share(self, values: npt.ArrayLike) -> Interval:
        """The mean of what is 0 or 1, or between; so is its interval."""
        found = self.mean(np.asarray(values, np.float64))
        return Interval(found.value, max(found.low, 0.0), min(found.high, 1.0)) if found.known else found

    def percentiles(self, values: F64, wanted: Sequence[float]) -> list[Interval]:
        """Percentiles of `values` [n], each by its number from 0 to 100."""
        order = np.argsort(values)
        placed, of, shares = values[order], self._of[order], np.asarray(wanted) / 100

        def at(weights: F64) -> F64:
            places = np.cumsum(weights)
            found: F64 = placed[np.minimum(np.searchsorted(places, shares * places[-1]), len(placed) - 1)]
            return found

        found = at(np.ones(len(values)))
        if self.count < LEAST:
            return [Interval(float(x), math.nan, math.nan) for x in found]
        drawn = np.array([at(weights[of]) for weights in self._draws[:DRAWS_OF_PERCENTILES]])
        ends = np.quantile(drawn, [0.025, 0.975], axis=0)
        return [Interval(float(x), float(min(low, x)), float(max(high, x)))
                for x, low, high in zip(found, *ends, strict=True)]

    @property
    def _draws(self) -> F64:
        return drawn(self.count)

    def _error(self, draws: F64, s: F64) -> tuple[F64, F64]:
        """Means, and their standard errors, of draws [d, clusters] of clusters whose values add up to s [clusters]."""
        n = self.sizes
        total = draws @ n
        means = draws @ s / total
        squares = draws @ (s * s) - 2 * means * (draws @ (s * n)) + means**2 * (draws @ (n * n))
        return means, np.sqrt(np.maximum(squares, 0) * self.count / (self.count - 1)) / total


@cache
def drawn(count: int) -> F64:
    """How often each of `count` clusters is drawn [DRAWS, count], the same each time."""
    rng = np.random.default_rng(0)
    return rng.multinomial(count, np.full(count, 1 / count), DRAWS).astype(np.float64)
