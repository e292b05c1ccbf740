"""Steps that begin before the tokens of the step before them are known to the host, which a device has chosen itself.

So the device works while the host reads, tells and plans. Steps go ahead, with parts of prompts or without, as long as
all tokens that they choose are the likeliest, or are drawn among a few candidates, and no request has to give way to
others. A reply that turns out to have ended was computed once too often; its row is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import cast

from octavo.graph.plan import Begun, Fed
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.sampling.draw import GREEDY, DrawsThere
from octavo.runtime.sampling.sampler import ChainSampler
from octavo.runtime.sampling.select import Choices, Chooser
from octavo.runtime.sampling.top_k import BEST, DRAWN
from octavo.runtime.scheduler.request import Request, State
from octavo.runtime.scheduler.scheduler import Scheduler
from octavo.runtime.scheduler.step_plan import StepPlan

log = logging.getLogger("octavo")


@dataclass(frozen=True)
class UnderWay:
    """A step that has begun.

    output     BEST or DRAWN: what chooses its tokens
    count      how many steps the engine had begun then
    sequences  of its requests
    """

    plan: StepPlan
    begun: Begun
    output: int
    count: int
    sequences: Seq[Sequence]

    @property
    def is_wanted(self) -> bool:
        """Whether any of its requests is still in the steps."""
        return any(r.state is State.RUNNING for r, _ in self.plan.parts)

    def places(self) -> list[int]:
        """The numbers of its parts whose requests are still in the steps, as they were when it began."""
        parts = enumerate(zip(self.plan.parts, self.sequences, strict=True))
        return [i for i, ((r, _), s) in parts if r.state is State.RUNNING and r.sequence is s]


class Ahead:
    """Begins steps, one of them before the one before it is read."""

    def __init__(self, scheduler: Scheduler, chooser: Chooser) -> None:
        self.scheduler, self.chooser, self.engine = scheduler, chooser, chooser.engine

    def begin(self, plan: StepPlan) -> UnderWay | None:
        """Begin a step, if it is one that others may follow before it is read; None where that fails, too."""
        return self._begun(plan) if self.engine.runs_ahead and self._may(plan) else None

    def begin_after(self, last: UnderWay, *, prompts: bool = True) -> UnderWay | None:
        """Begin the step after one that is under way; None where it has to wait for what that one chooses."""
        if self.engine.load().begun != last.count:  # what it left on the device may be overwritten
            return None
        plan = self.scheduler.plan_ahead(prompts=prompts)
        return self._begun(plan, last) if plan is not None and self._may(plan) else None

    def _may(self, plan: StepPlan) -> bool:
        """Whether all tokens of a step are chosen where the logits are; a step that chooses none has to be filled."""
        new = [r for r, _ in plan.choosing if not r.coming]  # the others are in a step that went ahead
        return all(map(self._goes_ahead, new)) and bool(plan.choosing or self.engine.fills)

    def _goes_ahead(self, request: Request) -> bool:
        """Whether a request's token is chosen where the logits are, and nothing else is asked of it."""
        if request.siblings:
            return False
        drawn = self.engine.draws and request.plain and cast(ChainSampler, request.sampler).among_few
        return drawn or request.likeliest

    def _begun(self, plan: StepPlan, last: UnderWay | None = None) -> UnderWay | None:
        try:
            begun = self._under_way(plan, last)
        except Exception as error:
            log.warning("a step did not begin ahead of time: %s", error)
            return None
        self.scheduler.begun(plan)
        return begun

    def _under_way(self, plan: StepPlan, last: UnderWay | None) -> UnderWay:
        sequences, feeds = [r.sequence for r, _ in plan.parts], list[Feed]()
        for (request, n), sequence in zip(plan.parts, sequences, strict=True):
            start = len(sequence.tokens) + request.computing
            tokens = request.tokens[start : start + n] or [0]  # or the one that is coming
            feeds.append(Feed(sequence, tokens, 1, request.computing))
        step = self.engine.filled(feeds)
        output, draws = self._drawn(plan, len(step))
        fed = None if last is None else _fed(plan, last)
        begun = self.engine.begin(step, (output,), fed, draws, check=False)
        return UnderWay(plan, begun, output, self.engine.load().begun, sequences)

    def _drawn(self, plan: StepPlan, rows: int) -> tuple[int, DrawsThere | None]:
        """The output that chooses the tokens of a step of so many rows, and what it needs to draw them.

        Steps with prompts have the same one, whatever they choose, so that each size of them is captured once.
        """
        draws, positions = [GREEDY] * rows, [0] * rows
        for request, i in plan.choosing:
            draws[i] = cast(ChainSampler, request.sampler).draw
            positions[i] = len(request.tokens) + request.coming
        if not (plan.chunk and self.engine.draws) and all(d.k == 1 for d in draws):
            return BEST, None
        return DRAWN, DrawsThere(draws, positions, self.chooser.n_known)

    def drop(self, under_way: UnderWay) -> None:
        """Take no notice of what a step chooses."""
        self.scheduler.settle(_only(under_way.plan, under_way.places()))

    def choices(self, under_way: UnderWay) -> tuple[StepPlan, Choices | None]:
        """What a step chose for the requests that still run, and a plan of these; no choices where it is not enough."""
        places = under_way.places()
        plan, left = under_way.plan, set(places)
        rows = [row for row in plan.choosing if row[1] in left]
        done = plan if len(places) == len(plan.parts) else _only(plan, places)
        self.scheduler.settle(done)
        return done, self.chooser.chosen_there(under_way.begun, under_way.output, rows)


def _only(plan: StepPlan, places: Seq[int]) -> StepPlan:
    """A plan of some parts of another one."""
    at = {place: i for i, place in enumerate(places)}
    choosing = tuple((r, at[i]) for r, i in plan.choosing if i in at)
    return replace(plan, parts=tuple(plan.parts[i] for i in places), choosing=choosing)


def _fed(plan: StepPlan, last: UnderWay) -> Fed | None:
    """The tokens of a step that the one before it chooses, where they are: they come first."""
    rows = dict(last.plan.choosing)
    places = [rows[r] for r, _ in plan.parts if r.coming]
    found = last.begun.values[0][:, 1]
    if places == list(range(len(places))):
        return (found[: len(places)], None) if places else None
    return found, places
