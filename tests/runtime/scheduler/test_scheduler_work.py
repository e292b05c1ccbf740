"""What the scheduler does for one request does not grow with how many others there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.scheduler.request import Request
from tests.runtime.scheduler.test_scheduler import Run, request
from tests.runtime.scheduler.work import calls


def admitted(n: int, length: int) -> float:
    """Calls for each of `n` requests, of prompts of this many tokens, that begin in one step."""
    run = Run(n_pages=4 * n, running=n)
    for i in range(n):
        run.scheduler.add(request([i + 1] * length))
    made = calls(run.scheduler.schedule)
    assert len(run.scheduler.running) == n
    return made / n


@pytest.mark.parametrize("length", [5, 2 * PAGE_SIZE + 5])
def test_beginning_does_not_grow_with_those_that_begin(length: int) -> None:
    assert admitted(256, length) <= 1.5 * admitted(16, length)


class Compared(Request):
    """Counts where a list looks for it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def cancelled(n: int) -> float:
    """Calls for each of `n` requests that are cancelled, the later half of the ones that wait."""
    run = Run()
    waiting = [Compared([i + 1], lambda logits, tokens: 0) for i in range(2 * n)]
    for one in waiting:
        run.scheduler.add(one)
    for one in waiting[n:]:
        run.scheduler.cancel(one)
    made = calls(run.scheduler.drop_cancelled)
    assert run.scheduler.waiting == waiting[:n]
    return made / n


def test_cancelling_does_not_grow_with_those_that_wait() -> None:
    assert cancelled(512) <= 1.5 * cancelled(32)


def held_back(pages: int, waiting: int = 8) -> int:
    """Calls of a step where requests wait for this many pages that another has computed halfway."""
    run = Run(n_pages=2 * pages, n_batch=PAGE_SIZE, n_ctx=2 * pages * PAGE_SIZE)
    common = [t % 251 for t in range(pages * PAGE_SIZE + 1)]
    run.scheduler.add(request(common))
    run.step()
    for i in range(waiting):
        run.scheduler.add(request([*common, i + 1]))
    while len(run.scheduler.running[0].sequence) < pages // 2 * PAGE_SIZE:
        run.step()
    made = calls(run.scheduler.schedule)
    assert (len(run.scheduler.waiting), len(run.scheduler.running)) == (waiting, 1)
    return made


def test_who_waits_for_pages_of_another_is_not_looked_at_again() -> None:
    assert held_back(64) <= 1.5 * held_back(4)


class Looked(Request):
    """Calls Python where something of it is looked at."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


def beside(n: int) -> int:
    """Calls of a step, and of looking for masks that it waits for, where `n` requests wait for room."""
    run = Run(running=2)
    for i in range(2):
        run.scheduler.add(request([i + 1], 20))
    run.step()
    for i in range(n):
        run.scheduler.add(Looked([i + 1], lambda logits, tokens: 0))
    core = SimpleNamespace(scheduler=run.scheduler)

    def step() -> None:
        EngineCore._wait_for_masks(cast(EngineCore, core))
        run.scheduler.schedule()

    made = calls(step)
    assert (len(run.scheduler.waiting), len(run.scheduler.running)) == (n, 2)
    return made


def test_a_step_does_not_look_at_all_who_wait() -> None:
    assert beside(512) <= 1.5 * beside(32)
