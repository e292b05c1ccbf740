"""How long drafts pay to be."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.runtime.speculation.draft_lengths import (
    FIRST_BACKOFF,
    FIRST_MEASURED,
    FIRST_TOKENS,
    LEAST_GAIN,
    MAX_BACKOFF,
    DraftLengths,
    StepCosts,
)
from octavo.runtime.speculation.draft_record import FIRST_RATE, DraftRecord


def lengths(costs: dict[int, float], replies: int = 1, base: float = 0.01) -> DraftLengths:
    """With steps of as many replies that take `costs` times as long with some tokens of drafts."""
    made = DraftLengths(7, lambda n: base)
    for tokens, factor in costs.items():
        made.costs.add(replies, tokens, factor)
    return made


def best(rate: float, costs: dict[int, float], making: float) -> int:
    """The length of one draft with the most tokens a second, tried one by one."""
    speeds = [sum(rate**i for i in range(n + 1)) / (np.interp(n, [0, *costs], [1, *costs.values()]) + making * n)
              for n in range(8)]
    speeds[0] *= 1 + LEAST_GAIN
    return int(np.argmax(speeds))


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("costs", [{7: 1.1}, {7: 2.4}, {3: 1.05, 7: 2.0}, {1: 1.3, 7: 1.4}, {7: 7.0}])
@pytest.mark.parametrize("making", [0.0, 0.1, 0.4])
def test_the_length_with_the_most_tokens_a_second(rate: float, costs: dict[int, float], making: float) -> None:
    chosen = lengths(costs).choose(1, [rate], [7], room=60, making=lambda n: 0.01 * making * n)
    assert chosen == [best(rate, costs, making)]


def test_more_tokens_for_whoever_takes_them() -> None:
    chosen = lengths({12: 1.5}, 4).choose(4, [0.95, 0.1, 0.7, 0.7], [7, 7, 7, 2], room=60)
    assert chosen[0] > chosen[2] >= chosen[3] == 2
    assert chosen[1] == 0
    assert sum(lengths({12: 1.0}, 4).choose(4, [0.9] * 4, [7] * 4, room=5)) == 5


def test_tokens_that_the_step_has_already_are_counted() -> None:
    made = lengths({3: 1.0, 7: 4.0}, 2)
    assert made.choose(2, [0.8], [3], room=60) == [3]
    assert made.choose(2, [0.8], [3], room=60, taken=[0.9, 0.8, 0.7]) == [0]


def test_the_first_drafts_are_short() -> None:
    assert lengths({}).choose(1, [FIRST_RATE], [7], room=60) == [FIRST_TOKENS]
    assert sum(lengths({}, 8).choose(8, [FIRST_RATE] * 8, [7] * 8, room=60)) == 2 * FIRST_TOKENS
    assert lengths({3: 1.0}).choose(1, [0.9], [7], room=60) == [6], "then up to twice as long"


def test_drafts_that_do_not_pay_are_tried_ever_less_often() -> None:
    made, tried = lengths({3: 3.0}), list[int]()
    for step in range(4 * MAX_BACKOFF):
        if made.rests(1):
            assert not made.pays(1, [0])
        elif made.pays(1, [0]):
            tried.append(step)
    assert len(tried) < 10
    assert tried[0] < 2 * FIRST_BACKOFF
    assert tried[-1] - tried[-2] == MAX_BACKOFF
    assert made.pays(1, [3])
    assert not made.rests(1)
    assert not lengths({}).rests(3), "another number of replies"


def test_a_try_that_brought_no_draft_yet_goes_on_in_the_next_step() -> None:
    made = lengths({4: 9.0})
    while not any(made.plan(1, [0.5], [4], room=8)):
        pass
    assert made.rests(1) or not any(made.plan(1, [0.5], [4], room=8))
    made.try_again(1)
    assert not made.rests(1)
    assert any(made.plan(1, [0.5], [4], room=8))


def test_costs_of_steps() -> None:
    costs = StepCosts()
    assert costs.factor(5, 3) == 1.0
    costs.add(5, 4, 1.4)
    assert costs.factor(8, 2) == pytest.approx(1.2)
    assert costs.factor(6, 8) == pytest.approx(1.8)
    assert costs.factor(9, 8) == 1.0
    assert costs.known(7) == 4
    for _ in range(99):
        costs.add(5, 4, 0.9)
    assert costs.factor(5, 4) == 1.0, "more tokens take no less time"


def test_a_step_that_others_held_up() -> None:
    """The first measurement may be one of these, and later ones count for little."""
    costs = StepCosts()
    for factor in (9.0, *[1.2] * FIRST_MEASURED):
        costs.add(1, 4, factor)
    assert costs.factor(1, 4) == pytest.approx(1.2)
    costs.add(1, 4, 50.0)
    assert costs.factor(1, 4) < 1.5


def test_the_first_steps_of_a_size_tell_nothing() -> None:
    made = lengths({})
    for _ in range(3):
        made.observe(1, 3, 5.0, unusual=3)
    assert made.costs.known(1) == 0
    made.observe(1, 3, 0.012, unusual=3)
    assert made.costs.factor(1, 3) == pytest.approx(1.2)


def test_rates() -> None:
    record, rng = DraftRecord(), np.random.default_rng(0)
    assert record.rate("grammar") == 1.0
    for _ in range(400):
        wrong = np.flatnonzero(rng.random(5) > 0.8)
        record.add("lookup", 5, int(wrong[0]) if len(wrong) else 5)
    assert record.rate("lookup") == pytest.approx(0.8, abs=0.15)
    assert record.rate("draft") == FIRST_RATE
    assert record.drafted == 2000
    assert record.accepted == pytest.approx(2000 * 0.8 * (1 - 0.8**5) / 0.2 / 5, rel=0.1)
