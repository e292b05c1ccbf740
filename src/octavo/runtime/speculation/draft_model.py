"""Drafts by a smaller model of the same vocabulary (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318).

It has an engine of its own, in which each request has a sequence. The next token of a draft is drawn from the small
model's logits with the request's own sampler and the random number of that position: the number that the large model's
token will be drawn with. So drafts of sampled replies are accepted nearly as often as those of greedy ones, and replies
need no other distribution than their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from octavo.errors import CacheFullError, OctavoError
from octavo.jit.clock import clock
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.step_sampler import StepSampler
from octavo.runtime.sampling.top_k import LOGITS
from octavo.runtime.scheduler.request import Request, State
from octavo.runtime.speculation.draft_record import DrafterName
from octavo.runtime.speculation.drafter import MOST_TOKENS
from octavo.runtime.speculation.head_drafter import next_tokens
from octavo.runtime.speculation.making_times import MakingTimes

log = logging.getLogger("octavo")

CATCH_UP = 32
"""The most tokens that a sequence lacks where a draft is begun; of more, those before the last are read first."""


@dataclass(slots=True)
class DraftSequence:
    """A request's tokens in the draft model's cache, of which the first `agreed` are the request's own."""

    sequence: Sequence = field(default_factory=Sequence)
    agreed: int = 0


class DraftModel:
    """Drafts of requests by an engine."""

    name: DrafterName = "draft"
    most = MOST_TOKENS
    reads = False

    def __init__(self, engine: Engine, n_known: int) -> None:
        self.engine = engine
        self._sampler = StepSampler(engine, n_known)
        self._sequences: dict[Request, DraftSequence] = {}
        self._times = MakingTimes(captures=engine.on_device)
        self._broken = False

    def can_draft(self, request: Request, most: int) -> bool:
        """Whether the model's context holds the request with a draft of `most` tokens."""
        return not self._broken and len(request.tokens) + most <= self.engine.n_ctx

    def seconds(self, requests: int, tokens: int) -> float:
        """Of drafts of `tokens` tokens for each of some requests; 0 while nothing is known."""
        return self._times.at(requests, tokens)

    def drafts(self, lengths: Mapping[Request, int]) -> dict[Request, list[int]]:
        """A draft of each length, or a shorter one: none for a request whose prompt the model still has to read."""
        self._release(r for r in self._sequences if r.state is State.FINISHED)
        found: dict[Request, list[int]] = {}
        try:
            ready = self._ready({request: n for request, n in lengths.items() if n})
            for n in range(max((lengths[r] for r in ready), default=0)):
                some = [r for r in ready if len(found.setdefault(r, [])) == n < lengths[r]]
                for request, token in self._next(some, found).items():
                    found[request].append(token)
        except OctavoError as error:
            self._broken = True
            log.warning("the draft model makes no more drafts: %s", error)
        return {request: draft for request, draft in found.items() if draft}

    def _release(self, requests: Iterable[Request]) -> None:
        for request in list(requests):
            self.engine.pool.release(self._sequences.pop(request).sequence)

    def _next(self, requests: Seq[Request], drafts: Mapping[Request, list[int]]) -> dict[Request, int]:
        """The next token of each draft."""
        feeds = list[Feed]()
        for request in requests:
            own = self._sequences[request]
            text = [*request.tokens, *drafts[request]]
            feeds.append(Feed(own.sequence, text[len(own.sequence) :]))
            own.agreed = len(request.tokens)
        start = clock()
        with self.engine.lock, self.engine.appending(feeds):
            tokens = next_tokens(self._sampler, requests, feeds, drafts)
        self._times.add(len(feeds), sum(len(feed.tokens) for feed in feeds), 1, clock() - start)
        return {request: token for request, token in zip(requests, tokens, strict=True) if token is not None}

    def _ready(self, lengths: Mapping[Request, int]) -> list[Request]:
        """Requests whose sequences have the pages for a draft and lack few of their tokens, after one step has read
        what they lacked of prompts: as much as it holds."""
        self.reads, ready, feeds, room = False, list[Request](), list[Feed](), self.engine.config.n_batch
        for request, draft in lengths.items():
            own = self._sequences.setdefault(request, DraftSequence())
            text, same = request.tokens, self._agreed(request, own)
            if same < len(own.sequence):
                self.engine.pool.shrink(own.sequence, same)
            try:
                self.engine.pool.grow(own.sequence, len(text) + draft)
            except CacheFullError:
                continue
            lacking = len(text) - same
            if lacking > CATCH_UP and (part := min(lacking - 1, room)):
                feeds.append(Feed(own.sequence, text[same : same + part], 0))
                own.agreed, room, lacking = same + part, room - part, lacking - part
            if lacking <= CATCH_UP:
                ready.append(request)
            else:
                self.reads = True
        if feeds:
            with self.engine.lock, self.engine.appending(feeds):
                self.engine.launch(self.engine.padded(feeds), (LOGITS,), check=False).read()
        return ready

    def _agreed(self, request: Request, own: DraftSequence) -> int:
        """How many of the request's tokens its sequence has, but for its last one."""
        sequence, text = own.sequence, request.tokens
        most = min(len(sequence), len(text) - 1)
        return next((i for i in range(min(own.agreed, most), most) if sequence.tokens[i] != text[i]), most)
