"""Sampling: each filter on logits made by hand, and what the chain of them draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from octavo.errors import GrammarError, UsageError
from octavo.runtime.sampling.draw import draw, philox, uniform
from octavo.runtime.sampling.processors import RepeatPenalty, adjustments_of
from octavo.runtime.sampling.sampler import (
    SamplingParams,
    largest,
    make_sampler,
    min_p,
    probabilities,
    temperature,
    top_k,
    top_p,
)

INF = math.inf
SHARES = [0.5, 0.3, 0.15, 0.04, 0.01]
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def shares(*values: float) -> np.ndarray:
    """Logits whose softmax is `values`."""
    return np.log(np.array(values, np.float64)).astype(np.float32) + np.float32(3)


def kept(filtered: np.ndarray) -> list[int]:
    return np.flatnonzero(filtered > -INF).tolist()


@pytest.mark.parametrize(
    ("k", "ids"), [(1, [3]), (2, [1, 3]), (3, [1, 3, 4]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])]
)
def test_top_k(k: int, ids: list[int]) -> None:
    x = logits(0, 4, -1, 5, 2)
    got = top_k(k)(x, [])
    assert kept(got) == ids
    np.testing.assert_array_equal(got[ids], x[ids])


@pytest.mark.parametrize(
    ("p", "ids"),
    [(0.01, [0]), (0.49, [0]), (0.51, [0, 1]), (0.79, [0, 1]), (0.81, [0, 1, 2]), (0.9999, [0, 1, 2, 3, 4])],
)
def test_top_p(p: float, ids: list[int]) -> None:
    assert kept(top_p(p)(shares(*SHARES), [])) == ids


def test_top_p_counts_only_what_is_left() -> None:
    x = top_k(2)(shares(*SHARES), [])  # 0.5 and 0.3: shares 0.625 and 0.375 of what is left
    assert kept(top_p(0.62)(x, [])) == [0]
    assert kept(top_p(0.63)(x, [])) == [0, 1]


@pytest.mark.parametrize(
    ("p", "ids"), [(1.0, [0]), (0.59, [0, 1]), (0.61, [0]), (0.29, [0, 1, 2]), (0.001, [0, 1, 2, 3, 4])]
)
def test_min_p(p: float, ids: list[int]) -> None:
    assert kept(min_p(p)(shares(*SHARES), [])) == ids


def test_temperature_scales_differences() -> None:
    x = shares(*SHARES)
    got = probabilities(temperature(2.0)(x, []))
    want = np.sqrt(SHARES) / np.sqrt(SHARES).sum()
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("t", [1e-3, 1e-12, 1e-38, 5e-324])
def test_smallest_temperatures_are_greedy(t: float) -> None:
    sample = make_sampler(SamplingParams(temperature=t, seed=0, **OFF))
    assert {sample(logits(1, 3, 2.9, -50), range(i)) for i in range(50)} == {1}


def test_repeat_penalty_hits_recent_tokens_once() -> None:
    x = logits(2, -2, 2, 0)
    np.testing.assert_array_equal(RepeatPenalty(2.0, 3)(x, [2, 0, 0, 1]), logits(1, -4, 2, 0))
    np.testing.assert_array_equal(RepeatPenalty(2.0, 0)(x, [0, 1, 2]), x)
    np.testing.assert_array_equal(RepeatPenalty(2.0, 64)(x, []), x)
    np.testing.assert_array_equal(x, logits(2, -2, 2, 0), "the model's logits stay as they are")


def test_greedy_takes_the_first_of_the_best_and_still_penalizes() -> None:
    greedy = make_sampler(SamplingParams(temperature=0))
    assert greedy(logits(1, 5, 5, 2), []) == 1
    penalized = make_sampler(SamplingParams(temperature=0, repeat_penalty=2.0))
    assert penalized(logits(1, 5, 4, 2), [1]) == 2


def test_penalties_are_of_the_reply() -> None:
    params = SamplingParams(temperature=0, presence_penalty=0.5, frequency_penalty=1.0)
    (penalize,) = make_sampler(params, n_prompt=2).processors
    given = logits(3, 3, 3, 3)
    np.testing.assert_array_equal(penalize(given, [0, 0, 1, 2, 2]), logits(3, 1.5, 0.5, 3))
    np.testing.assert_array_equal(penalize(given, [0, 0]), given)


def test_biases_and_ends() -> None:
    def choose(tokens: list[int], **params: object) -> int:
        return make_sampler(SamplingParams(temperature=0, **params), n_prompt=1, end_ids={3})(  # type: ignore[arg-type]
            logits(1, 2, 3, 4), tokens
        )

    assert choose([5]) == 3
    assert choose([5], logit_bias={0: 3.5}) == 0
    assert choose([5], logit_bias={3: -100, 2: -1.5}) == 1
    assert [choose([5, *[0] * n], min_tokens=2) for n in range(4)] == [2, 2, 3, 3]
    assert choose([5], min_tokens=1, stop_token_ids=[2]) == 1
    assert choose([5] * 99, ignore_eos=True) == 2
    for wrong in ({"logit_bias": {-1: 0.0}}, {"logit_bias": {1: 101.0}}, {"stop_token_ids": [-1]}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            SamplingParams(**wrong)  # type: ignore[arg-type]


def test_a_seed_gives_the_same_tokens() -> None:
    def draw(seed: int | None) -> list[int]:
        sample = make_sampler(SamplingParams(temperature=1, seed=seed, **OFF))
        return [sample(shares(*[0.01] * 100), range(i)) for i in range(40)]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert draw(None) != draw(None)


def test_draws_follow_the_distribution() -> None:
    sample = make_sampler(SamplingParams(temperature=1, seed=1, **OFF))
    n = 20_000
    counts = np.bincount([sample(shares(*SHARES), range(i)) for i in range(n)], minlength=5)
    spread = np.sqrt(np.array(SHARES) * (1 - np.array(SHARES)) / n)
    assert (np.abs(counts / n - SHARES) < 4 * spread).all()


def test_philox() -> None:
    """Known answers of the authors' library, Random123."""
    ones = 0xFFFFFFFF
    assert philox((0, 0), (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones, ones), (ones,) * 4) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox((0xA4093822, 0x299F31D0), pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    seeds, places = [0, 7, (1 << 64) - 1], [0, 5, 1 << 33]
    together = uniform(np.array(seeds, np.uint64), np.array(places, np.uint64)).tolist()
    assert together == [uniform(s, p) for s, p in zip(seeds, places, strict=True)]


@pytest.mark.parametrize("top_k_", [0, 4, 64])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "min_p": 0.01}])
def test_draws_among_few_follow_the_distribution(top_k_: int, filters: dict[str, float]) -> None:
    """By the way for at most 64 candidates and by that for all, whether other replies are drawn beside it or not."""
    params = SamplingParams(temperature=2.0, seed=3, **{**OFF, **filters, "top_k": top_k_})  # type: ignore[arg-type]
    sample, n = make_sampler(params), 4_000
    x = shares(*SHARES)
    drawn = [sample(x, range(i)) for i in range(n)]
    survivors = np.array([True, True, True, not filters, not filters and top_k_ != 4])
    want = np.sqrt(SHARES) * survivors / (np.sqrt(SHARES) * survivors).sum()
    spread = np.sqrt(want * (1 - want) / n)
    assert (np.abs(np.bincount(drawn, minlength=5) / n - want) <= 4 * spread).all()
    if top_k_:
        padded = np.full((n, 9), -INF, np.float32)
        padded[:, :5] = x
        assert draw(padded, [sample.draw] * n, range(n)) == drawn


