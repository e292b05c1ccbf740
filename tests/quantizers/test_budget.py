"""The choice of types under a budget, against trying every one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from octavo.errors import UsageError
from octavo.quantizers.fit import fit
from octavo.quantizers.fit.fit import Candidate, solve_knapsack

TYPES = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_0": 272}


def model(rng: np.random.Generator, tensors: int, types: int = 6) -> dict[str, list[Candidate]]:
    """Tensors of some sizes, losses falling about as they do: a quarter with each bit."""
    found = {}
    for i in range(tensors):
        blocks, worth = int(rng.choice([4, 16, 64, 48])), rng.lognormal(0, 2)
        found[f"t{i}"] = [
            Candidate(name, blocks * b, worth * 4 ** (-b * 8 / 256) * rng.uniform(0.7, 1.3))
            for name, b in list(TYPES.items())[:types]
        ]
    return found


def totals(chosen: dict[str, Candidate]) -> tuple[int, float]:
    return sum(c.nbytes for c in chosen.values()), sum(c.loss for c in chosen.values())


def best(candidates: dict[str, list[Candidate]], nbytes: int) -> float:
    """The least loss of all choices, one by one."""
    ways = product(*candidates.values())
    return min(sum(c.loss for c in way) for way in ways if sum(c.nbytes for c in way) <= nbytes)


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    candidates = model(rng, 5)
    least = sum(min(c.nbytes for c in options) for options in candidates.values())
    most = sum(max(c.nbytes for c in options) for options in candidates.values())
    for size in [least, most, most + 1, *rng.integers(least, most, 6).tolist()]:
        chosen = solve_knapsack(candidates, size)
        nbytes, loss = totals(chosen)
        assert list(chosen) == list(candidates)
        assert all(chosen[name] in candidates[name] for name in chosen)
        assert nbytes <= size
        assert loss == pytest.approx(best(candidates, size), rel=1e-12)


def relaxed(candidates: dict[str, list[Candidate]], nbytes: int) -> float:
    """What no choice can beat: Lagrange's bound, the greatest over a range of prices of a byte."""
    prices = np.geomspace(1e-9, 10, 2000)
    bound = -prices * nbytes
    for options in candidates.values():
        bound += np.min([c.loss + prices * c.nbytes for c in options], axis=0)
    return float(bound.max())


@pytest.mark.parametrize(("states", "slack"), [(8192, 0.005), (1024, 0.05)])
def test_a_large_model_is_next_to_the_bound(monkeypatch: pytest.MonkeyPatch, states: int, slack: float) -> None:
    monkeypatch.setattr(fit, "MOST_STATES", states)
    candidates = model(np.random.default_rng(3), 250)
    size = sum(options[2].nbytes for options in candidates.values()) + 137
    nbytes, loss = totals(solve_knapsack(candidates, size))
    assert nbytes <= size
    assert relaxed(candidates, size) <= loss <= relaxed(candidates, size) * (1 + slack)


def test_thinning_still_fits_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MOST_STATES", 16)
    candidates = model(np.random.default_rng(4), 6)
    for size in range(30_000, 42_000, 1500):
        least = sum(min(c.nbytes for c in options) for options in candidates.values())
        if size >= least:
            assert totals(solve_knapsack(candidates, size))[0] <= size


def test_more_room_is_never_worse() -> None:
    candidates = model(np.random.default_rng(5), 12)
    least = sum(min(c.nbytes for c in options) for options in candidates.values())
    losses = [totals(solve_knapsack(candidates, size))[1] for size in range(least, 3 * least, least // 7)]
    assert losses == sorted(losses, reverse=True)


def test_too_small_a_budget() -> None:
    candidates = {"a": [Candidate("Q2_K", 84, 1.0)], "b": [Candidate("Q2_K", 84, 1.0)]}
    with pytest.raises(UsageError, match=r"167 bytes .allowed: at least 168"):
        solve_knapsack(candidates, 167)


@pytest.mark.parametrize("options", [[], [Candidate("Q2_K", 84, float("nan"))], [Candidate("Q2_K", 84, -1.0)]])
def test_bad_candidates(options: list[Candidate]) -> None:
    with pytest.raises(UsageError, match="tensor 'a'"):
        solve_knapsack({"a": options}, 1000)
