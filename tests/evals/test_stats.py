"""Estimates and their standard errors, against simulation; scores of tokens, against their definition in float64."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from octavo.evals.kl_divergence import summary
from octavo.evals.scores import BLOCK_BYTES, Comparison, compare, negative_log_likelihoods
from octavo.evals.stats import Estimate, Spread, mean, root_mean_square


def test_mean() -> None:
    values = np.random.default_rng(0).exponential(size=50)
    got = mean(values)
    assert got.value == pytest.approx(statistics.fmean(values))
    assert got.error == pytest.approx(statistics.pstdev(values) / math.sqrt(49))


def test_an_estimate_is_told_with_its_error() -> None:
    assert str(Estimate(1234.5678, 0.0321)) == "1234.57 ± 0.032"


def test_one_value_has_no_error() -> None:
    assert mean(np.array([3.0])).value == 3
    assert math.isnan(mean(np.array([3.0])).error)


def test_no_deviation_from_zero() -> None:
    assert root_mean_square(np.zeros(5)) == Estimate(0.0, 0.0)


def test_percentiles() -> None:
    spread = Spread.of(np.arange(1001.0))
    assert (spread.least, spread.median, spread.largest) == (0, 500, 1000)
    assert spread.percentiles[99.9] == pytest.approx(999)
    assert spread.percentiles[0.1] == pytest.approx(1)


def drawn(rng: np.random.Generator, n: int) -> Comparison:
    """Two models that find mostly the same tokens hard."""
    nll = rng.exponential(1.5, n)
    other = np.abs(nll + rng.normal(0.05, 0.2, n))
    return Comparison(other, nll, rng.exponential(0.1, n), rng.random(n) < 0.9)


ERRORS = (
    "kl", "same_top", "perplexity", "base_perplexity", "perplexity_ratio", "perplexity_difference", "delta_p",
    "rms_delta_p",
)


def test_standard_errors_are_the_spread_of_repeated_measurements() -> None:
    rng = np.random.default_rng(1)
    measured = [summary(drawn(rng, 400), 1, 512) for _ in range(600)]
    for name in ERRORS:
        values = [getattr(m, name).value for m in measured]
        errors = [getattr(m, name).error for m in measured]
        assert np.mean(errors) == pytest.approx(np.std(values), rel=0.12), name


def test_errors_of_a_comparison_know_that_both_read_the_same_text() -> None:
    got = summary(drawn(np.random.default_rng(2), 4000), 1, 512)
    assert got.perplexity_difference.error < got.perplexity.error / 3
    assert got.correlation > 0.98


def exact_log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide = wide - wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def pair(rows: int, width: int, *, scale: float = 4.0, gap: float = 0.3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([rows, width])
    base = rng.standard_normal((rows, width)).astype(np.float32) * np.float32(scale)
    other = base + rng.standard_normal((rows, width)).astype(np.float32) * np.float32(gap)
    return other, base, rng.integers(0, width, rows)


@pytest.mark.parametrize("shape", [(1, 2), (7, 33), (5, BLOCK_BYTES // 4 + 1), (300, 4099)])
@pytest.mark.parametrize("scale", [0.1, 4.0, 300.0])
def test_scores_are_their_definition(shape: tuple[int, int], scale: float) -> None:
    logits, base, targets = pair(*shape, scale=scale)
    rows = np.arange(len(targets))
    log_p, log_base = exact_log_softmax(logits), exact_log_softmax(base)
    got = compare(logits, base, targets)
    tolerance = {"rtol": 1e-6, "atol": 1e-6 * max(scale, 1)}
    np.testing.assert_allclose(got.nll, -log_p[rows, targets], **tolerance)
    np.testing.assert_allclose(got.nll_base, -log_base[rows, targets], **tolerance)
    np.testing.assert_allclose(got.kl, (np.exp(log_base) * (log_base - log_p)).sum(axis=1), **tolerance)
    np.testing.assert_array_equal(got.same_top, logits.argmax(1) == base.argmax(1))
    np.testing.assert_allclose(negative_log_likelihoods(logits, targets), -log_p[rows, targets], **tolerance)


def test_a_model_is_no_distance_from_itself() -> None:
    _, base, targets = pair(20, 1000)
    got = compare(base, base, targets)
    assert not got.kl.any()
    assert got.same_top.all()


def test_a_shift_of_all_logits_changes_nothing() -> None:
    logits, base, targets = pair(20, 1000)
    want, got = compare(logits, base, targets), compare(logits + np.float32(4096), base, targets)
    np.testing.assert_allclose(got.kl, want.kl, atol=1e-3, rtol=0)  # 4096 leaves float32 digits of 5e-4
    exactly = compare(np.round(base * 64) / 64 + np.float32(4096), np.round(base * 64) / 64, targets)
    assert not exactly.kl.any()


def test_small_divergences_keep_their_digits() -> None:
    logits, base, targets = pair(200, 4096, gap=1e-3)
    log_p, log_base = exact_log_softmax(logits), exact_log_softmax(base)
    want = (np.exp(log_base) * (log_base - log_p)).sum(axis=1)
    got = compare(logits, base, targets).kl
    assert want.mean() < 1e-6
    assert abs(got.mean() - want.mean()) < 0.02 * want.mean()
