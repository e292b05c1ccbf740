"""Warm-up: sizes of steps whose kernels are compiled and captured before they are needed.

A size is bound first: from then on its kernels are compiled on all cores, beside everything else. It is captured when
they are there. The sizes that any step can be padded to are captured before the first request; the others when there
is nothing else to do, or when steps miss them, in a small part of the time. So no request waits for a size that only
another one needs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from octavo.garbage import no_collection
from octavo.graph.plan import Plan
from octavo.jit.clock import clock
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.captured_sizes import CapturedSizes, StepSize
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.start_record import StartRecord
from octavo.runtime.sampling.draw import GREEDY, DeviceDraws
from octavo.runtime.sampling.top_k import BEST, DRAWN

log = logging.getLogger("octavo")

RUNS = 2
"""Runs of each size, at most: call by call, and captured. As it will be then it is timed, unless its time is known or
not asked for."""
SHARE = 10
"""Steps run for this many times what the last capture took before the next one beside them."""

OnCaptured = Callable[[StepSize, float], None]
"""Is given each size that is captured, and the seconds of a step."""


@dataclass(slots=True)
class BoundSize:
    """A size whose kernels are being compiled, and its plans."""

    size: StepSize
    plans: list[Plan]
    runs: int = 0


def _is_ready(bound: BoundSize) -> bool:
    return all(plan.is_ready() for plan in bound.plans)


class WarmUp:
    """Captures the sizes of an engine's steps; the caller has the engine's lock.

    drawn   the output with which steps sample tokens that are not the argmax
    record  what an earlier start found out; sizes that its steps had come before others
    """

    def __init__(
        self, engine: Engine, n_known: int, drawn: int, on_captured: OnCaptured, record: StartRecord | None = None
    ) -> None:
        self._engine, self._n_known, self._drawn, self._on_captured = engine, n_known, drawn, on_captured
        self._record = StartRecord() if record is None else record
        first, others = engine.sizes()
        others.sort(key=lambda size: -self._record.steps[size])
        self._first, self._unbound, self._bound = first, deque([*first, *others]), list[BoundSize]()
        self._again = deque[StepSize]()
        self._missed: dict[StepSize, None] = {}
        self._start, self._last, self._took = clock(), 0.0, 0.0
        self.count = len(self._unbound)
        self.captured = engine.captured = CapturedSizes()

    @property
    def left(self) -> bool:
        """Whether any size is left to capture."""
        return bool(self._unbound or self._bound or self._again)

    @no_collection()
    def begin(self) -> None:
        """Capture the sizes that all steps can be padded to. Others are bound while their kernels are compiled."""
        self._unbound = deque(size for size in self._unbound if size not in self._first)
        self._bound += [self._bind(size) for size in self._first]
        while first := [b for b in self._bound if b.size in self._first]:
            ready = next(filter(_is_ready, first), None)
            if ready is not None or not self._unbound:
                self._capture(ready or first[0])
            else:
                self._next([], self._unbound)
        log.info("%d of %d step sizes captured in %.2f s", len(self._first), self.count, clock() - self._start)

    @no_collection()
    def finish(self) -> None:
        """Capture all of them."""
        while self.left:
            if not self.next():
                self._capture(self._bound[0])

    def next(self) -> bool:
        """Bind a size, or capture one whose kernels are there. False where it would have to wait for kernels."""
        begun = clock()
        found = self._next(self._bound, self._unbound, again=True)
        self._last = clock()
        self._took = self._last - begun
        return found

    def beside_steps(self) -> None:
        """Do so for a size that steps missed lately, unless that would slow them down much."""
        self._missed |= self.captured.missed
        self.captured.missed.clear()
        if self._missed and clock() - self._last > SHARE * self._took:
            begun = clock()
            bound = [b for b in self._bound if b.size in self._missed]
            self._next(bound, [size for size in self._unbound if size in self._missed])
            self._last = clock()
            self._took = self._last - begun

    def _next(self, bound: Sequence[BoundSize], unbound: Sequence[StepSize], *, again: bool = False) -> bool:
        """Capture one of these, bind one, or time one again; False where nothing can be done yet."""
        ready = next(filter(_is_ready, bound), None)
        size = ready.size if ready is not None else unbound[0] if unbound else None
        try:
            if ready is not None:
                self._advance(ready)
            elif size is not None:
                self._unbound.remove(size)
                self._bound.append(self._bind(size))
            elif again and self._again and not self._bound:
                self._time(self._again.popleft())
            else:
                return False
        except Exception as error:
            log.warning("steps of %s could not be captured in advance: %s", size, error)
        return True

    def _steps(self, size: StepSize) -> Iterator[tuple[list[Feed], int, DeviceDraws | None]]:
        """A size's steps, with adapters where there may be some, and the output that each is asked for: with prompts
        the same one, whatever it samples. Those without adapters come last."""
        for adapted in (True, False) if self._engine.config.max_loras else (False,):
            feeds = self._engine.dummy_step(size, adapted=adapted)
            draws = DeviceDraws([GREEDY] * len(feeds), [0] * len(feeds), self._n_known)
            if not size.tokens:
                yield feeds, BEST, None
            yield feeds, self._drawn, draws if self._drawn == DRAWN else None

    def _bind(self, size: StepSize) -> BoundSize:
        plans = [self._engine.plan(feeds, (output,), draws) for feeds, output, draws in self._steps(size)]
        return BoundSize(size, plans)

    def _capture(self, bound: BoundSize) -> None:
        """Run a size's steps until they are captured."""
        while bound in self._bound:
            self._advance(bound)

    def _advance(self, bound: BoundSize) -> None:
        """Run a size's steps once more: few at a time, so that no request waits for long."""
        size, known = bound.size, self._record.seconds.get(bound.size)
        if bound.runs == RUNS:
            self._time(size)
        else:
            self._run(size)
        bound.runs += 1
        if bound.runs < RUNS and all(plan.is_captured() for plan in bound.plans):
            bound.runs = RUNS
        if bound.runs < RUNS or (bound.runs == RUNS and size.tokens and known is None):
            return
        self._bound.remove(bound)
        self._missed.pop(size, None)
        self.captured.add(size)
        if bound.runs == RUNS:
            self._on_captured(size, known or 0.0)
        elif not all(map(_is_ready, self._bound)):
            self._again.append(size)  # a step takes longer while kernels are compiled
        if not self._unbound and not self._bound:
            self._engine.captured = None
            log.info("%d step sizes captured in %.2f s", self.count, clock() - self._start)

    def _time(self, size: StepSize) -> None:
        self._record.seconds[size] = seconds = self._run(size)
        self._on_captured(size, seconds)

    def _run(self, size: StepSize) -> float:
        """Compute steps of a size: the seconds of the last one."""
        for feeds, output, draws in self._steps(size):
            start = clock()
            self._engine.launch(feeds, (output,), more=draws, check=False).read()
        return clock() - start
