"""Drafts by a head: a layer or two that guess further tokens from the hidden states of the model's own steps.

The head reads the tokens of a request when a draft of it is wanted: in one pass all that its model's steps computed
since the last draft, with their hidden states; then token by token what it drafts, with its own. Keys and values of
drafted tokens are replaced by those of the true ones at the next draft.

What a step did not compute has no hidden states: a prefix that was in the cache, or brought back from the disk, or
computed for another request. A sequence of the head begins behind that, and where more than `hidden_rows.MOST` tokens
came before the first draft, with the last of these. It counts positions from there, which attention with a rope does
not tell from the true ones. So it knows less of the text, and its drafts may be worse; replies are the same whatever
drafts are, as each token of theirs is verified.

Tokens of drafts are drawn as those of `draft_model`: with the request's sampler, and its next random number.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from octavo.errors import CacheFullError, OctavoError
from octavo.jit.clock import clock
from octavo.models.shared.head import HeadSpec
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.step_sampler import SampledToken, StepSampler
from octavo.runtime.sampling.top_k import BEST, LOGITS
from octavo.runtime.scheduler.request import Request, State
from octavo.runtime.speculation.draft_record import DrafterName
from octavo.runtime.speculation.drafted_request import after_draft
from octavo.runtime.speculation.drafter import MOST_TOKENS
from octavo.runtime.speculation.guesses import Guesses
from octavo.runtime.speculation.making_times import MakingTimes

log = logging.getLogger("octavo")

AT_ONCE = (2, 4, 7)
"""Numbers of tokens that are made in one step, of which shorter drafts are the first ones. There are few sizes of
steps, as each new one has calls bound for it first."""
CATCH_UP = 8
"""The most tokens that a pass reads of a request beside others; of more, passes of their own read the first ones."""


@dataclass(slots=True)
class HeadSequence:
    """A request's tokens in the head's cache: those of the positions `first` to `end`, and drafted ones."""

    sequence: Sequence = field(default_factory=Sequence)
    first: int = 0
    end: int = 0


def guesses_at_once(engine: Engine) -> bool:
    """Whether a head's engine makes all tokens of a draft in one step."""
    assert isinstance(engine.model, HeadSpec)
    return engine.finds_candidates and not engine.on_device and AT_ONCE[-1] > 1 and not engine.model.later


