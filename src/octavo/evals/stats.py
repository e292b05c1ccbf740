"""Estimates with their standard errors, tokens taken as independent, as llama.cpp's perplexity tool does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

PERCENTILES = (99.9, 99.0, 95.0, 90.0, 50.0, 10.0, 5.0, 1.0, 0.1)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error (NaN from a single token)."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.6g} ± {self.error:.2g}"


def mean(values: F64) -> Estimate:
    """The mean and its standard error."""
    n = len(values)
    error = float(np.sqrt(np.var(values) / (n - 1))) if n > 1 else float("nan")
    return Estimate(float(np.mean(values)), error)


def exp_mean(values: F64) -> Estimate:
    """exp of the mean: a perplexity from negative log-likelihoods, or a ratio of two from their differences."""
    e = mean(values)
    value = float(np.exp(e.value))
    return Estimate(value, value * e.error)


def root_mean_square(values: F64) -> Estimate:
    """sqrt of the mean square."""
    square = mean(values * values)
    root = square.value**0.5
    return Estimate(root, square.error / (2 * root) if root else 0.0)


@dataclass(frozen=True)
class Spread:
    """How values lie: the least, the largest, and percentiles by their number (50 is the median)."""

    least: float
    largest: float
    percentiles: Mapping[float, float]

    @property
    def median(self) -> float:
        """The value that half of them are below."""
        return self.percentiles[50.0]

    @classmethod
    def of(cls, values: F64) -> Spread:
        """The spread of finite values, one at least."""
        found = np.percentile(values, PERCENTILES)
        return cls(float(values.min()), float(values.max()), dict(zip(PERCENTILES, map(float, found), strict=True)))