def test_changes_of_several_kinds_are_one() -> None:
    params = SamplingParams(
        temperature=0, repeat_penalty=2.0, presence_penalty=0.5, frequency_penalty=1.0, logit_bias={1: 4, 3: -100}
    )
    sample, x = make_sampler(params, n_prompt=1), logits(3, -2, 5, 9)
    np.testing.assert_array_equal(sample.adjustments([2, 1, 1])(x), logits(3, -4 - 2.5 + 4, 2.5, -INF))
    assert sample(x, [2, 1, 1]) == 0
    with pytest.raises(GrammarError, match="no token left"):
        sample(logits(-INF, -INF, -INF, 9), [])


def test_changes_of_several_replies_are_those_of_each() -> None:
    rng = np.random.default_rng(5)
    kinds: list[dict[str, Any]] = [
        {"repeat_penalty": 1.3}, {}, {"logit_bias": {9: 1.5, 2: -100, 5: 0.25}, "repeat_penalty": 0.7},
        {"presence_penalty": 0.3, "frequency_penalty": 0.1}, {"repeat_penalty": 1.1, "repeat_last_n": 0},
        {"min_tokens": 3, "frequency_penalty": -0.7, "logit_bias": {3: 2}}, {"ignore_eos": True},
    ]
    samplers = [make_sampler(SamplingParams(**k), n_prompt=4, end_ids=[3, 1]) for k in kinds]
    for length in (0, 5, 40):
        texts = [rng.integers(0, 20, length).tolist() for _ in kinds]
        found = adjustments_of([s.processors for s in samplers], texts)
        for sampler, text, changes in zip(samplers, texts, found, strict=True):
            x = logits(*rng.standard_normal(20))
            want = x
            for adjust in sampler.processors:  # one after the other: of one token each makes at most one change
                want = adjust(want, text)
            np.testing.assert_allclose(changes(x), want, rtol=1e-6)
            np.testing.assert_array_equal(changes(x), sampler.adjustments(text)(x))


