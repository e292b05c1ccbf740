"""Intervals by clusters of tokens: they cover what they are of, as often as they say, where plain ones do not."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from octavo.evals.clusters import FEW, LEAST, Clusters
from octavo.evals.stats import mean

NOISE, TOKENS = 0.4, 1.2
"""Standard deviations of the logarithm of a divergence: of a cluster's level, and of a token's beside it."""


def test_intervals_cover_what_is_known() -> None:
    """1,000 samples of 60 documents whose divergences have a known mean; so have likelihoods and same top tokens."""
    rng = np.random.default_rng(3)
    true = math.exp((NOISE**2 + TOKENS**2) / 2)
    hits = {"kl": 0, "ratio": 0, "same top": 0, "plain": 0}
    for _ in range(1000):
        sizes = rng.integers(20, 120, 60)
        labels = np.repeat(np.arange(60), sizes)
        clusters, level = Clusters(labels), rng.normal(0, 1, 60)[labels]
        kl = np.exp(NOISE * level + rng.normal(0, TOKENS, len(labels)))
        gap = 0.02 * level + rng.normal(0, 0.3, len(labels))
        same = (rng.random(len(labels)) < 0.8 + 0.1 * np.sign(level)).astype(float)
        wanted = {"kl": (clusters.mean(kl, positive=True), true), "ratio": (clusters.mean(gap), 0.0),
                  "same top": (clusters.mean(same), 0.8)}
        for name, (found, value) in wanted.items():
            hits[name] += found.low <= value <= found.high
        plain = mean(kl)
        hits["plain"] += abs(plain.value - true) < 1.96 * plain.error
    assert 600 < hits["plain"] < 850  # tokens as independent draws promise too much
    assert all(930 <= hits[name] <= 970 for name in ("kl", "ratio", "same top")), hits


def test_percentiles_cover_what_is_known() -> None:
    """Of 600 samples of 60 documents, the median and the 99th percentile of divergences."""
    rng, hits = np.random.default_rng(4), {50.0: 0, 99.0: 0}
    true = {wanted: math.exp(math.hypot(NOISE, TOKENS) * NormalDist().inv_cdf(wanted / 100)) for wanted in hits}
    for _ in range(600):
        labels = np.repeat(np.arange(60), 50)
        values = np.exp(NOISE * rng.normal(0, 1, 60)[labels] + rng.normal(0, TOKENS, 3000))
        for (wanted, value), found in zip(true.items(), Clusters(labels).percentiles(values, list(hits)), strict=True):
            hits[wanted] += found.low <= value <= found.high
    assert all(558 <= n <= 582 for n in hits.values()), hits


def test_percentiles_are_those_of_all_tokens() -> None:
    values = np.random.default_rng(0).permutation(1001).astype(float)
    found = Clusters(np.arange(1001) // 11).percentiles(values, [50.0, 99.0, 99.9])
    assert [x.value for x in found] == pytest.approx([500, 990, 999], abs=1)
    assert all(x.low <= x.value <= x.high for x in found)


@pytest.mark.parametrize("count", [LEAST, FEW - 1, FEW, 40])
def test_a_mean_lies_in_its_interval(count: int) -> None:
    values = np.random.default_rng(1).lognormal(size=10 * count)
    clusters = Clusters(np.arange(len(values)) // 10)
    for positive in (False, True):
        found = clusters.mean(values, positive=positive)
        assert found.value == pytest.approx(values.mean())
        assert found.low < found.value < found.high
        assert found.low > 0 or not positive


def test_what_does_not_vary_has_no_width() -> None:
    assert str(Clusters([0, 0, 1, 1, 2, 3, 4]).mean(np.ones(7))) == "1 [1, 1]"


@pytest.mark.parametrize("count", [1, LEAST - 1])
def test_few_clusters_say_nothing_of_others(count: int) -> None:
    clusters = Clusters(np.arange(9) % count)
    for found in (clusters.mean(np.arange(9.0)), clusters.percentiles(np.arange(9.0), [50.0])[0]):
        assert found.value == 4
        assert not found.known
        assert math.isnan(found.low)
        assert math.isnan(found.high)


def test_a_share_lies_between_0_and_1() -> None:
    """With few clusters an interval by Student's t goes further."""
    clusters = Clusters(np.repeat(np.arange(LEAST), 20))
    values = np.ones(100, bool)
    values[:10] = False
    assert clusters.mean(values.astype(float)).high > 1
    assert clusters.share(values).high == 1
    assert clusters.share(~values).low == 0
    assert clusters.share(values).low == clusters.mean(values.astype(float)).low


def test_labels_are_any_numbers() -> None:
    values = np.arange(6.0)
    assert Clusters([7, 7, 3, 4, 5, 900]).mean(values) == Clusters([3, 3, 0, 1, 2, 4]).mean(values)
