"""Steps that begin before the tokens of the step before them are known to the host, which a device has chosen itself.

So the device works while the host reads, tells and plans. Replies whose tokens are the likeliest, or are drawn among a
few candidates, go ahead while no request waits that could begin. A reply that turns out to have ended was computed once
too often; its row is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import cast

from octavo.graph.plan import Begun
from octavo.runtime.batch import Feed
from octavo.runtime.candidates import BEST, DRAWN
from octavo.runtime.choosing import Choices, Chooser
from octavo.runtime.draws import GREEDY, DrawsThere
from octavo.runtime.request import Request, State
from octavo.runtime.sampling import ChainSampler
from octavo.runtime.scheduler import Scheduler, StepPlan

log = logging.getLogger("octavo")


@dataclass(frozen=True)
class UnderWay:
    """A step of replies that has begun.

    output  BEST or DRAWN: what chooses its tokens
    count   how many steps the engine had begun then
    """

    plan: StepPlan
    begun: Begun
    output: int
    count: int


class Ahead:
    """Begins steps of replies, one of them before the one before it is read."""

    def __init__(self, scheduler: Scheduler, chooser: Chooser) -> None:
        self.scheduler, self.chooser, self.engine = scheduler, chooser, chooser.engine

    def begin(self, plan: StepPlan) -> UnderWay | None:
        """Begin a step, if it is one that others may follow before it is read."""
        if not self.engine.runs_ahead or not all(n == 1 and self._goes_ahead(r) for r, n in plan.parts):
            return None
        return self._begun(plan, [Feed(r.sequence, r.tokens[-1:]) for r, _ in plan.parts])

    def begin_after(self, last: UnderWay) -> UnderWay | None:
        """Begin the step after one that is under way; None where something else may come in between."""
        if self.engine.load().begun != last.count:  # what it left on the device may be overwritten
            return None
        plan = self.scheduler.plan_ahead(last.plan)
        if plan is None:
            return None
        places = {request: i for i, (request, _) in enumerate(last.plan.parts)}
        feeds = [Feed(r.sequence, [0], ahead=1) for r, _ in plan.parts]
        try:
            return self._begun(plan, feeds, last.begun, [places[r] for r, _ in plan.parts])
        except Exception as error:
            log.warning("a step did not begin ahead of time: %s", error)
            return None

    def _begun(
        self, plan: StepPlan, feeds: Seq[Feed], last: Begun | None = None, places: Seq[int] = ()
    ) -> UnderWay:  # fmt: skip
        step, tokens = self.engine.filled(feeds), None
        output, draws = self._drawn(plan, len(step), feeds[0].ahead)
        if last is not None:
            found = last.values[0][:, 1]
            rows = [*places, *[0] * (len(step) - len(places))]
            tokens = found, None if rows == list(range(len(found))) else rows
        begun = self.engine.begin(step, (output,), tokens, draws, check=False)
        return UnderWay(plan, begun, output, self.engine.load().begun)

    def _drawn(self, plan: StepPlan, rows: int, ahead: int) -> tuple[int, DrawsThere | None]:
        """The output that chooses the tokens of a step of so many rows, and what it needs to draw them.

        `ahead` are tokens that a step under way appends before.
        """
        replies = [r for r, _ in plan.parts]
        draws = [cast(ChainSampler, r.sampler).draw for r in replies]
        if all(d.k == 1 for d in draws):
            return BEST, None
        missing = rows - len(draws)
        positions = [len(r.tokens) + ahead for r in replies] + [0] * missing
        return DRAWN, DrawsThere(draws + [GREEDY] * missing, positions, self.chooser.n_known)

    def _goes_ahead(self, request: Request) -> bool:
        """Whether a request's token is chosen where the logits are, and nothing else is asked of it."""
        sampler = request.sampler
        if request.constraint is not None or request.logprobs is not None or request.siblings:
            return False
        if not isinstance(sampler, ChainSampler) or sampler.before:
            return False
        return sampler.k == 1 or (self.engine.draws and sampler.among_few)

    def choices(self, under_way: UnderWay) -> tuple[StepPlan, Choices | None]:
        """What a step chose for the requests that still run, and a plan of these; no choices where it is not enough."""
        plan = under_way.plan
        left = replace(
            plan,
            parts=tuple(part for part in plan.parts if part[0].state is State.RUNNING),
            choosing=tuple(row for row in plan.choosing if row[0].state is State.RUNNING),
        )
        return left, self.chooser.chosen_there(under_way.begun, under_way.output, left.choosing)
