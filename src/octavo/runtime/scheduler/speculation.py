"""Speculation: steps that verify drafts of what replies go on with, so that they bring more than one token of a reply.

A draft comes from the request's own text, or from its grammar where that forces what comes. A step computes its tokens
as it does those of a prompt, with logits at each, and at each place a token is chosen as if those before it had been
chosen one by one. The draft is right up to where another token was chosen: that one is the last that the step brings.
So replies are what they are without drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from octavo.errors import CacheFullError
from octavo.runtime.engine.batch import Feed
from octavo.runtime.grammar.deadlines import wait_while_due
from octavo.runtime.sampling.sampler import ChainSampler
from octavo.runtime.sampling.select import Chooser, Chosen
from octavo.runtime.scheduler.prefill_budget import SHARE, Pace
from octavo.runtime.scheduler.request import Foreseeing, Late, Request, foresees
from octavo.runtime.scheduler.step_plan import StepPlan

TOKENS, ASYNC_TOKENS = 3, 7
"""Tokens of a draft, on the CPU and on a GPU."""
MOST_REPLIES, MOST_ASYNC_REPLIES = 3, 15
"""The most replies in a step with drafts, on the CPU and on a GPU: with more, products have rows enough, and each token
of a draft costs one."""


class Draft(NamedTuple):
    """Tokens that a request may go on with; `forced` ones its grammar gave."""

    tokens: list[int]
    forced: bool = False


Drafts = Mapping[Request, Draft]
NONE = Draft([])


class Later:
    """The Constraint of a request as it is once the tokens of a draft are accepted."""

    def __init__(self, constraint: Foreseeing, draft: Sequence[int]) -> None:
        self._constraint, self._draft, self.stopped = constraint, draft, False

    @property
    def late(self) -> Late | None:
        return self._constraint.late_after(self._draft)

    def fill(self, mask: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        self._constraint.fill_after(self._draft, mask)

    def accept(self, token: int) -> None:
        """Nothing: the request's own goes on by the tokens that turn out right."""


class Speculator:
    """Makes drafts for the requests of a step where they pay, and has them verified."""

    def __init__(self, chooser: Chooser, pace: Pace) -> None:
        self.chooser, self.engine, self.pace = chooser, chooser.engine, pace
        quick = self.engine.on_device
        self.n = ASYNC_TOKENS if quick else TOKENS
        self.most_replies = MOST_ASYNC_REPLIES if quick else MOST_REPLIES
        self._cost: dict[int, float] = {}  # seconds that a draft adds to a step, by the number of replies in it
        self._seen: dict[tuple[int, int], int] = {}

    def drafts(self, plan: StepPlan) -> Drafts:
        """Drafts for a step of replies, whose pages are there; none where they don't pay."""
        if plan.chunk or not plan.replies or plan.replies > self.most_replies:
            return {}
        found = dict[Request, Draft]()
        if len(plan.choosing) > len(plan.parts):  # siblings begin after this step
            return {}
        left = self.engine.limits["outputs"] - plan.replies
        for request, _ in plan.parts:
            if left < self.n or not self._may(request):
                continue
            draft = self._draft(request, plan.replies)
            if draft.tokens and self._grown(request):
                found[request] = draft
                left -= self.n
                if foresees(request.constraint):
                    request.constraint.foresee(draft.tokens)
        held = {r: Later(r.constraint, d.tokens) for r, d in found.items() if foresees(r.constraint)}
        wait_while_due(held.values())
        return {r: draft for r, draft in found.items() if r not in held or held[r].late is None}

    def _draft(self, request: Request, replies: int) -> Draft:
        """Tokens that a request in a step of so many replies may go on with; none where they don't pay."""
        constraint = request.constraint
        forced = constraint.forced() if foresees(constraint) else []
        if forced and len(forced) > self._cost_in_tokens(replies):
            return Draft([*forced, *forced[-1:] * self.n][: self.n], forced=True)
        found = request.lookup.draft(request.tokens, self.n)
        return Draft(found) if found and request.lookup.pays(self._cost_in_tokens(replies)) else NONE

    def _may(self, request: Request) -> bool:
        """Whether a request's tokens can be chosen before those before them are known to be right."""
        foreseen = request.constraint is None or foresees(request.constraint)
        goes_on = len(request.tokens) + 1 < request.end
        return foreseen and goes_on and isinstance(request.sampler, ChainSampler)

    def _grown(self, request: Request) -> bool:
        """Whether there is room for a draft; its pages are there then."""
        stop = len(request.tokens) + self.n
        if stop > self.engine.n_ctx:
            return False
        try:
            self.engine.pool.grow(request.sequence, stop)
        except CacheFullError:
            return False
        return True

    def _cost_in_tokens(self, replies: int) -> float:
        """What a draft costs: the tokens that a step without it would bring in the time that it adds."""
        usual, added = self.pace.seconds(replies), self._cost.get(replies)
        return 0.0 if not usual or added is None else added * replies / usual

    def verified(self, plan: StepPlan, drafts: Drafts) -> dict[Request, list[Chosen | Exception]]:
        """Compute a step, and choose tokens of each request up to the first one that its draft does not have."""
        feeds, choosing, places = list[Feed](), list[tuple[Request, int]](), dict[Request, int]()
        for i, (request, _) in enumerate(plan.parts):
            draft = drafts.get(request, NONE).tokens
            feeds.append(Feed(request.sequence, [request.tokens[-1], *draft], 1 + len(draft)))
            for place in range(1 + len(draft)):
                one = request if not place else _later(request, draft[:place])
                choosing.append((one, i))
                places[one] = place
        choices = self.chooser.step(feeds, choosing, places)
        found: dict[Request, list[Chosen | Exception]] = {}
        for one, i in choosing:
            request = plan.parts[i][0]
            found.setdefault(request, []).append(choices[one])
        return {request: self._right(request, all_, drafts.get(request, NONE)) for request, all_ in found.items()}

    def _right(self, request: Request, chosen: list[Chosen | Exception], draft: Draft) -> list[Chosen | Exception]:
        """What was chosen up to the first token that is not the draft's; it counts how many are."""
        right, n = 0, len(draft.tokens)
        while right < n and _token(chosen[right]) == draft.tokens[right]:
            right += 1
        if n:
            request.lookup.verified(n, right, forced=draft.forced)
        failed = right and isinstance(chosen[right], Exception)  # the step after this one will tell
        return chosen[: right + (not failed)]

    def took(self, plan: StepPlan, drafts: Drafts, seconds: float) -> None:
        """Learn what drafts cost from a step that had them; one of a new size takes longer than others."""
        size = plan.replies, len(drafts)
        self._seen[size] = self._seen.get(size, 0) + 1
        if self._seen[size] <= (2 if self.engine.fills else 1):
            return
        added = max(seconds - self.pace.seconds(plan.replies), 0.0) / len(drafts)
        before = self._cost.get(plan.replies, added)
        self._cost[plan.replies] = before + SHARE * (added - before)


def _later(request: Request, draft: list[int]) -> Request:
    """The request as it is once the tokens of a draft are chosen."""
    held = Later(request.constraint, draft) if foresees(request.constraint) else None
    later = Request([*request.tokens, *draft], request.sampler, logprobs=request.logprobs, constraint=held,
                    after_sampling=request.after_sampling)
    later.tokens.base = request.tokens
    return later


def _token(choice: Chosen | Exception) -> int | None:
    return choice.token if isinstance(choice, Chosen) else None
