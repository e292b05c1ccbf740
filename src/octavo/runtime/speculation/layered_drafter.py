"""Drafts by a head of several layers, each of which makes one guess (multi-token prediction, arXiv 2412.19437).

```text
  position          i - 2    i - 1    i
  layer 0 reads     t(i-1)   t(i)     t(i+1)            -> a, the token at i + 2
  layer 1 reads     t(i)     t(i+1)   a                 -> b, the token at i + 3
  layer 2 reads     t(i+1)   a        b                 -> c, the token at i + 4
```

Beside a token each reads hidden states of the same position: the model's, or what the layer before it gave. So a draft
takes one pass a layer over the same positions, and has at most as many tokens as there are layers. At the last
positions later layers have read drafted tokens; these positions are read again with the next draft.

Each layer has an engine of its own, with keys and values. What `head_drafter` says of positions goes for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from octavo.errors import CacheFullError
from octavo.formats.spec import F32
from octavo.jit.clock import clock
from octavo.models.shared.head import HeadSpec
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed, places
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.step_sampler import StepSampler
from octavo.runtime.sampling.top_k import LOGITS
from octavo.runtime.scheduler.request import Request, State
from octavo.runtime.speculation.drafter import MOST_TOKENS
from octavo.runtime.speculation.guesses import work_of_guesses
from octavo.runtime.speculation.head_drafter import AT_ONCE, CATCH_UP, HeadDrafter, guesses_at_once, next_tokens


def head_drafter(engine: Engine, n_known: int) -> HeadDrafter:
    """The drafter of a head, by the engine of its first layer."""
    return LayeredDrafter(engine, n_known) if _later(engine) else HeadDrafter(engine, n_known)


def later_engines(engine: Engine) -> list[Engine]:
    """Those of the layers of a head behind the first, whose weights are not read yet."""
    return [Engine(spec, engine.backends, engine.config, shares=engine.shares) for spec in _later(engine)]


def needed_by(engine: Engine) -> int:
    """Bytes that a head takes beside its model, by the engine of its first layer: all of its layers, and a step that
    makes a draft at once."""
    found = sum(one.needs().total for one in (engine, *later_engines(engine)))
    return found + (work_of_guesses(engine, AT_ONCE[-1], CATCH_UP) if guesses_at_once(engine) else 0)


def most_tokens(engine: Engine) -> int:
    """Of a draft of a head."""
    return 1 + len(_later(engine)) if _later(engine) else MOST_TOKENS


def _later(engine: Engine) -> tuple[HeadSpec, ...]:
    assert isinstance(engine.model, HeadSpec)
    return engine.model.later[: MOST_TOKENS - 1]


@dataclass(slots=True)
class LayerSequences:
    """A request's tokens in the cache of each layer, of positions from `first` on; those up to `end` were true."""

    sequences: list[Sequence]
    first: int = 0
    end: int = 0


@dataclass(slots=True)
class Reading:
    """What a pass of each layer reads of a request: positions from `first` on, with the model's hidden states or, once
    there are any, what the layer before gave.

    draft  tokens that were guessed
    """

    own: LayerSequences
    first: int
    hidden: F32
    draft: list[int] = field(default_factory=list)

    def feed(self, text: Seq[int], layer: int, outputs: int) -> Feed | None:
        """The tokens of a layer with their hidden states; None where none is known."""
        tokens = [*text[self.first + 1 :], *self.draft][layer : layer + len(self.hidden)]
        if not tokens:
            return None
        return Feed(self.own.sequences[layer], tokens, outputs, hidden=self.hidden[: len(tokens)])


