"""Products that read one input, and what writes it: the scales of its channels are chosen by what comes out.

The writer is divided by the scales and the readers' columns are multiplied (see `calibrate.fold`), which changes only
what rounding does. So scales are tried, and those are kept with which rounded products err least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from octavo.calibrate.methods.rounding import Rounding, as_they_are
from octavo.errors import NonFiniteError, UsageError
from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import row_parts
from octavo.quantizers.matrix_tiles import run_tiles

F64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

OUTPUTS = 4
"""Numbers as large as an output of a token that are there beside it, next to those beside a weight."""


@dataclass(frozen=True, eq=False)
class FoldProducts:
    """Products that read one input, with samples of it.

    weights  float32 [N, K] of each product
    inputs   float32 [T, K], activations as they are without scales
    weight, activation  how these are rounded
    index    which channel of the fold each column is, int [K]; None: each its own. Columns of heads that share values
             share a scale
    absmax, mean_abs  float [K] of many more inputs; None: of these
    by_rows  whether what a weight's rows are rounded to depends on no others but those of the same 128

    Raises UsageError for shapes that do not fit, NonFiniteError for inputs that are not finite.
    """

    weights: tuple[F32, ...]
    inputs: F32
    weight: Rounding
    activation: Rounding = as_they_are
    index: Ints | None = None
    absmax: npt.ArrayLike | None = None
    mean_abs: npt.ArrayLike | None = None
    by_rows: bool = True

    def __post_init__(self) -> None:
        columns = {weight.shape[-1] for weight in self.weights}
        given = [np.shape(a) for a in (self.index, self.absmax, self.mean_abs) if a is not None]
        width = self.inputs.shape[-1]
        if columns != {width} or set(given) - {(width,)} or not len(self.inputs):
            found = ", ".join(map(str, [*(list(w.shape) for w in self.weights), *map(list, given)]))
            raise UsageError(
                f"weights and statistics of {found} (allowed: [N, {width}] and [{width}], inputs of a token)"
            )
        if not np.isfinite(self.inputs).all():
            raise NonFiniteError("inputs of a product hold NaN or Inf")

    @property
    def size(self) -> int:
        """Channels that have a scale."""
        return int(self.places.max()) + 1

    @cached_property
    def places(self) -> Ints:
        return np.arange(self.inputs.shape[-1]) if self.index is None else self.index

    @cached_property
    def outputs(self) -> list[F32]:
        """What the products give without rounding: [T, N] each."""
        return [self.inputs @ weight.T for weight in self.weights]

    @property
    def largest(self) -> F64:
        """max |x| of each channel: [size]."""
        columns = np.abs(self.inputs).max(axis=0) if self.absmax is None else np.asarray(self.absmax)
        return self.by_channel(columns, np.maximum)

    @property
    def mean(self) -> F64:
        """mean |x| of each channel: [size]."""
        columns = np.abs(self.inputs).mean(axis=0) if self.mean_abs is None else np.asarray(self.mean_abs)
        return self.by_channel(columns, np.add) / np.bincount(self.places)

    def by_channel(self, columns: npt.ArrayLike, join: np.ufunc) -> F64:
        """Numbers of columns [K], joined for each channel: [size]."""
        out = np.zeros(self.size)
        join.at(out, self.places, np.asarray(columns, np.float64))
        return out

    @cached_property
    def gram(self) -> F32:
        """The sum of x x^T over the inputs: [K, K]."""
        return self.inputs.T @ self.inputs

    def error(self, scales: npt.ArrayLike) -> float:
        """The mean square of what rounded products err with scales [size]."""
        factors = np.asarray(scales, np.float64)[self.places].astype(np.float32)
        if self.activation is as_they_are and self.inputs.shape[-1] <= len(self.inputs):
            return self._error_of_weights(factors)
        x = self.activation(self.inputs / factors)
        wrong = 0.0
        for weight, want in zip(self.weights, self.outputs, strict=True):
            for part in self._parts(weight):
                off = x @ self.weight(weight[part] * factors).T - want[:, part]
                wrong += float(np.square(off, dtype=np.float64).sum())
        return wrong / sum(want.size for want in self.outputs)

    def _parts(self, weight: F32) -> list[slice]:
        """Rows of a weight that are rounded together, and multiplied: several threads do that at a time."""
        n, k = weight.shape
        return row_parts(n, k + OUTPUTS * len(self.inputs)) if self.by_rows else [slice(None)]

    def _error_of_weights(self, factors: F32) -> float:
        """The same where only weights are rounded: the sum over tokens of |E x|^2 is the trace of E G E^T."""
        wrong = 0.0
        for weight in self.weights:
            for part in self._parts(weight):
                off = self.weight(weight[part] * factors) / factors - weight[part]
                wrong += float(np.multiply(off @ self.gram, off).sum(dtype=np.float64))
        return wrong / (len(self.inputs) * sum(len(weight) for weight in self.weights))


@dataclass(frozen=True, eq=False)
class ChosenScales:
    """What a search chose.

    scales   float64 [size]
    setting  what they were made with (alpha, a ratio, a threshold); None: ones are best
    before   the error with ones, see `FoldProducts.error`
    after    the error with these scales, never above `before`
    how      the way in which they were made, where there were several
    """

    scales: F64
    setting: float | None
    before: float
    after: float
    how: str = ""


Search = Callable[[FoldProducts], ChosenScales]
"""A way to choose scales."""


def search(pair: FoldProducts, candidates: Iterable[tuple[float, F64]]) -> ChosenScales:
    """The scales with the least error, of those given with their settings and of ones; the first of equals."""
    ones, given = np.ones(pair.size), list(candidates)
    before, *errors = errors_of(pair, [ones, *(scales for _, scales in given)])
    best = ChosenScales(ones, None, before, before)
    for (setting, scales), after in zip(given, errors, strict=True):
        if after < best.after:
            best = ChosenScales(scales, setting, before, after)
    return best


def errors_of(pair: FoldProducts, tried: Sequence[F64]) -> list[float]:
    """The pair's error with each of several scales, found in all threads."""
    if pair.activation is as_they_are:
        _ = pair.gram  # once, before all threads ask for it
    else:
        _ = pair.outputs
    errors = [0.0] * len(tried)

    def one(i: int) -> None:
        errors[i] = pair.error(tried[i])

    run_tiles(partial(one, i) for i in range(len(tried)))
    return errors
