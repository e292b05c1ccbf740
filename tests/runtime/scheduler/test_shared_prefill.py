"""Whom a request waits for: the same as by looking at each one under way, and until their texts part."""

from __future__ import annotations

import random

import pytest

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.scheduler.request import Request, State
from octavo.runtime.scheduler.shared_prefill import PendingPrefills, is_prefilling
from tests.runtime.scheduler.test_scheduler import request


def computes(other: Request, wanted: Request, found: int, *, by_checkpoints: bool) -> bool:
    """Whether another request computes what comes after `found` tokens, looked up token by token."""
    page = (found // PAGE_SIZE + 1) * PAGE_SIZE
    end = next((at for at in other.state_checkpoints if at > found), 0) if by_checkpoints else page
    left = len(other.sequence) < end < min(len(other.tokens), len(wanted.tokens))
    same = other.cache_salt == wanted.cache_salt and other.tokens[:end] == wanted.tokens[:end]
    return left and not other.paused and same


def drawn(rng: random.Random) -> Request:
    """A request of few different pages, computed in part."""
    pages = [t for _ in range(rng.randint(0, 4)) for t in [rng.randint(1, 2)] * PAGE_SIZE]
    one = request([*pages, *[3] * rng.randint(1, 70)], cache_salt=rng.choice("ab"))
    one.state, one.paused = State.RUNNING, rng.random() < 0.1
    one.sequence.tokens += one.tokens[: rng.randint(0, len(one.tokens) - 1)]
    one.state_checkpoints = tuple(sorted(rng.sample(range(PAGE_SIZE, 5 * PAGE_SIZE, PAGE_SIZE), 2)))
    return one


@pytest.mark.parametrize("by_checkpoints", [False, True])
def test_one_is_found_where_any_computes_the_same(by_checkpoints: bool) -> None:
    rng, waits = random.Random(1), 0
    for _ in range(300):
        running = [drawn(rng) for _ in range(rng.randint(0, 8))]
        coming = PendingPrefills(running[:4], by_checkpoints=by_checkpoints)
        wanted = [(drawn(rng), rng.randint(0, 200)) for _ in range(4)]
        for i, (one, found) in enumerate(wanted):
            if i == 2:
                for other in running[4:]:
                    coming.add(other)
            there = [r for r in running[: 4 if i < 2 else 8] if computes(r, one, found, by_checkpoints=by_checkpoints)]
            awaits = coming.find(one, found)
            assert (awaits is not None) == bool(there)
            if awaits is None:
                continue
            waits += 1
            other, until = awaits
            assert other in there
            assert found < until < min(len(other.tokens), len(one.tokens))
            assert other.tokens[:until] == one.tokens[:until]
            after = until + PAGE_SIZE
            assert (
                by_checkpoints
                or after >= min(len(other.tokens), len(one.tokens))
                or (other.tokens[:after] != one.tokens[:after])
            )
    assert waits > 50


def test_who_is_paused_or_ended_is_waited_for_no_longer() -> None:
    one = drawn(random.Random(2))
    one.paused = False
    end = len(one.sequence) + 1
    assert is_prefilling(one, end)
    assert not is_prefilling(one, end - 1)
    one.paused = True
    assert not is_prefilling(one, end)
    one.paused, one.state = False, State.FINISHED
    assert not is_prefilling(one, end)
