"""What drafts are expected to take, by what some took."""

from __future__ import annotations

import pytest

from octavo.runtime.speculation.making_times import MOST_UNUSUAL, MakingTimes


def test_what_compiled_or_captured_first_does_not_last() -> None:
    times = MakingTimes()
    for seconds in (10.0, 0.4, 0.001):
        times.add(1, 1, seconds)
    assert times.at(1, 1) == 0.001


def test_one_that_others_held_up_counts_a_little() -> None:
    times = MakingTimes()
    for _ in range(20):
        times.add(2, 1, 0.001)
    times.add(2, 1, 5.0)
    assert 0.001 < times.at(2, 1) < MOST_UNUSUAL * 0.001


def test_it_follows_what_drafts_take_now() -> None:
    times = MakingTimes()
    for seconds in [0.001] * 10 + [0.003] * 40:
        times.add(1, 2, seconds)
    assert times.at(1, 2) == pytest.approx(0.003, rel=0.01)
    assert times.at(1, 4) == pytest.approx(0.006, rel=0.01)
    assert times.at(3, 2) == times.at(1, 2)
