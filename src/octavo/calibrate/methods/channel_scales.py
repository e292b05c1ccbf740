"""SmoothQuant, AWQ and QQQ's threshold: scales to try for a pair, each made from its statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from octavo.calibrate.fold import clusters
from octavo.calibrate.methods.scale_search import F64, ChosenScales, FoldProducts, Search, search
from octavo.huggingface.scheme_weight import row_parts

ALPHAS = tuple(round(0.3 + 0.05 * i, 2) for i in range(14))
RATIOS = tuple(round(0.05 * i, 2) for i in range(20))
CLUSTERS, EXPONENTS = (8, 32), (0.5, 0.7, 0.85, 1.0)
LEAST = 1e-5
"""The least maximum and scale: channels that are always 0 must not give scales of 0."""


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
        for rows in row_parts(n, k):
            parts = np.abs(weight[rows]).reshape(-1, k // size, size)
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
