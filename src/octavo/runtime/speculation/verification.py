"""Speculative decoding: steps that verify drafts of replies, so that they bring more than one token of a reply.

A draft comes from what the request's grammar forces, from its own text, from replies that ended, from a head of the
model or from a draft model: the first that knows something. A step computes its tokens as it does those of a prompt,
with logits at each, and at each position a token is sampled as if those before it had been sampled one by one. The
draft is accepted up to the first other token, which is the last that the step brings. So replies are the same as
without drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from octavo.errors import CacheFullError, GrammarError
from octavo.runtime.engine.batch import Feed
from octavo.runtime.grammar.deadlines import wait_while_due
from octavo.runtime.sampling.sampler import ChainSampler
from octavo.runtime.sampling.step_sampler import SampledToken, StepSampler
from octavo.runtime.scheduler.constraint import foresees
from octavo.runtime.scheduler.prefill_budget import PrefillBudget
from octavo.runtime.scheduler.request import Request
from octavo.runtime.scheduler.scheduler import ScheduledStep
from octavo.runtime.speculation.draft_lengths import DraftLengths
from octavo.runtime.speculation.draft_record import Acceptance, DrafterName
from octavo.runtime.speculation.drafted_request import DraftConstraint, after_draft
from octavo.runtime.speculation.drafter import MOST_TOKENS, Drafter
from octavo.runtime.speculation.history_drafter import HistoryDrafter
from octavo.runtime.speculation.kept_states import KeptStates, can_go_back
from octavo.runtime.speculation.step_sizes import StepSizes


class Draft(NamedTuple):
    """Tokens that a request may go on with, and where they come from."""

    tokens: list[int]
    drafter: DrafterName = "lookup"


Drafts = Mapping[Request, Draft]
NONE = Draft([])


class Speculator:
    """Makes drafts for the requests of a step where they pay, and has them verified.

    `lookup`: drafts come from the requests' own texts, too, and from replies before; `drafters`, the first before the
    others, make those of requests that have no other.
    """

    def __init__(
        self, sampler: StepSampler, budget: PrefillBudget, drafters: Sequence[Drafter] = (), *, lookup: bool = True
    ) -> None:
        self.sampler, self.engine, self.drafters, self._lookup = sampler, sampler.engine, drafters, lookup
        self.lengths, self.history = DraftLengths(MOST_TOKENS, budget.seconds), HistoryDrafter()
        self.usual, self.sizes, self._budget = Acceptance(), StepSizes(), budget

    def drafts(self, step: ScheduledStep) -> Drafts:
        """Drafts for a step of replies, whose pages are there; none where they don't pay."""
        if step.num_prefill_tokens or not step.num_decodes or len(step.sampling) > len(step.parts):
            return {}  # siblings begin after this step
        replies = step.num_decodes
        requests = [request for request, _ in step.parts if self._can_draft(request)]
        room = self.engine.limits["outputs"] - replies
        for request in requests:
            request.drafts.acceptance.usual = self.usual
            request.drafts.compare(request.tokens)
        known = {request: draft for request in requests if (draft := self._known(request)).tokens}
        found = self._shortened(known, replies, room)
        for request, draft in known.items():
            if request not in found:
                request.drafts.leave_untried(draft.drafter, len(request.tokens), draft.tokens[0])
        for drafter in self.drafters:
            if others := [r for r in requests if r not in found]:
                found |= self._drafted(drafter, others, found, replies, room)
        if not found:
            return {}
        if not self.engine.pads:
            found = self._fitted(found, replies)
        found = {request: draft for request, draft in found.items() if _is_foreseen(request, draft)}
        held = {r: DraftConstraint(r.constraint, d.tokens) for r, d in found.items() if foresees(r.constraint)}
        wait_while_due(held.values())
        ready = [(r, draft) for r, draft in found.items() if r not in held or held[r].pending_mask is None]
        states = self.engine.pool.states
        return dict(ready if states is None else ready[: states.free])

    def _fitted(self, found: Drafts, replies: int) -> dict[Request, Draft]:
        """Drafts cut to a size of step that need not be bound first, or may be."""
        lengths = [len(draft.tokens) for draft in found.values()]
        lengths = self.sizes.fitted(replies, lengths, self.lengths.seconds(replies))
        pairs = zip(found.items(), lengths, strict=True)
        return {request: draft._replace(tokens=draft.tokens[:n]) for (request, draft), n in pairs if n}

    def _known(self, request: Request) -> Draft:
        """A draft that costs nothing to make."""
        if forced := request.constraint.forced() if foresees(request.constraint) else []:
            return Draft(_before_end(request, forced[:MOST_TOKENS]), "grammar")
        if not self._lookup:
            return NONE
        if own := request.drafts.lookup.draft(request.tokens, MOST_TOKENS):
            return Draft(_before_end(request, own))
        found = self.history.draft(request.tokens, MOST_TOKENS, request.cache_salt)
        return Draft(_before_end(request, found), "history")

    def ended(self, request: Request) -> None:
        """Remember the reply of a request that ended."""
        if self._lookup:
            self.history.add(request.output_tokens, request.cache_salt)

    def rests(self, replies: int) -> bool:
        """Whether the next step of as many replies has no drafts, whatever its tokens are."""
        return self.engine.on_device and self.lengths.rests(replies)

    def skip(self, replies: int) -> None:
        """Count a step without drafts, unless the next one is to try some: what is in flight comes before it."""
        if self.lengths.rests(replies):
            self.lengths.pays(replies, ())

    def _drafted(
        self, drafter: Drafter, requests: Sequence[Request], others: Drafts, replies: int, room: int
    ) -> dict[Request, Draft]:
        """Drafts beside `others`, where their tokens and the time to make them pay."""
        requests = [request for request in requests if drafter.can_draft(request, drafter.most)]
        rates, most = [request.drafts.rate(drafter.name) for request in requests], [drafter.most] * len(requests)
        taken = [r.drafts.rate(one.drafter) ** (i + 1) for r, one in others.items() for i in range(len(one.tokens))]
        lengths = self.lengths.plan(
            replies, rates, most, room=room, making=partial(drafter.seconds, len(requests)), taken=taken
        )
        if not any(lengths):
            return {}
        made = {r: _before_end(r, t) for r, t in drafter.drafts(dict(zip(requests, lengths, strict=True))).items()}
        if drafter.reads and not made:
            self.lengths.try_again(replies)
        return {r: Draft(tokens, drafter.name) for r, tokens in made.items() if tokens and self._grown(r, len(tokens))}

    def _shortened(self, found: Drafts, replies: int, room: int) -> dict[Request, Draft]:
        """Drafts as long as they pay and there is room, whose pages are there."""
        rates = [request.drafts.rate(draft.drafter) for request, draft in found.items()]
        lengths = self.lengths.plan(replies, rates, [len(draft.tokens) for draft in found.values()], room=room)
        return {
            request: draft._replace(tokens=draft.tokens[:n])
            for (request, draft), n in zip(found.items(), lengths, strict=True)
            if n and self._grown(request, n)
        }

    def _can_draft(self, request: Request) -> bool:
        """Whether a request's tokens can be sampled before those before them are verified."""
        foreseen = request.constraint is None or foresees(request.constraint)
        goes_on = len(request.tokens) + 1 < request.end
        grows = request.banned is None  # drafters know texts that only grow
        takes_back = can_go_back(self.engine.pool, request.sequence)
        return foreseen and goes_on and grows and takes_back and isinstance(request.sampler, ChainSampler)

    def _grown(self, request: Request, n: int) -> bool:
        """Whether there is room for a draft of n tokens; its pages are there then."""
        stop = len(request.tokens) + n
        if stop > self.engine.n_ctx:
            return False
        try:
            self.engine.pool.grow(request.sequence, stop)
        except CacheFullError:
            return False
        return True

    def verified(self, step: ScheduledStep, drafts: Drafts) -> dict[Request, list[SampledToken | Exception]]:
        """Compute a step, and sample tokens of each request up to the first one that its draft does not have."""
        asked = [(request, drafts.get(request, NONE)) for request, _ in step.parts]
        feeds = [Feed(r.sequence, [r.tokens[-1], *draft.tokens], 1 + len(draft.tokens)) for r, draft in asked]
        plain = self.engine.pool.states is None and all(r.is_greedy and not r.has_processors for r, _ in asked)
        if plain and (rows := self.sampler.argmax(feeds)) is not None:
            outputs = iter(rows)
            return {r: self._accepted(r, list(islice(outputs, 1 + len(d.tokens))), d) for r, d in asked}
        sampling, positions = list[tuple[Request, int]](), dict[Request, int]()
        for i, (request, of_request) in enumerate(asked):
            draft = of_request.tokens
            for position in range(1 + len(draft)):
                one = request if not position else after_draft(request, draft[:position])
                sampling.append((one, i))
                positions[one] = position
        kept = KeptStates(self.engine.pool, (request.sequence for request in drafts))
        try:
            sampled = self.sampler.step(feeds, sampling, positions)
        except BaseException:
            kept.settle(request.sequence for request in drafts)
            raise
        found: dict[Request, list[SampledToken | Exception]] = {}
        for one, i in sampling:
            request = step.parts[i][0]
            found.setdefault(request, []).append(sampled[one])
        found = {request: self._accepted(request, all_, drafts.get(request, NONE)) for request, all_ in found.items()}
        last = {request: _last(request, found[request]) for request in drafts}
        kept.settle(request.sequence for request, draft in drafts.items() if last[request] < len(draft.tokens))
        for request, n in last.items():
            if self.engine.pool.states is not None and _ends(request, found[request][n], n):
                self._complete_state(request, drafts[request].tokens[:n])
        return found

    def _complete_state(self, request: Request, accepted: Sequence[int]) -> None:
        """Have the state of a request that ends see all of its tokens, so that another prompt can go on from there."""
        sequence, text = request.sequence, [*request.tokens, *accepted]
        if sequence.seen < len(text):
            self.engine.compute([Feed(sequence, text[sequence.seen :], 0, sequence.seen - len(sequence))])

    def _accepted(
        self, request: Request, sampled: list[SampledToken | Exception], draft: Draft
    ) -> list[SampledToken | Exception]:
        """What was sampled up to the first token that is not the draft's; the drafter counts how many are."""
        accepted, n = 0, len(draft.tokens)
        while accepted < n and _token(sampled[accepted]) == draft.tokens[accepted]:
            accepted += 1
        if n:
            request.drafts.add(draft.drafter, n, accepted)
        failed = accepted and isinstance(sampled[accepted], Exception)  # the next step will fail too, and tell
        return sampled[: accepted + (not failed)]

    def observe(self, step: ScheduledStep, drafts: Drafts, seconds: float) -> None:
        """Learn what tokens of drafts cost from a step that had them; one of a new size takes longer than others."""
        lengths, replies = [len(draft.tokens) for draft in drafts.values()], step.num_decodes
        self._budget.observe_more(replies, seconds)
        tokens, usual = sum(lengths), self.lengths.seconds(replies)
        usual *= self.lengths.costs.factor(replies, tokens)
        if self.engine.pads or self.sizes.add(replies, lengths, seconds, usual):
            self.lengths.observe(replies, tokens, seconds, 2 if self.engine.on_device else 0)


def _before_end(request: Request, draft: list[int]) -> list[int]:
    """A draft up to a token that would end the reply: none comes after that."""
    return next((draft[:i] for i, token in enumerate(draft) if token in request.stop_ids), draft)


def _last(request: Request, sampled: Sequence[SampledToken | Exception]) -> int:
    """The number of the last of some tokens that a request gets: that which ends it, if one does."""
    return next((i for i, one in enumerate(sampled) if _ends(request, one, i)), len(sampled) - 1)


def _ends(request: Request, sampled: SampledToken | Exception, number: int) -> bool:
    """Whether a token ends a request, which comes after as many others as `number` says."""
    return _token(sampled) in request.stop_ids or len(request.tokens) + number + 1 >= request.end


def _token(sampled: SampledToken | Exception) -> int | None:
    return sampled.token if isinstance(sampled, SampledToken) else None


def _is_foreseen(request: Request, draft: Draft) -> bool:
    """Whether a request's constraint, if it has one, can tell what comes after a draft, which it finds out from now."""
    try:
        if foresees(request.constraint):
            request.constraint.foresee(draft.tokens)
    except GrammarError:  # as of white space around thinking
        return False
    return True
