"""Sizes of steps that are made before they are wanted, where each one's kernels are compiled and captured.

A size is bound first: from then on its kernels are compiled on all cores, beside everything else. It is made when they
are there. The sizes that any step can be filled up to are made before the first request; the others when there is
nothing else to do, or when steps want them, in a small part of the time. So nobody waits for a size that another
request needs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.graph.plan import Plan
from octavo.jit.clock import clock
from octavo.runtime.engine.captured_sizes import Made, Size
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.draw import GREEDY, DrawsThere
from octavo.runtime.sampling.top_k import BEST, CANDIDATES, DRAWN

log = logging.getLogger("octavo")

RUNS = 3
"""Runs of each size: call by call, captured, and as it will be, which is timed."""
SHARE = 10
"""Times that steps take before something is made beside them, of what it took the last time."""

Timed = Callable[[int, int, float], None]
"""Is told of each size that is made: replies, tokens of prompts, and seconds of a step."""


@dataclass(slots=True)
class Bound:
    """A size whose kernels are being made, and its plans."""

    size: Size
    plans: list[Plan]


def _is_ready(bound: Bound) -> bool:
    return all(plan.is_ready() for plan in bound.plans)


class WarmUp:
    """Makes the sizes of an engine's steps. What it does is for who has the engine's lock.

    drawn   the output that steps choose tokens with which are not the likeliest ones
    timed   is told what was made
    """

    def __init__(self, engine: Engine, n_known: int, drawn: int, timed: Timed) -> None:
        self._engine, self._n_known, self._drawn, self._timed = engine, n_known, drawn, timed
        first, others = engine.sizes()
        self._first, self._unbound, self._bound = first, deque([*first, *others]), list[Bound]()
        self._again = deque[Size]()
        self._wanted: dict[Size, None] = {}
        self._start, self._last, self._took = clock(), 0.0, 0.0
        self.count = len(self._unbound)
        self.made = engine.made = Made()

    @property
    def left(self) -> bool:
        """Whether there is something to make."""
        return bool(self._unbound or self._bound or self._again)

    def begin(self) -> None:
        """Make the sizes that all steps can be filled up to. Others are bound while kernels of these are compiled."""
        self._unbound = deque(size for size in self._unbound if size not in self._first)
        self._bound += [self._bind(size) for size in self._first]
        while wanted := [b for b in self._bound if b.size in self._first]:
            ready = next(filter(_is_ready, wanted), None)
            if ready is not None or not self._unbound:
                self._make(ready or wanted[0])
            else:
                self._next([], self._unbound)
        log.info("%d of %d sizes of steps are ready after %.2f s", len(self._first), self.count, clock() - self._start)

    def finish(self) -> None:
        """Make all of them."""
        while self.left:
            if not self.next():
                self._make(self._bound[0])

    def next(self) -> bool:
        """Bind a size, or make one whose kernels are there. False where it would have to wait for kernels."""
        begun = clock()
        found = self._next(self._bound, self._unbound, again=True)
        self._last = clock()
        self._took = self._last - begun
        return found

    def beside_steps(self) -> None:
        """Do so for a size that steps wanted lately, unless that would slow them down by much."""
        self._wanted |= self.made.missed
        self.made.missed.clear()
        if self._wanted and clock() - self._last > SHARE * self._took:
            begun = clock()
            bound = [b for b in self._bound if b.size in self._wanted]
            self._next(bound, [size for size in self._unbound if size in self._wanted])
            self._last = clock()
            self._took = self._last - begun

    def _next(self, bound: Sequence[Bound], unbound: Sequence[Size], *, again: bool = False) -> bool:
        """Make one of these, or bind one, or take a time again; False where there is none that can be."""
        ready = next(filter(_is_ready, bound), None)
        size = ready.size if ready is not None else unbound[0] if unbound else None
        try:
            if ready is not None:
                self._make(ready)
            elif size is not None:
                self._unbound.remove(size)
                self._bound.append(self._bind(size))
            elif again and self._again and not self._bound:
                self._time(self._again.popleft())
            else:
                return False
        except Exception as error:
            log.warning("steps of %s are not made ready before they are wanted: %s", size, error)
        return True

    def _steps(self, size: Size) -> list[tuple[int, DrawsThere | None]]:
        """The outputs that a step of a size is asked for: with prompts the same one, whatever it chooses."""
        rows = len(self._engine.of_size(size))
        draws = DrawsThere([GREEDY] * rows, [0] * rows, self._n_known)
        drawn = (self._drawn, draws if self._drawn == DRAWN else None)
        return [drawn] if size.tokens else [(BEST, None), drawn]

    def _bind(self, size: Size) -> Bound:
        feeds = self._engine.of_size(size)
        return Bound(size, [self._engine.plan(feeds, (output,), draws) for output, draws in self._steps(size)])

    def _make(self, bound: Bound) -> None:
        """Run a size's steps until they are captured."""
        self._bound.remove(bound)
        self._wanted.pop(bound.size, None)
        beside = not all(map(_is_ready, self._bound))
        for _ in range(RUNS - 1):
            self._run(bound.size)
        self._time(bound.size)
        self.made.add(bound.size)
        if beside and bound.size.tokens:
            self._again.append(bound.size)  # a step takes longer while kernels are compiled
        if not self._unbound and not self._bound:
            self._engine.made = None
            log.info("%d sizes of steps are ready after %.2f s", self.count, clock() - self._start)

    def _time(self, size: Size) -> None:
        self._timed(size.replies, size.tokens, self._run(size))

    def _run(self, size: Size) -> float:
        """Compute steps of a size: the seconds of the last one."""
        feeds = self._engine.of_size(size)
        for output, draws in self._steps(size):
            begun = clock()
            self._engine.begin(feeds, (output,), more=draws, check=False).read()
        return clock() - begun


def drawn_output(engine: Engine, *, ahead: bool) -> int:
    """What steps choose tokens with that are not the likeliest: they are drawn there if steps go ahead."""
    return DRAWN if engine.draws and ahead else CANDIDATES
