"""A generation: the loop from a prompt's tokens to a reply's text."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import numpy as np

from octavo.errors import ContextFullError, UsageError
from octavo.formats.spec import F32
from octavo.runtime import choice
from octavo.runtime.batch import Feed
from octavo.runtime.engine import Engine
from octavo.runtime.kv_cache import Sequence as CachedSequence
from octavo.runtime.sampling import ChainSampler, Sampler
from octavo.runtime.stop import StopStrings
from octavo.text import Tokenizer

BUSY = "this model is generating already; finish or close that generation first"

FinishReason = Literal["stop", "length", "context", "interrupted"]
"""An end token or stop string; `max_tokens`; a full context (an error is raised too); the iterator was left early."""


@dataclass
class Timings:
    """Where the time went. `cached_tokens` of the prompt were in the KV cache already and cost nothing."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    generated_tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one (which the prefill gives)."""
        return (self.generated_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0


class Generation:
    """A reply in the making: iterate over it for pieces of text, once. What it came to stands in its attributes.

    text           the whole reply: what is missing is generated first
    text_so_far    all pieces so far
    tokens         ids generated so far, an end token included
    finish_reason  why it ended; None before that
    timings        counts and seconds so far
    """

    def __init__(
        self,
        engine: Engine,
        sequence: CachedSequence,
        prompt: Sequence[int],
        *,
        sampler: Sampler,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        lock: Lock | None = None,
    ) -> None:
        self.text_so_far = ""
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.timings = Timings(prompt_tokens=len(prompt))
        self._engine, self._sequence, self._prompt = engine, sequence, list(prompt)
        self._sampler, self._tokenizer = sampler, tokenizer
        self._stops, self._max_tokens, self._lock = StopStrings(stop), max_tokens, lock or Lock()
        self._pieces = self._run()

    @property
    def text(self) -> str:
        """The reply, to its end. Raises what iterating raises."""
        for _ in self:
            pass
        return self.text_so_far

    def __iter__(self) -> Iterator[str]:
        yield from self._pieces  # a loop that is left early closes this, and with it the generation

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the generation; what it was given is free again."""
        self._pieces.close()
        self.finish_reason = self.finish_reason or "interrupted"

    def _run(self) -> Generator[str, None, None]:
        if not self._lock.acquire(blocking=False):
            raise UsageError(BUSY)
        try:
            for piece in self._decode():
                self.text_so_far += piece
                if piece:
                    yield piece
        finally:
            self.finish_reason = self.finish_reason or "interrupted"
            self._lock.release()

    def _decode(self) -> Iterator[str]:
        stream = self._tokenizer.stream()
        logits = self._prefill()
        start = time.perf_counter()
        with closing(self._choices(logits)) as choices:
            while self._max_tokens is None or len(self.tokens) < self._max_tokens:
                try:
                    token = next(choices)
                except ContextFullError:
                    self.finish_reason = "context"
                    yield self._end(stream.flush())
                    raise ContextFullError(
                        f"the context of {self._engine.n_ctx} tokens is full: {len(self._prompt)} of the prompt and "
                        f"{len(self.tokens)} of the reply"
                    ) from None
                self.tokens.append(token)
                if token in self._tokenizer.stop_ids:
                    self.finish_reason = "stop"
                    break
                shown, stopped = self._stops.push(stream.push(token))
                self._count(start)
                yield shown
                start = time.perf_counter()
                if stopped:
                    self.finish_reason = "stop"
                    return
        self._count(start)
        self.finish_reason = self.finish_reason or "length"
        yield self._end(stream.flush())

    def _choices(self, logits: F32) -> Generator[int, None, None]:
        """Tokens without end, the first one chosen from `logits`, those of the prompt."""
        engine, sampler = self._engine, self._sampler
        history = list(self._prompt)
        history.append(sampler(self._known(logits), history))
        yield history[-1]
        few = self._needs_few(logits)
        if few is not None and few.enough == 1:
            with closing(engine.greedy([self._feed(history)])) as chosen:
                for (token,) in chosen:
                    yield token
        while True:
            if few is not None:
                ids, values = engine.candidates([self._feed(history)], few.enough)
                order = np.argsort(ids[0])
                token = few.among(ids[0][order], values[0][order], history)
            else:
                token = sampler(self._known(engine.step([self._feed(history)])[0]), history)
            history.append(token)
            yield token

    def _needs_few(self, logits: F32) -> ChainSampler | None:
        """The sampler, if it needs but a few of the largest logits and the device finds these."""
        sampler = self._sampler
        if not self._engine.chooses or len(logits) > self._tokenizer.n_vocab or not isinstance(sampler, ChainSampler):
            return None
        return None if sampler.looks_at_all or sampler.enough > choice.MOST else sampler

    def _feed(self, history: Sequence[int]) -> Feed:
        return Feed(self._sequence, history[-1:])

    def _count(self, start: float) -> None:
        """Add to the timings what was generated since `start`."""
        if len(self.tokens) > 1:
            self.timings.decode_seconds += time.perf_counter() - start
        self.timings.generated_tokens = len(self.tokens)

    def _known(self, logits: F32) -> F32:
        """Logits without those of rows that pad the embedding: no token is theirs."""
        if len(logits) > self._tokenizer.n_vocab:
            logits = logits.copy()
            logits[self._tokenizer.n_vocab :] = -np.inf
        return logits

    def _end(self, text: str) -> str:
        shown, stopped = self._stops.push(text)
        return shown if stopped else shown + self._stops.flush()

    def _prefill(self) -> F32:
        """Bring the sequence to the prompt, keeping what it shares with it, and give the logits after the prompt."""
        held = self._sequence.tokens
        shared = 0
        while shared < min(len(held), len(self._prompt) - 1) and held[shared] == self._prompt[shared]:
            shared += 1
        self._engine.pool.shrink(self._sequence, shared)
        self.timings.cached_tokens = shared
        start = time.perf_counter()
        logits = self._engine.prefill(self._sequence, self._prompt[shared:])
        self.timings.prefill_seconds = time.perf_counter() - start
        return logits
