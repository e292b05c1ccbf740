"""Statistics of channels: how large the numbers are that a product's inputs, or a cache, are given."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from octavo.errors import NonFiniteError, UsageError
from octavo.formats.spec import F32, AnyArray
from octavo.quantizers.matrix_tiles import run_tiles, spans

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

FIELDS = ("absmax", "mean", "mean_abs", "mean_square", "min", "max")
"""What is known of each channel."""
TOKENS = 512
"""Vectors that are looked at together: they stay in a core's cache."""


class ChannelStatistics:
    """Statistics of each channel of vectors [rows, K], one for each token.

    The rows are experts, of which a token has some, or heads of a cache, or there is a single one. The same vectors in
    the same calls give the same bytes, whatever the number of threads.
    """

    def __init__(self, rows: int, size: int, name: str = "") -> None:
        self.name = name
        self.tokens: I64 = np.zeros(rows, np.int64)
        self._sums: F64 = np.zeros((3, rows, size))  # sums of x, |x| and x^2
        self._low: F32 = np.full((rows, size), np.inf, np.float32)
        self._high: F32 = np.full((rows, size), -np.inf, np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        rows, size = self._low.shape
        return rows, size

    def add(self, x: F32, row: int | None = None) -> None:
        """Count vectors x, float32 [T, rows, K], or those of one row, [T, K]. Raises NonFiniteError for NaN and Inf."""
        rows = slice(None) if row is None else slice(row, row + 1)
        wanted = (len(x), *self._low[rows].shape)
        if x.size != np.prod(wanted):
            raise UsageError(f"{self.name}: vectors {list(x.shape)} (allowed: {list(wanted)})")
        if not len(x):
            return
        flat = x.reshape(len(x), -1)
        places = [part.reshape(-1) for part in (*self._sums[:, rows], self._low[rows], self._high[rows])]
        run_tiles(partial(_count, flat, places, columns) for columns in spans(flat.shape[1]))
        self.tokens[rows] += len(x)
        if not (np.isfinite(places[-2]).all() and np.isfinite(places[-1]).all()):
            raise NonFiniteError(f"the model computed NaN or Inf in what {self.name} is given")

    def count(self, tokens: int, row: int | None, sums: F64, low: F32, high: F32) -> None:
        """Count vectors, as `add` does, by sums of x, |x| and x^2 [3, ...], the least and the largest."""
        rows = slice(None) if row is None else slice(row, row + 1)
        shape = self._low[rows].shape
        self.tokens[rows] += tokens
        self._sums[:, rows] += sums.reshape(3, *shape)
        self._low[rows] = np.minimum(self._low[rows], low.reshape(shape))
        self._high[rows] = np.maximum(self._high[rows], high.reshape(shape))

    def merge(self, other: Self) -> None:
        """Count what another one has counted. Raises UsageError where it is of another shape."""
        if other.shape != self.shape:
            problem = f"{self.name}: statistics of {list(other.shape)} and {list(self.shape)} channels"
            raise UsageError(f"{problem} (allowed: of one shape)")
        self.tokens += other.tokens
        self._sums += other._sums
        self._low = np.minimum(self._low, other._low)
        self._high = np.maximum(self._high, other._high)

    @classmethod
    def of(cls, fields: dict[str, F32], tokens: I64, name: str = "") -> Self:
        """The statistics with these fields [rows, K], as `fields` gives them."""
        rows, size = fields["min"].shape
        made = cls(rows, size, name)
        made.tokens[:] = tokens
        seen = (tokens > 0)[:, None]
        for place, field in zip(made._sums, ("mean", "mean_abs", "mean_square"), strict=True):
            place[...] = fields[field].astype(np.float64) * tokens[:, None]
        made._low[...] = np.where(seen, fields["min"], np.inf)
        made._high[...] = np.where(seen, fields["max"], -np.inf)
        return made

    def fields(self) -> dict[str, F32]:
        """All of FIELDS, float32 [rows, K]; 0 in a row that no token had."""
        return {field: getattr(self, field) for field in FIELDS}

    @property
    def absmax(self) -> F32:
        return np.maximum(np.abs(self.min), np.abs(self.max))

    @property
    def mean(self) -> F32:
        return self._mean(0)

    @property
    def mean_abs(self) -> F32:
        return self._mean(1)

    @property
    def mean_square(self) -> F32:
        return self._mean(2)

    @property
    def min(self) -> F32:
        return self._seen(self._low)

    @property
    def max(self) -> F32:
        return self._seen(self._high)

    def _mean(self, which: int) -> F32:
        mean: F32 = (self._sums[which] / np.maximum(self.tokens, 1)[:, None]).astype(np.float32)
        return mean

    def _seen(self, values: F32) -> F32:
        return np.where((self.tokens > 0)[:, None], values, np.float32(0))


def _count(x: AnyArray, places: list[npt.NDArray[Any]], columns: slice) -> None:
    """Add columns of x [T, N] to sums of x, |x| and x^2, and to the least and the largest, [N] each."""
    total, size, square, low, high = (place[columns] for place in places)
    for part in spans(len(x), TOKENS):
        values = np.ascontiguousarray(x[part, columns], np.float32)
        np.minimum(low, values.min(axis=0), out=low)
        np.maximum(high, values.max(axis=0), out=high)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return  # the caller raises an error
        total += values.sum(axis=0)
        values = np.abs(values)
        size += values.sum(axis=0)
        np.multiply(values, values, out=values)
        square += values.sum(axis=0)