class LayeredDrafter(HeadDrafter):
    """Drafts of requests by the engines of a head's layers."""

    def __init__(self, engine: Engine, n_known: int) -> None:
        super().__init__(engine, n_known)
        self.engines = [engine, *later_engines(engine)]
        for one in self.engines:
            one.load()
        self.most = len(self.engines)
        self._hands_on = [spec.reads_given for spec in _later(engine)]
        self._samplers = [StepSampler(one, n_known) for one in self.engines]
        self._of = dict[Request, LayerSequences]()

    def _drafts(self, lengths: Mapping[Request, int]) -> dict[Request, list[int]]:
        n = min(max(lengths.values(), default=0), self.most)
        room = self.engine.limits["tokens"] // max(CATCH_UP, self.most)
        with ExitStack() as locks:
            for engine in self.engines:
                locks.enter_context(engine.lock)
            begun = {request: self._read_before(request) for request in islice(lengths, room) if lengths[request]}
            readings = {request: reading for request, reading in begun.items() if reading is not None}
            start, size = clock(), (len(readings), sum(len(one.hidden) for one in readings.values()))
            for layer in range(self.most):
                self._pass_layer(layer, readings, guesses=layer < n)
            self._times.add(*size, n, clock() - start)
        return {request: reading.draft[: lengths[request]] for request, reading in readings.items() if reading.draft}

    def _release(self) -> None:
        for request in [request for request in self._of if request.state is State.FINISHED]:
            self._forget(self._of.pop(request))

    def _forget(self, own: LayerSequences) -> None:
        own.first = own.end = 0
        for engine, sequence in zip(self.engines, own.sequences, strict=True):
            engine.pool.release(sequence)

    def _read_before(self, request: Request) -> Reading | None:
        """What is left to read of a request, after all layers have read what comes before that; None where the model's
        hidden states are missing, or pages."""
        own = self._of.setdefault(request, LayerSequences([Sequence() for _ in self.engines]))
        rows, stop = request.sequence.hidden, len(request.tokens) - 1
        start, found = rows.take(stop, self.most) if rows is not None else (stop, [])
        if not found:
            return None
        if not own.first <= start <= own.end:
            own.first = own.end = start
        first = max(start, min(own.end - (self.most - 1), stop - 1))
        hidden = np.stack(found[first - start :])
        try:
            for engine, sequence in zip(self.engines, own.sequences, strict=True):
                if len(sequence) > first - own.first:
                    engine.pool.shrink(sequence, first - own.first)
                engine.pool.grow(sequence, stop - own.first)
        except CacheFullError:
            self._forget(own)
            return None
        while len(hidden) > CATCH_UP:
            n = min(self.engine.config.n_batch, 1 << (len(hidden) - self.most).bit_length() - 1)
            reading = {request: Reading(own, first, hidden[:n])}
            for layer in range(self.most):
                self._pass_layer(layer, reading, guesses=False)
            first, hidden = first + n, hidden[n:]
        own.end = stop
        return Reading(own, first, hidden)

    def _pass_layer(self, layer: int, readings: dict[Request, Reading], *, guesses: bool) -> None:
        """Have a layer read, and make its guesses; requests that get none are left out from then on."""
        engine = self.engines[layer]
        fed = ((request, one.feed(request.tokens, layer, int(guesses))) for request, one in readings.items())
        feeds = {request: feed for request, feed in fed if feed is not None}
        if not feeds:
            return
        step = list(feeds.values())
        if guesses:
            drafts = {request: one.draft for request, one in readings.items()}
            tokens = next_tokens(self._samplers[layer], list(feeds), step, drafts)
        else:
            engine.launch(engine.padded(step), (LOGITS,), check=False).read()
        given = {id(of): engine.hidden[i:stop] for of, _, i, stop in places(engine.padded(step))}
        for i, (request, feed) in enumerate(feeds.items()):
            feed.sequence.tokens.extend(feed.tokens)
            reading = readings[request]
            if layer + 1 < self.most and self._hands_on[layer]:
                reading.hidden = given[id(feed.sequence)]
            if guesses and (token := tokens[i]) is not None:
                reading.draft.append(token)
            elif guesses:
                self._forget(readings.pop(request).own)
