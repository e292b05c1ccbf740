"""Intervals of 95% from clusters of tokens, which are alike where they are near together: no independent draws.

A mean is resampled by whole clusters, each time divided by its own error (the bootstrap-t of Efron and Tibshirani, An
Introduction to the Bootstrap, 12.5): it keeps its promise where a few clusters have most of a divergence, as plain
percentiles and normal intervals don't. Of a percentile the share of tokens above it has an error by clusters, and the
interval is of the values with that much more and less above them (Woodruff, "Confidence intervals for medians and other
position measures", 1952).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from octavo.evals.stats import F64

DRAWS = 2000
LEAST = 5
"""Clusters below which there are no intervals: of fewer, not even all of them span a percentile 19 times in 20."""
FEW = 10
"""Clusters below which there is too little to resample, and Student's t is taken."""
NORMAL = 1.959964
"""97.5% of the normal distribution."""


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
            low = high = _t(self.count - 1)
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
        placed, most = values[order], len(values) - 1
        places = [max(math.ceil(x / 100 * len(values)) - 1, 0) for x in wanted]
        if self.count < LEAST:
            return [Interval(float(placed[at]), math.nan, math.nan) for at in places]
        found = list[Interval]()
        for at in places:
            above = np.bincount(self._of[order[at + 1 :]], minlength=self.count).astype(np.float64)
            error = self._error(np.ones((1, self.count)), above)[1][0]
            half = math.ceil(_t(self.count - 1) * error * len(values))
            low, high = placed[max(at - half, 0)], placed[min(at + half, most)]
            found.append(Interval(float(placed[at]), float(low), float(high)))
        return found

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


def _t(freedom: int) -> float:
    """97.5% of Student's t, within 0.01 from 4 degrees of freedom on (Abramowitz and Stegun, 26.7.5)."""
    z = NORMAL
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return float(sum(term / freedom**i for i, term in enumerate(terms)))


@cache
def drawn(count: int) -> F64:
    """How often each of `count` clusters is drawn [DRAWS, count], the same each time."""
    rng = np.random.default_rng(0)
    return rng.multinomial(count, np.full(count, 1 / count), DRAWS).astype(np.float64)
