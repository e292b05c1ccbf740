"""A generation: the loop from a prompt's tokens to a reply's text."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from octavo.errors import ContextFullError, OctavoError, UsageError
from octavo.formats.spec import F32
from octavo.jit.clock import clock, compile_seconds
from octavo.runtime.batch import Feed
from octavo.runtime.conversation import ClosedError, Conversation, Speaker
from octavo.runtime.reply import Reply
from octavo.runtime.sampling import Sampler
from octavo.text import Tokenizer


@dataclass
class Timings:
    """Where the time went. `cached_tokens` of the prompt were in the KV cache already and cost nothing.

    `compile_seconds` went to kernels that were compiled on the way, for the first time; no other seconds have them in.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    generated_tokens: int = 0
    decode_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one (which the prefill gives)."""
        return (self.generated_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0


class Generation(Reply, Speaker):
    """A reply in the making: iterate over it for pieces of text, once, or take `text`. `str` of it is `text`.

    text           the whole reply: what is missing is generated first
    text_so_far    all pieces so far
    tokens         ids generated so far, an end token included
    finish_reason  why it ended; None before that
    timings        counts and seconds so far

    Several may be under way: they take turns, see `Conversation`. One can be handed from thread to thread, but is
    iterated over by one at a time.
    """

    def __init__(
        self,
        conversation: Conversation,
        prompt: Sequence[int],
        *,
        sampler: Sampler,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        stop_ids: Collection[int] = (),
    ) -> None:
        super().__init__(tokenizer, stop, max_tokens, stop_ids)
        self.timings = Timings(prompt_tokens=len(prompt))
        self._conversation, self._n_prompt, self._history = conversation, len(prompt), list(prompt)
        self._sampler, self._n_known = sampler, tokenizer.n_vocab
        self._device_k: int | None = None
        self._pieces = self._run()
        self._advancing = Lock()
        self._failure: OctavoError | None = None

    @property
    def text(self) -> str:
        """The reply, to its end. Raises what iterating raises."""
        for _ in self:
            pass
        return self.text_so_far

    def __iter__(self) -> Iterator[str]:
        try:
            while (piece := next(self, None)) is not None:
                yield piece
        except GeneratorExit:  # a loop was left early
            self.close()
            raise

    def __next__(self) -> str:
        if not self._advancing.acquire(blocking=False):
            raise UsageError("this generation is iterated over already, by another thread")
        try:
            if self._failure is not None:
                raise self._failure
            return next(self._pieces)
        except OctavoError as error:
            self._failure = error  # whoever asks again is told again
            raise
        finally:
            self._advancing.release()

    def close(self) -> None:
        """End the generation. In another thread that is in the middle of it, this ends it after the next token."""
        self._conversation.leave(self)
        if self._advancing.acquire(blocking=False):
            try:
                self._pieces.close()
            finally:
                self._advancing.release()
        self.finish_reason = self.finish_reason or "interrupted"

    def _run(self) -> Generator[str, None, None]:
        compiled = compile_seconds()
        try:
            for piece in self._decode():
                self.timings.compile_seconds = compile_seconds() - compiled
                if piece:
                    yield piece
        except ClosedError:
            return
        finally:
            self.finish_reason = self.finish_reason or "interrupted"
            self._conversation.leave(self)

    def _decode(self) -> Iterator[str]:
        if self.finish_reason is not None:  # no token is wanted, but the prompt is looked at
            with self._conversation.turn(self):
                self._prefill()
        start = clock()
        while self.finish_reason is None:
            try:
                token = self._next_token()
            except ContextFullError:
                if not self.tokens:
                    raise
                yield self.end("context")
                raise ContextFullError(
                    f"the context of {self._conversation.engine.n_ctx} tokens is full: {self._n_prompt} of the prompt "
                    f"and {len(self.tokens)} of the reply"
                ) from None
            if not self.tokens:
                start = clock()
            shown = self.add(token)
            self._count(start)
            yield shown
            start = clock()

    def _next_token(self) -> int:
        """Choose a token after those of the history, and append it to them."""
        with self._conversation.turn(self) as kept:
            token = self._step() if kept else self._begin()
        self._history.append(token)
        return token

    def _begin(self) -> int:
        """The token after a sequence that holds anything."""
        logits = self._prefill()
        k = getattr(self._sampler, "device_k", None)
        self._device_k = k if len(logits) <= self._n_known and self._conversation.device.finds(k) else None
        return self._sampler(self._known(logits), self._history)

    def _step(self) -> int:
        """The token after a sequence that holds all of the history but its last token."""
        conversation, k = self._conversation, self._device_k
        feed = Feed(conversation.sequence, self._history[-1:])
        if k is None:
            return self._sampler(self._known(conversation.engine.step([feed])[0]), self._history)
        if k == 1:
            return conversation.greedy(feed)
        (ids,), (logits,) = conversation.device.candidates([feed], k)
        order = np.argsort(ids)
        return int(ids[order][self._sampler(logits[order], self._history)])

    def _count(self, start: float) -> None:
        """Add to the timings what was generated since `start`."""
        if len(self.tokens) > 1:
            self.timings.decode_seconds += clock() - start
        self.timings.generated_tokens = len(self.tokens)

    def _known(self, logits: F32) -> F32:
        """Logits without those of rows that pad the embedding: no token is theirs."""
        return logits[: self._n_known]

    def _prefill(self) -> F32:
        """Bring the sequence to the history, keeping what they share, and give the logits after its last token."""
        engine, sequence, wanted = self._conversation.engine, self._conversation.sequence, self._history
        held = sequence.tokens
        shared = 0
        while shared < min(len(held), len(wanted) - 1) and held[shared] == wanted[shared]:
            shared += 1
        engine.pool.shrink(sequence, shared)
        shared = len(sequence)
        start = clock()
        logits = engine.prefill(sequence, wanted[shared:])
        if not self.tokens:
            self.timings.cached_tokens = shared
            self.timings.prefill_seconds = clock() - start
        return logits
