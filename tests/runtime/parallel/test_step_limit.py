"""How long ranks are waited for."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from octavo.runtime.parallel import step_limit
from octavo.runtime.parallel.step_limit import StepLimit
from tests.limits import HANG_S

Clock = list[float]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    now = [100.0]
    monkeypatch.setattr(step_limit, "monotonic", lambda: now[0])
    return now


def looks(limit: StepLimit, clock: Clock, *seconds: float) -> list[bool]:
    """What it says after each of these times more."""
    found = []
    for more in seconds:
        clock[0] += more
        found.append(limit.exceeded())
    return found


def test_only_a_call_that_goes_on_is_too_long(clock: Clock) -> None:
    limit = StepLimit(2.5)
    for _ in range(5):
        with limit.counted(), limit.counted():
            assert not any(looks(limit, clock, 1.0, 1.0))
    assert not any(looks(limit, clock, 1.0, 1.0, 1.0, 1.0))
    with limit.counted():
        assert looks(limit, clock, 1.0, 1.0, 1.0, 1.0) == [False, False, False, True]


def test_a_process_that_was_stopped_itself_finds_the_others_well(clock: Clock) -> None:
    limit = StepLimit(10.0)
    with limit.counted():
        assert looks(limit, clock, 1.0, 3600.0, 1.0) == [False, False, False]


def test_no_limit(clock: Clock) -> None:
    limit = StepLimit(0)
    with limit.counted():
        assert not any(looks(limit, clock, *[1.0] * 100))


def test_the_oldest_call_of_any_thread_counts(clock: Clock) -> None:
    limit, begun, over = StepLimit(2.5), Event(), Event()

    def call() -> None:
        with limit.counted():
            begun.set()
            assert over.wait(HANG_S)

    thread = Thread(target=call)
    thread.start()
    assert begun.wait(HANG_S)
    found = []
    for _ in range(4):
        with limit.counted():
            found += looks(limit, clock, 1.0)
    over.set()
    thread.join(HANG_S)
    assert found == [False, False, False, True]
    assert not any(looks(limit, clock, 1.0))