class HeadDrafter:
    """Drafts of requests by a head's engine."""

    name: DrafterName = "head"
    most = MOST_TOKENS
    reads = False

    def __init__(self, engine: Engine, n_known: int) -> None:
        self.engine, self.n_known = engine, n_known
        self._sampler = StepSampler(engine, n_known)
        self._sequences: dict[Request, HeadSequence] = {}
        self._times = MakingTimes(captures=engine.on_device)
        self._broken = False
        self._guesses = Guesses(engine, AT_ONCE[-1], CATCH_UP) if guesses_at_once(engine) else None

    def can_draft(self, request: Request, most: int) -> bool:
        """Whether there are hidden states to begin with, and the context holds the request with a draft."""
        rows = request.sequence.hidden
        return not self._broken and rows is not None and len(request.tokens) + most <= self.engine.n_ctx

    def seconds(self, requests: int, tokens: int) -> float:
        """Of drafts of `tokens` tokens for each of some requests; 0 while nothing is known."""
        return self._times.at(requests, tokens)

    def drafts(self, lengths: Mapping[Request, int]) -> dict[Request, list[int]]:
        """A draft of each length, or a shorter one."""
        self._release()
        try:
            return self._drafts(lengths)
        except OctavoError as error:
            self._broken = True
            log.warning("the head makes no more drafts: %s", error)
            return {}

    def _drafts(self, lengths: Mapping[Request, int]) -> dict[Request, list[int]]:
        found: dict[Request, list[int]] = {}
        with self.engine.lock:
            start = clock()
            most = max(1, min(CATCH_UP, self.engine.limits["tokens"] // max(len(lengths), 1)))
            begun = {r: self._begun(r, max(n, AT_ONCE[-1]), most) for r, n in lengths.items() if n}
            feeds = {r: feed for r, feed in begun.items() if feed is not None}
            if feeds and self._at_once(feeds, lengths):
                longest = max(lengths[r] for r in feeds)
                self._guess(feeds, found, next(n for n in AT_ONCE if n >= longest), start)
                return {request: draft[: lengths[request]] for request, draft in found.items() if draft}
            while feeds:
                feeds, start = self._pass(feeds, found, lengths, start), clock()
        return found

    def _release(self) -> None:
        for request in [r for r in self._sequences if r.state is State.FINISHED]:
            self.engine.pool.release(self._sequences.pop(request).sequence)

    def _begun(self, request: Request, draft: int, most: int) -> Feed | None:
        """The true tokens that the head lacks of a request, `most` at the most, after it has read those before; None
        where it has no hidden states of the last one, or too few pages."""
        own, text, rows = self._sequences.setdefault(request, HeadSequence()), request.tokens, request.sequence.hidden
        stop = len(text) - 1
        start, hidden = rows.take(stop) if rows is not None else (stop, [])
        if not hidden:
            return None
        if not own.first <= start <= own.end:
            own.first = own.end = start
        first = min(own.end, stop - 1)
        hidden = hidden[first - start :]
        pool, sequence = self.engine.pool, own.sequence
        if len(sequence) > first - own.first:
            pool.shrink(sequence, first - own.first)
        try:
            pool.grow(sequence, stop - own.first + draft)
        except CacheFullError:
            own.first = own.end = 0
            pool.release(sequence)
            return None
        size = self.engine.config.n_batch
        while (lacking := len(hidden)) > most:
            n = min(size, 1 << (lacking - 1).bit_length() - 1)
            self._read(Feed(sequence, text[first + 1 : first + 1 + n], 0, hidden=np.stack(hidden[:n])))
            first, hidden = first + n, hidden[n:]
        own.end = stop
        rows_in = hidden[0][None] if len(hidden) == 1 else np.stack(hidden)
        return Feed(sequence, text[first + 1 : stop + 1], 1, hidden=rows_in)

    def _read(self, feed: Feed) -> None:
        """Read a part of a prompt."""
        self.engine.launch(self.engine.padded([feed]), (LOGITS,), check=False).read()
        feed.sequence.tokens.extend(feed.tokens)

    def _at_once(self, feeds: Mapping[Request, Feed], lengths: Mapping[Request, int]) -> bool:
        """Whether all tokens of the drafts can be made in one step."""
        fits = 1 < max(lengths[r] for r in feeds) <= AT_ONCE[-1]
        return fits and self._guesses is not None and all(r.is_greedy for r in feeds)

    def _guess(self, feeds: Mapping[Request, Feed], found: dict[Request, list[int]], n: int, start: float) -> None:
        """Drafts of n tokens each, up to one that is not in the vocabulary; begun at `start`."""
        assert self._guesses is not None
        tokens = self._guesses.of(list(feeds.values()), n).tolist()
        for (request, feed), draft in zip(feeds.items(), tokens, strict=True):
            feed.sequence.tokens.extend([*feed.tokens, *draft[:-1]])
            found[request] = list(takewhile(lambda token: token < self.n_known, draft))
        self._times.add(len(feeds), sum(len(feed.tokens) for feed in feeds.values()), n, clock() - start)

    def _pass(
        self, feeds: Mapping[Request, Feed], found: dict[Request, list[int]], lengths: Mapping[Request, int],
        start: float,
    ) -> dict[Request, Feed]:
        """The next token of each draft, begun at `start`; the feeds of the drafts that go on."""
        requests, step = list(feeds), list(feeds.values())
        tokens = next_tokens(self._sampler, requests, step, found)
        hidden = self.engine.hidden
        after: dict[Request, Feed] = {}
        for i, (request, feed) in enumerate(zip(requests, step, strict=True)):
            feed.sequence.tokens.extend(feed.tokens)
            if (token := tokens[i]) is None:
                continue
            draft = found.setdefault(request, [])
            draft.append(token)
            if len(draft) < lengths[request]:
                after[request] = Feed(feed.sequence, [token], 1, hidden=hidden[i : i + 1])
        self._times.add(len(step), sum(len(feed.tokens) for feed in step), 1, clock() - start)
        return after


def next_tokens(
    sampler: StepSampler, requests: Seq[Request], feeds: Seq[Feed], drafts: Mapping[Request, list[int]]
) -> list[int | None]:
    """Compute a pass of the sampler's engine, and sample a token of each request; None for one that has none."""
    engine = sampler.engine
    if engine.finds_candidates and all(r.is_greedy for r in requests):
        best = engine.launch(engine.padded(feeds), (BEST,), check=False).read()[0][: len(feeds)]
        return [None if broken or token >= sampler.n_known else token for broken, token, _ in best.tolist()]
    sampling = [(after_draft(r, drafts.get(r, []), constrained=False), i) for i, r in enumerate(requests)]
    sampled = sampler.step(feeds, sampling)
    tokens = (sampled[one] for one, _ in sampling)
    return [one.token if isinstance(one, SampledToken) else None for one in tokens]
