"""Sizes of steps are made beside requests, and nobody waits for a size that others need."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from octavo.backends.reference.backend import ReferenceBinder
from octavo.graph.protocol import Call
from octavo.models import ModelSpec
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.engine.captured_sizes import CapturedSizes, StepSize, chunk_sizes, size_of
from octavo.runtime.engine.core import EngineCore
from tests.runtime.engine.test_core import PROMPTS, request, run
from tests.runtime.sampling.test_device_sampling import Eager

SIZES = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=6, n_batch=64)


class Compiled(Eager):
    """A backend whose kernels are ready when a test says so; who waits for others before makes it fail."""

    def __init__(self) -> None:
        super().__init__()
        self.open = True
        self.fails = False
        self.plans = 0

    def begin_plan(self, graph: Any) -> Binder:
        if self.fails:
            raise MemoryError("no more")
        self.plans += 1
        return Binder(self)


class Binder(ReferenceBinder):
    def __init__(self, backend: Compiled) -> None:
        super().__init__()
        self._backend = backend

    def finish(self) -> list[Call]:
        return [Steps(self._backend, super().finish())]


class Steps:
    def __init__(self, backend: Compiled, calls: Sequence[Call]) -> None:
        self.backend, self.calls, self.ready = backend, calls, backend.open

    def is_ready(self) -> bool:
        self.ready = self.ready or self.backend.open
        return self.ready

    def make_ready(self) -> None:
        assert self.is_ready(), "a step waits for kernels"

    def __call__(self) -> None:
        self.make_ready()
        for call in self.calls:
            call()


@pytest.fixture
def core(architecture: ModelSpec) -> EngineCore:
    return EngineCore(Engine(architecture, [Compiled()], SIZES))


def backend(core: EngineCore) -> Compiled:
    (found,) = core.engine.backends
    assert isinstance(found, Compiled)
    return found


def go_on(core: EngineCore) -> int:
    """Make what can be made: how many times something was."""
    times = 0
    while core.go_on_warming() == 0.0:
        times += 1
    return times


def alone(architecture: ModelSpec) -> list[list[int]]:
    return run(EngineCore(Engine(architecture, [Eager()], SIZES)), *map(request, PROMPTS))


def test_requests_are_answered_while_kernels_are_compiled(core: EngineCore, architecture: ModelSpec) -> None:
    core.begin_warm_up()
    plans = backend(core).plans
    backend(core).open = False
    assert core.go_on_warming() == 0.0  # bound, but not there
    assert run(core, *map(request, PROMPTS)) == alone(architecture)
    go_on(core)
    assert core.warming is not None
    backend(core).open = True
    assert go_on(core) > plans
    assert core.warming is None
    assert core.engine.captured is None


def test_all_sizes_are_made_once(core: EngineCore, architecture: ModelSpec) -> None:
    core.begin_warm_up()
    go_on(core)
    made = set(core.engine.load()._plans)
    other = EngineCore(Engine(architecture, [Compiled()], SIZES))
    other.warm_up()
    assert set(other.engine.load()._plans) == made
    first, others = core.engine.sizes()
    assert len(made) == sum(1 + (size.tokens == 0) for size in (*first, *others)) + 1  # and one token's logits
    assert core.scheduler.budget.measured._seconds.keys() == {0, 8}
    before = backend(core).plans
    run(core, *map(request, PROMPTS[:3]))
    assert backend(core).plans == before


def test_what_steps_want_is_made_beside_them(core: EngineCore) -> None:
    core.begin_warm_up()
    assert core.warming is not None
    core.warming._took = -1.0  # there is time
    asked = [request(prompt, 40) for prompt in PROMPTS[:3]]
    for one in asked:
        core.add(one)
    while not core.scheduler.idle:
        core.step()
        core.go_on_warming()
        core.warming._took = -1.0
    sizes = core.warming.captured._sizes
    assert StepSize(3, 0) in sizes
    assert StepSize(2, 0) not in sizes
    assert StepSize(4, 0) not in sizes


def test_a_size_that_can_not_be_made(core: EngineCore, caplog: pytest.LogCaptureFixture) -> None:
    core.begin_warm_up()
    backend(core).fails = True
    with caplog.at_level(logging.WARNING, "octavo"):
        assert core.go_on_warming() == 0.0
    assert "no more" in caplog.text
    backend(core).fails = False
    go_on(core)
    assert core.warming is None


def test_the_first_sizes_do_for_any_step(core: EngineCore) -> None:
    first, others = core.engine.sizes()
    assert first == [StepSize(1, 0), StepSize(0, 64), StepSize(8, 64), StepSize(6, 0)]
    assert not {*first} & {*others}
    made = CapturedSizes()
    for size in first:
        made.add(size)
    for replies in range(7):
        for tokens in (0, *range(2, 65 - replies)):
            if replies or tokens:
                found = size_of(replies, int(tokens > 0), tokens, chunk_sizes(64), made)
                assert StepSize(found[0], found[2]) in first or tokens == 63, (replies, tokens)


@pytest.mark.parametrize(("replies", "tokens", "wanted"), [
    (1, 0, (1, 0, 0)), (2, 0, (6, 0, 0)), (0, 17, (0, 8, 32)), (0, 20, (0, 8, 32)), (0, 33, (8, 8, 64)),
    (2, 31, (8, 8, 64)),  # with 32 one would be missing, which is a reply
    (9, 33, (32, 8, 48)),  # none is large enough, so that this one is made now
])
def test_a_step_gets_the_smallest_size_that_is_made(replies: int, tokens: int, wanted: Any) -> None:
    made = CapturedSizes()
    for size in ((1, 0), (6, 0), (0, 32), (8, 64), (8, 32)):
        made.add(StepSize(*size))
    assert size_of(replies, int(tokens > 0), tokens, chunk_sizes(64), made) == wanted
    assert (StepSize(wanted[0], wanted[2]) in made.missed) == (wanted == (32, 8, 48))
