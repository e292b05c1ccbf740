"""A generation: the loop from a prompt's tokens to a reply's text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from weakref import finalize

from octavo.errors import ContextFullError, OctavoError, UsageError
from octavo.jit.clock import clock, compile_seconds
from octavo.runtime.conversation import Conversation
from octavo.runtime.output.reply import Reply
from octavo.runtime.sampling.sampler import Sampler
from octavo.runtime.scheduler.constraint import Constraint
from octavo.runtime.scheduler.request import Request
from octavo.text import Tokenizer

EXECUTING = "generator already executing"
"""What Python says of a generator that another thread is in."""


@dataclass
class Timings:
    """Where the time went. `cached_tokens` of the prompt were in the KV cache already and cost nothing.

    `compile_seconds` went to kernels that were compiled on the way, for the first time; no other seconds have them in.
    Of `drafted_tokens`, which steps verified, `accepted_tokens` are the reply's.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    generated_tokens: int = 0
    decode_seconds: float = 0.0
    compile_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one (which the prefill gives)."""
        return (self.generated_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0


class Generation(Reply):
    """A reply in the making: iterate over it for pieces of text, once, or take `text`. `str` of it is `text`.

    text           the whole reply: what is missing is generated first
    text_so_far    all pieces so far
    tokens         ids generated so far, an end token included
    logprobs       how likely each of them was, where `logprobs` asked for that
    finish_reason  why it ended; None before that
    timings        counts and seconds so far

    Several may be under way, see `Conversation`. One can be handed from thread to thread, but is iterated over by one
    at a time.
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
        constraint: Constraint | None = None,
        goes_on: bool = False,
        logprobs: int | None = None,
    ) -> None:
        super().__init__(tokenizer, stop, max_tokens, stop_ids, prompt if goes_on else ())
        self.timings = Timings(prompt_tokens=len(prompt))
        most = max_tokens or (None if max_tokens is None else 1)  # of 0 tokens, the prompt is looked at
        self._conversation = conversation
        self._request = Request(prompt, sampler, most, self.stop_ids, constraint=constraint, logprobs=logprobs)
        self._pieces = self._run()
        self._failure: OctavoError | None = None
        finalize(self, conversation.leave, self._request).atexit = False

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
        except Exception:
            raise
        except BaseException:  # a loop was left early, or interrupted
            self.close()
            raise

    async def __aiter__(self) -> AsyncIterator[str]:
        """Pieces, each waited for in a thread of asyncio's own, so that its loop goes on meanwhile."""
        from asyncio import to_thread

        try:
            while (piece := await to_thread(next, self, None)) is not None:
                yield piece
        finally:
            self.close()

    def __next__(self) -> str:
        try:
            if self._failure is not None:
                raise self._failure
            return next(self._pieces)
        except OctavoError as error:
            self._failure = error  # whoever asks again is told again
            raise
        except ValueError as error:
            if str(error) != EXECUTING:
                raise
            raise UsageError("another thread is already iterating over this generation") from None
        except Exception:
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the generation. In another thread that is in the middle of it, this ends it after the next token."""
        self._conversation.leave(self._request)
        with suppress(ValueError):  # EXECUTING
            self._pieces.close()
        self.finish_reason = self.finish_reason or "interrupted"

    def _run(self) -> Generator[str, None, None]:
        try:
            compiled = compile_seconds()
            for piece in self._decode():
                self.timings.compile_seconds = compile_seconds() - compiled
                if piece:
                    yield piece
        finally:
            self.finish_reason = self.finish_reason or "interrupted"
            self._request.cancelled = True  # whatever comes in between now
            self._conversation.leave(self._request)

    def _decode(self) -> Iterator[str]:
        request, start, wants_none = self._request, clock(), self.finish_reason is not None
        for n in count(1):
            has_one = self._conversation.ask(request, n)
            if not has_one and request.failure is not None:
                raise request.failure
            if not self.tokens:
                self.timings.cached_tokens, self.timings.prefill_seconds = request.cached, clock() - start
                start = clock()
            if wants_none or (not has_one and request.cancelled):
                return
            found = request.found[n - 1 : n]
            shown = self.add(request.tokens[len(request.prompt) + n - 1], *found) if has_one else ""
            reason = None if request.failure is not None else request.finish_reason
            if self.finish_reason is None and reason is not None and request.num_output_tokens <= n:
                shown += self.end(reason)
            self._count(start)
            yield shown
            if self.finish_reason == "context":
                raise ContextFullError(
                    f"the context of {self._conversation.core.engine.n_ctx} tokens is full: "
                    f"{len(request.prompt)} of the prompt and {len(self.tokens)} of the reply"
                )
            if self.finish_reason is not None:
                return
            start = clock()

    def _count(self, start: float) -> None:
        """Add to the timings what was generated since `start`."""
        self.timings.generated_tokens = n = len(self.tokens)
        drafts = self._request.drafts
        self.timings.drafted_tokens, self.timings.accepted_tokens = drafts.drafted, drafts.accepted
        if n > 1:
            self.timings.decode_seconds += clock() - start
