"""Who goes first: numbers of priority, and keys that share steps by tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from octavo.runtime.scheduler.fair_shares import QUANTUM
from octavo.runtime.scheduler.prefill_budget import PrefillBudget
from octavo.runtime.scheduler.request import Request, State
from tests.runtime.scheduler.test_scheduler import END, Run, alone, request


def keyed(key: str, i: int, n_prompt: int, most: int = 20, **more: Any) -> Request:
    """A request whose prompt no other one begins like."""
    return request([len(key), i // 250, i % 250, *range(1, n_prompt - 2)], most, key=key, **more)


class Keys(Run):
    """Keys that have a number of requests each, of which an ended one is followed by another."""

    def __init__(self, weights: dict[str, float], connections: dict[str, int], lengths: dict[str, int]) -> None:
        super().__init__(n_pages=400, n_batch=64, running=8)
        self.weights, self.lengths, self.always, self.count = weights, lengths, {*connections}, 0
        self.tokens: Counter[str] = Counter()
        for key, n in connections.items():
            for _ in range(n):
                self.ask(key)

    def ask(self, key: str) -> Request:
        self.count += 1
        one = keyed(key, self.count, self.lengths[key], weight=self.weights[key])
        self.scheduler.add(one)
        return one

    def turn(self) -> None:
        outputs = self.step()
        for one, n in self.plans[-1].parts:
            self.tokens[one.key] += n
        for output in outputs:
            if output.finish_reason is not None and output.request.key in self.always:
                self.ask(output.request.key)


@pytest.mark.parametrize(("weights", "connections", "lengths"), [
    ({"a": 1.0, "bb": 1.0}, {"a": 50, "bb": 8}, {"a": 100, "bb": 100}),
    ({"a": 1.0, "bb": 1.0}, {"a": 50, "bb": 8}, {"a": 90, "bb": 390}),
    ({"a": 3.0, "bb": 1.0}, {"a": 20, "bb": 20}, {"a": 200, "bb": 200}),
    ({"a": 1.0, "bb": 1.0, "ccc": 2.0}, {"a": 50, "bb": 8, "ccc": 9}, {"a": 300, "bb": 300, "ccc": 300}),
])
def test_tokens_are_shared_by_weight(
    weights: dict[str, float], connections: dict[str, int], lengths: dict[str, int]
) -> None:
    """Whatever the number of connections, and however long the prompts of each: chunks count."""
    run = Keys(weights, connections, lengths)
    for _ in range(1500):
        run.turn()
    total, sum_of_weights = sum(run.tokens.values()), sum(weights.values())
    for key, weight in weights.items():
        assert run.tokens[key] / total == pytest.approx(weight / sum_of_weights, abs=0.06), run.tokens


def test_a_key_that_asks_seldom_waits_for_nobody_else() -> None:
    """It begins in the next step, with all of its prompt that fits, though the other key has all places and waits."""
    run = Keys({"a": 1.0, "bb": 1.0}, {"a": 50}, {"a": 300, "bb": 60})
    for _ in range(200):
        run.turn()
    assert len(run.scheduler.running) == run.scheduler.max_running
    for _ in range(5):
        one = run.ask("bb")
        before, steps = run.scheduler.preemptions, len(run.plans)
        while not one.num_output_tokens:
            run.turn()
        assert len(run.plans) - steps <= 2, "its prompt and what is beside it are two steps at most"
        assert run.scheduler.preemptions - before <= 1
        while one.state is not State.FINISHED:
            run.turn()
        assert list(one.output_tokens) == alone(list(one.prompt), 20, 400)


def test_cancelled_requests_are_paid_for() -> None:
    """A key that leaves its requests before they end has had what was computed for them."""
    run = Keys({"a": 1.0, "bb": 1.0}, {"a": 20, "bb": 4}, {"a": 390, "bb": 100})
    for _ in range(1500):
        for one in [r for r in run.scheduler.running if r.key == "a" and len(r.sequence) > 200]:
            run.scheduler.cancel(one)
        run.turn()
    assert run.tokens["a"] / sum(run.tokens.values()) == pytest.approx(0.5, abs=0.06)


def test_a_key_alone_has_everything_and_owes_nobody() -> None:
    run = Keys({"a": 1.0, "bb": 1.0}, {"a": 20}, {"a": 100, "bb": 100})
    for _ in range(200):
        run.turn()
    assert len(run.scheduler.running) == run.scheduler.max_running
    run.always.add("bb")
    for _ in range(20):
        run.ask("bb")
    run.tokens.clear()
    for _ in range(600):
        run.turn()
    assert run.tokens["a"] / sum(run.tokens.values()) == pytest.approx(0.5, abs=0.08)


def test_steps_of_keys_are_short_for_those_that_come() -> None:
    budget = PrefillBudget(4096, target=0.2)
    for replies in (1, 1, 1):
        budget.observe(replies, 0, 0.01)
    for _ in range(50):
        budget.observe(0, 512, 0.512)
        budget.observe(1, 128, 0.138)
    assert budget.tokens(0) == 4096
    assert budget.tokens(0, 0, 0.25) < budget.tokens(0, 0, 1.0) < QUANTUM
    assert budget.tokens(0, 0, 0.25) >= budget.min_tokens


@pytest.mark.parametrize("key", ["", "a"])
def test_lower_numbers_go_first(key: str) -> None:
    """In the queue, in steps, and where there is no place: a running request of a higher number gives its own."""
    run = Run(n_pages=100, running=2)
    later = [request([9, i, *range(1, 80)], 20, priority=5, key=key) for i in range(4)]
    for one in later:
        run.scheduler.add(one)
    for _ in range(3):
        run.step()
    usual, first = (request([8, i, *range(1, 80)], 20, priority=i, key=key) for i in (0, -3))
    run.scheduler.add(usual)
    run.scheduler.add(first)
    run.step()
    assert run.scheduler.running == [first, usual]
    assert run.plans[-1].parts[0][0] is first
    run.finish()
    for one in (*later, usual, first):
        assert list(one.output_tokens) == alone(list(one.prompt), 20, 400)
    assert all(r.finish_reason in ("stop", "length") for r in later), "they go on once there is nobody before them"


def test_the_same_number_preempts_nobody() -> None:
    run = Run(n_pages=100, running=1)
    first, second = request([1, 2, 3], 30), request([4, 5, 6], 30)
    run.scheduler.add(first)
    run.step()
    run.scheduler.add(second)
    run.finish()
    assert run.scheduler.preemptions == 0
    assert list(first.output_tokens) == alone([1, 2, 3], 30, 400)


def test_time_is_up_in_the_queue_and_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("octavo.runtime.scheduler.scheduler.clock", lambda: now)
    run = Run(n_pages=100, running=1, n_ctx=4000)
    running = request([1, 2, 3], 3000, deadline=10.0)
    running.stop_ids = frozenset()
    waiting, free = request([4, 5, 6], 5, deadline=5.0), request([7, 8, 9], 5)
    waiting.siblings = [request([4, 5, 6], 5, deadline=5.0)]
    for one in (running, waiting, free):
        run.scheduler.add(one)
    for _ in range(4):
        assert all(output.finish_reason is None for output in run.step())
    now = 5.0
    assert [o.request for o in run.step() if o.finish_reason == "time"] == [waiting]
    assert [o.request.finish_reason for o in run.step() if o.finish_reason] == ["time"], "its sibling"
    now = 11.0
    ended = [output for output in run.step() if output.finish_reason == "time"]
    assert [(output.request, output.token) for output in ended] == [(running, None)]
    assert running.num_output_tokens == 6
    run.finish()
    assert free.finish_reason in ("stop", "length")
    assert END not in running.output_tokens or running.finish_reason == "time"