def test_filters_are_chained() -> None:
    sample = make_sampler(SamplingParams(temperature=1, top_k=4, top_p=0.9, min_p=0.5, seed=2))
    drawn = {sample(shares(*SHARES), range(i)) for i in range(300)}
    assert drawn == {0, 1}, "top-k leaves 4, top-p 3, min-p 2"


def test_what_is_out_is_never_drawn() -> None:
    x = np.full(1000, -INF, np.float32)
    x[[3, 999]] = 0
    sample = make_sampler(SamplingParams(temperature=1.5, seed=0))
    assert {sample(x, range(i)) for i in range(200)} == {3, 999}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "0 to 100"),
        ("temperature", math.nan, "0 to 100"),
        ("temperature", INF, "0 to 100"),
        ("top_k", -2, "-1 or more"),
        ("top_p", 0, "above 0, up to 1"),
        ("top_p", 1.01, "0 to 1"),
        ("min_p", -0.5, "0 to 1"),
        ("min_p", 2, "0 to 1"),
        ("repeat_penalty", 0, "0.001 to 100"),
        ("repeat_last_n", -2, "-1 or more"),
        ("presence_penalty", 2.1, "-2 to 2"),
        ("frequency_penalty", math.nan, "-2 to 2"),
        ("min_tokens", -1, "0 or more"),
        ("ignore_eos", 1, "True or False"),
        ("logit_bias", 5, "a mapping of tokens to numbers"),
        ("stop_token_ids", 5, "a list of tokens"),
        ("seed", -2, "-1 to 2^64"),
        ("seed", 1 << 64, "-1 to 2^64"),
    ],
)
def test_out_of_range(name: str, value: float, allowed: str) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{name} is {value}")
    assert allowed in str(caught.value)


def test_numbers_of_other_programs_for_all_and_any() -> None:
    found = SamplingParams(top_k=-1, repeat_last_n=-1, seed=-1)
    assert (found.top_k, found.seed) == (0, None)
    assert found.repeat_last_n > 1 << 30


@pytest.mark.parametrize("n", [1, 5, 63, 64, 65, 1000, 9000])
@pytest.mark.parametrize("k", [1, 2, 40])
def test_largest_is_a_full_sort(n: int, k: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x[::3] = -np.inf
    got = largest(x, min(k, n))
    assert list(got) == sorted(set(got.tolist()))
    np.testing.assert_array_equal(np.sort(x[got]), np.sort(x)[len(x) - min(k, n) :])
