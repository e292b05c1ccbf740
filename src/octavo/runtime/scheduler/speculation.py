"""Speculative decoding: steps that verify drafts of replies, so that they bring more than one token of a reply.

A draft comes from the request's own text, or from its grammar where that forces the next tokens. A step computes its
tokens as it does those of a prompt, with logits at each, and at each position a token is sampled as if those before it
had been sampled one by one. The draft is accepted up to the first other token, which is the last that the step brings.
So replies are the same as without drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from octavo.errors import CacheFullError
from octavo.runtime.engine.batch import Feed
from octavo.runtime.grammar.deadlines import wait_while_due
from octavo.runtime.sampling.sampler import ChainSampler
from octavo.runtime.sampling.step_sampler import SampledToken, StepSampler
from octavo.runtime.scheduler.prefill_budget import SHARE, PrefillBudget
from octavo.runtime.scheduler.request import Foreseeing, PendingMask, Request, foresees
from octavo.runtime.scheduler.scheduler import ScheduledStep

TOKENS, ASYNC_TOKENS = 3, 7
"""Tokens of a draft, on the CPU and on a GPU."""
MAX_REPLIES, MAX_ASYNC_REPLIES = 3, 15
"""The most replies in a step with drafts, on the CPU and on a GPU: with more, products have rows enough, and each token
of a draft costs one."""


class Draft(NamedTuple):
    """Tokens that a request may go on with; `forced` ones its grammar gave."""

    tokens: list[int]
    forced: bool = False


Drafts = Mapping[Request, Draft]
NONE = Draft([])


class DraftConstraint:
    """The Constraint of a request as it is once the tokens of a draft are accepted."""

    def __init__(self, constraint: Foreseeing, draft: Sequence[int]) -> None:
        self._constraint, self._draft, self.stopped = constraint, draft, False

    @property
    def pending_mask(self) -> PendingMask | None:
        return self._constraint.pending_mask_after(self._draft)

    def fill(self, mask: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        self._constraint.fill_after(self._draft, mask)

    def accept(self, token: int) -> None:
        """Nothing: the request's own takes the tokens that are accepted."""


class Speculator:
    """Makes drafts for the requests of a step where they pay, and has them verified."""

    def __init__(self, sampler: StepSampler, budget: PrefillBudget) -> None:
        self.sampler, self.engine, self.budget = sampler, sampler.engine, budget
        quick = self.engine.on_device
        self.n = ASYNC_TOKENS if quick else TOKENS
        self.max_replies = MAX_ASYNC_REPLIES if quick else MAX_REPLIES
        self._cost: dict[int, float] = {}  # seconds that a draft adds to a step, by the number of replies in it
        self._seen: dict[tuple[int, int], int] = {}

    def drafts(self, step: ScheduledStep) -> Drafts:
        """Drafts for a step of replies, whose pages are there; none where they don't pay."""
        if step.num_prefill_tokens or not step.num_decodes or step.num_decodes > self.max_replies:
            return {}
        found = dict[Request, Draft]()
        if len(step.sampling) > len(step.parts):  # siblings begin after this step
            return {}
        left = self.engine.limits["outputs"] - step.num_decodes
        for request, _ in step.parts:
            if left < self.n or not self._can_draft(request):
                continue
            draft = self._draft(request, step.num_decodes)
            if draft.tokens and self._grown(request):
                found[request] = draft
                left -= self.n
                if foresees(request.constraint):
                    request.constraint.foresee(draft.tokens)
        held = {r: DraftConstraint(r.constraint, d.tokens) for r, d in found.items() if foresees(r.constraint)}
        wait_while_due(held.values())
        return {r: draft for r, draft in found.items() if r not in held or held[r].pending_mask is None}

    def _draft(self, request: Request, replies: int) -> Draft:
        """A draft for a request in a step of `replies`; none where it does not pay."""
        constraint = request.constraint
        forced = constraint.forced() if foresees(constraint) else []
        if forced and len(forced) > self._cost_in_tokens(replies):
            return Draft([*forced, *forced[-1:] * self.n][: self.n], forced=True)
        found = request.drafter.draft(request.tokens, self.n)
        return Draft(found) if found and request.drafter.pays(self._cost_in_tokens(replies)) else NONE

    def _can_draft(self, request: Request) -> bool:
        """Whether a request's tokens can be sampled before those before them are verified."""
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
        usual, added = self.budget.seconds(replies), self._cost.get(replies)
        return 0.0 if not usual or added is None else added * replies / usual

    def verified(self, step: ScheduledStep, drafts: Drafts) -> dict[Request, list[SampledToken | Exception]]:
        """Compute a step, and sample tokens of each request up to the first one that its draft does not have."""
        feeds, sampling, positions = list[Feed](), list[tuple[Request, int]](), dict[Request, int]()
        for i, (request, _) in enumerate(step.parts):
            draft = drafts.get(request, NONE).tokens
            feeds.append(Feed(request.sequence, [request.tokens[-1], *draft], 1 + len(draft)))
            for position in range(1 + len(draft)):
                one = request if not position else _after_draft(request, draft[:position])
                sampling.append((one, i))
                positions[one] = position
        sampled = self.sampler.step(feeds, sampling, positions)
        found: dict[Request, list[SampledToken | Exception]] = {}
        for one, i in sampling:
            request = step.parts[i][0]
            found.setdefault(request, []).append(sampled[one])
        return {request: self._accepted(request, all_, drafts.get(request, NONE)) for request, all_ in found.items()}

    def _accepted(
        self, request: Request, sampled: list[SampledToken | Exception], draft: Draft
    ) -> list[SampledToken | Exception]:
        """What was sampled up to the first token that is not the draft's; the drafter counts how many are."""
        accepted, n = 0, len(draft.tokens)
        while accepted < n and _token(sampled[accepted]) == draft.tokens[accepted]:
            accepted += 1
        if n:
            request.drafter.record(n, accepted, forced=draft.forced)
        failed = accepted and isinstance(sampled[accepted], Exception)  # the next step will fail too, and tell
        return sampled[: accepted + (not failed)]

    def observe(self, step: ScheduledStep, drafts: Drafts, seconds: float) -> None:
        """Learn what drafts cost from a step that had them; one of a new size takes longer than others."""
        replies = step.num_decodes
        size = replies, len(drafts)
        self._seen[size] = self._seen.get(size, 0) + 1
        if self._seen[size] <= (2 if self.engine.pads else 1):
            return
        added = max(seconds - self.budget.seconds(replies), 0.0) / len(drafts)
        before = self._cost.get(replies, added)
        self._cost[replies] = before + SHARE * (added - before)


def _after_draft(request: Request, draft: list[int]) -> Request:
    """The request as it is once the tokens of a draft are accepted."""
    held = DraftConstraint(request.constraint, draft) if foresees(request.constraint) else None
    after = Request([*request.tokens, *draft], request.sampler, logprobs=request.logprobs, constraint=held,
                    after_sampling=request.after_sampling)
    after.tokens.base = request.tokens
    return after


def _token(sampled: SampledToken | Exception) -> int | None:
    return sampled.token if isinstance(sampled, SampledToken) else None
