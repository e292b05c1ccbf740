"""SmoothQuant, AWQ, QQQ's threshold and RPTQ: scales of channels, chosen by what rounded products give.

The writer of an input is divided by the scales and the readers' columns are multiplied (see `calibrate.fold`), which
changes only what rounding does. So scales are made from statistics and tried, and those are kept with which rounded
products err least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from octavo.errors import NonFiniteError, UsageError
from octavo.formats import rows
from octavo.formats.scalars import e4m3_to_f32, f32_to_e4m3
from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import nearest, row_parts, values_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.matrix_tiles import run_tiles

Rounding = Callable[[F32], F32]
"""Rows of values as they are once they are rounded, of the same shape."""
F64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
OUTPUTS = 4
"""Numbers as large as an output of a token that are there beside it, next to those beside a weight."""
ALPHAS = tuple(round(0.3 + 0.05 * i, 2) for i in range(14))
RATIOS = tuple(round(0.05 * i, 2) for i in range(20))
CLUSTERS, EXPONENTS = (8, 32), (0.5, 0.7, 0.85, 1.0)
LEAST = 1e-5
"""The least maximum and scale: channels that are always 0 must not give scales of 0."""
ROUNDS = 300
"""The most rounds of k-means."""
WORTH = 0.5
"""Scales are taken only if they leave at most this share of the error of nearest codes, where only weights are rounded
and their errors are made up for afterwards: beside that they gain little, and they are found with few tokens."""


def as_they_are(x: F32) -> F32:
    """Numbers that are not rounded."""
    return x


def tokens_int8(x: F32) -> F32:
    """Activations [T, K] with int8 codes and a scale for each token, max|x| / 127."""
    return _symmetric(x, rows.INT8_TOP)


def tokens_fp8(x: F32) -> F32:
    """Activations [T, K] as e4m3 numbers with a scale for each token, max|x| / 448."""
    top = rows.FP8_TOP["e4m3"]
    scale = rows.symmetric_scale(x, top)
    return e4m3_to_f32(f32_to_e4m3(rows.in_range(x, scale, top))) * scale[..., None]


def tensor_int8(x: F32) -> F32:
    """Activations [T, K] with int8 codes and one scale for all of them, max|x| / 127."""
    return _symmetric(x.reshape(-1), rows.INT8_TOP).reshape(x.shape)


def tensor_fp8(x: F32) -> F32:
    """Activations [T, K] as e4m3 numbers with one scale for all of them, max|x| / 448."""
    return tokens_fp8(x.reshape(1, -1)).reshape(x.shape)


def _symmetric(values: F32, top: int) -> F32:
    codes, scales = rows.symmetric(values, top)
    return codes * scales[..., None]


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


def smoothquant(pair: FoldProducts, alphas: Sequence[float] = ALPHAS) -> ChosenScales:
    """s = max|x|^alpha / max|w|^(1 - alpha), with the alpha of least error (arXiv 2211.10438, equation 4).

    The maximum of w is over all products of the pair. Published scales have one alpha for a whole model.
    """
    x = np.maximum(pair.largest, LEAST)
    columns = np.max([end for weight in pair.weights for end in (weight.max(axis=0), -weight.min(axis=0))], axis=0)
    w = np.maximum(pair.by_channel(columns, np.maximum), LEAST)
    return search(pair, ((alpha, np.maximum(x**alpha / w ** (1 - alpha), LEAST)) for alpha in alphas))


def awq(pair: FoldProducts, group: int = 128, ratios: Sequence[float] = RATIOS) -> ChosenScales:
    """s = mean|x|^r, or mean|x|^r / w^(1 - r), with the ratio r of least error (arXiv 2306.00978, section 3.2).

    w is how large a column's weights are next to the largest of their groups. Scales are divided by the root of the
    largest times the least. Ones are tried too, so the error never rises.
    """
    x, w = pair.mean, _relative(pair, group)

    def candidates() -> Iterator[tuple[float, F64]]:
        for ratio in ratios:
            plain = np.maximum(x**ratio, 1e-4)
            for scales in (plain, np.maximum(x**ratio / (w ** (1 - ratio) + 1e-4), 1e-4)):
                yield ratio, scales / np.sqrt(scales.max() * scales.min())

    return search(pair, candidates())


def _relative(pair: FoldProducts, group: int) -> F64:
    """The mean of |w| over the largest of its group, for each channel: [size]."""
    total, count = np.zeros(pair.inputs.shape[-1]), 0
    for weight in pair.weights:
        n, k = weight.shape
        size = group if k % group == 0 else k
        for some in row_parts(n, k):
            parts = np.abs(weight[some]).reshape(-1, k // size, size)
            total += (parts / (parts.max(axis=-1, keepdims=True) + 1e-6)).reshape(-1, k).sum(axis=0, dtype=np.float64)
        count += n
    return pair.by_channel(total / count, np.add) / np.bincount(pair.places)


def qqq(pair: FoldProducts, steps: int = 40, least: float = 0.1) -> ChosenScales:
    """s = max(1, max|x| / t): only channels beyond t are divided, with the t of least error (arXiv 2406.09904, 3.2).

    steps  thresholds from the largest |x| down to `least`, each the same part of the one before. QQQ's own steps are
           of equal size, of which there would be thousands with outliers that are large
    """
    x = pair.largest
    top = float(x.max())
    thresholds = np.geomspace(top, least, steps + 1)[1:] if top > least else np.empty(0)
    return search(pair, ((float(t), np.maximum(x / t, 1.0)) for t in thresholds))


def rptq(
    pair: FoldProducts, counts: Sequence[int] = CLUSTERS, exponents: Sequence[float] = EXPONENTS
) -> ChosenScales:
    """s = (the largest |x| of a channel's cluster)^e, with clusters of channels of like |x| (arXiv 2304.01089, 4.1).

    RPTQ gives each cluster a static scale of its own. With e = 1 that is what folded scales make of one scale for all;
    the weights take up the rest, so less is tried, too.
    """
    x = np.maximum(pair.largest, LEAST)
    sizes = np.log(x)[:, None]

    def candidates() -> Iterator[tuple[float, F64]]:
        for count in counts:
            labels = clusters(sizes, count, starts=1)
            largest = np.zeros(labels.max() + 1)
            np.maximum.at(largest, labels, x)
            for exponent in exponents:
                yield exponent, largest[labels] ** exponent

    return search(pair, candidates())


def unless(
    method: Search, other: Callable[[FoldProducts], FoldProducts], most: float = 1.0
) -> Search:
    """A method that leaves channels as they are where products then err less, rounded in another way.

    other  gives a pair as it is rounded in that way
    most   times as much may products err with the method's scales: `FoldProducts.error` is of squares
    """

    def found(pair: FoldProducts) -> ChosenScales:
        chosen = method(pair)
        if chosen.after > most * other(pair).error(np.ones(pair.size)):
            return ChosenScales(np.ones(pair.size), None, chosen.before, chosen.before, "ones")
        return chosen

    return found


METHODS: Mapping[str, Search] = {
    "smoothquant": smoothquant,
    "awq": awq,
    "qqq": qqq,
    "rptq": rptq,
}
"""By the names of `--method`."""


def best_of(methods: Mapping[str, Search], most: float = 1.0) -> Search:
    """A method that takes the scales of the one that errs least over inputs that the search did not see.

    Every other one of a pair's inputs is for the search, the others judge; ones are taken where nothing is better than
    `most` times what they err.
    """

    def best(pair: FoldProducts) -> ChosenScales:
        seen, judge = (replace(pair, inputs=np.ascontiguousarray(pair.inputs[i::2])) for i in (0, 1))
        if not len(judge.inputs):
            return methods[next(iter(methods))](pair)
        before = judge.error(np.ones(pair.size))
        chosen = ChosenScales(np.ones(pair.size), None, before, before, "ones")
        for name, method in methods.items():
            found = method(seen)
            after = judge.error(found.scales)
            if found.setting is not None and after < min(chosen.after, most * before):
                chosen = ChosenScales(found.scales, found.setting, before, after, name)
        return chosen

    return best


def clusters(points: F64, count: int, *, seed: int = 0, starts: int = 10) -> Ints:
    """The cluster of each of `points` [n, d], 0 to count - 1, by k-means from several starts, the best of them.

    The first centres are drawn by their distance from those before (k-means++). Raises UsageError for a count below 1.
    """
    if count < 1:
        raise UsageError(f"{count} clusters (allowed: 1 or more)")
    rng, count = np.random.default_rng(seed), min(count, len(points))
    tries = (_k_means(points, _first_centres(points, count, rng)) for _ in range(starts))
    return min(tries, key=lambda found: found[1])[0]


def _first_centres(points: F64, count: int, rng: np.random.Generator) -> F64:
    centres = [points[rng.integers(len(points))]]
    for _ in range(count - 1):
        squares = _squares(points, np.stack(centres)).min(axis=1)
        total = squares.sum()
        centres.append(points[rng.choice(len(points), p=squares / total if total else None)])
    return np.stack(centres)


def _k_means(points: F64, centres: F64) -> tuple[Ints, float]:
    """The cluster of each point, and the sum of squares around their means."""
    labels = np.full(len(points), -1)
    for _ in range(ROUNDS):
        squares = _squares(points, centres)
        nearest = squares.argmin(axis=1)
        if (nearest == labels).all():
            break
        labels = nearest
        for label in np.unique(labels):
            centres[label] = points[labels == label].mean(axis=0)
    return labels, float(_squares(points, centres)[np.arange(len(points)), labels].sum())


def _squares(points: F64, centres: F64) -> F64:
    out: F64 = np.square(points[:, None] - centres).sum(axis=-1)
    return out


ROUNDINGS = {
    "int8_token": tokens_int8, "fp8_token": tokens_fp8, "int8_static": tensor_int8, "fp8_static": tensor_fp8,
}
"""How activations are rounded, by their format."""


def roundings(scheme: CheckpointScheme) -> tuple[Rounding, Rounding]:
    """How a scheme rounds weights and activations."""
    return lambda w: values_of(scheme, nearest(scheme, w)), ROUNDINGS.get(scheme.activation, as_they_are)


def search_of(name: str, scheme: CheckpointScheme, ways: Sequence[str]) -> Search:
    """The way to choose scales by its name in METHODS, or for "auto" the best one for each pair.

    ways  in which weights are made afterwards
    """
    if name != "auto":
        return METHODS[name]
    tried = {each: way for each, way in METHODS.items() if scheme.static or each != "rptq"}
    by_gptq = not scheme.tokens and len(ways) > 1
    return best_of(tried, WORTH if by_gptq else 1.0)
