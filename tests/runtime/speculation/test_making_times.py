"""What drafts are expected to take, by what some took."""

from __future__ import annotations

import pytest

from octavo.runtime.speculation.making_times import MOST_UNUSUAL, MakingTimes


@pytest.mark.parametrize(("captures", "unusual"), [(False, [10.0]), (True, [10.0, 0.4])])
def test_what_is_compiled_or_captured_first_does_not_count(captures: bool, unusual: list[float]) -> None:
    times = MakingTimes(captures=captures)
    for seconds in unusual:
        times.add(1, 1, 1, seconds)
    assert times.at(1, 1) == 0
    times.add(1, 1, 1, 0.001)
    for seconds in unusual:  # as many tokens were read as never before
        times.add(1, 20, 1, seconds)
    assert times.at(1, 1) == 0.001


def test_sizes_that_are_padded_alike_are_one() -> None:
    times = MakingTimes(captures=True)
    for read in (17, 20, 32):
        times.add(1, read, 1, 1 / read)
    assert times.at(1, 1) == 1 / 32


def test_what_others_held_up_first_does_not_last() -> None:
    times = MakingTimes()
    for seconds in (10.0, 0.4, 0.2, 0.001):
        times.add(1, 1, 1, seconds)
    assert times.at(1, 1) == 0.001


def test_one_that_others_held_up_counts_a_little() -> None:
    times = MakingTimes()
    for _ in range(20):
        times.add(2, 2, 1, 0.001)
    times.add(2, 2, 1, 5.0)
    assert 0.001 < times.at(2, 1) < MOST_UNUSUAL * 0.001


def test_it_follows_what_drafts_take_now() -> None:
    times = MakingTimes()
    for seconds in [0.001] * 11 + [0.003] * 40:
        times.add(1, 1, 2, seconds)
    assert times.at(1, 2) == pytest.approx(0.003, rel=0.01)
    assert times.at(1, 4) == pytest.approx(0.006, rel=0.01)
    assert times.at(3, 2) == times.at(1, 2)
