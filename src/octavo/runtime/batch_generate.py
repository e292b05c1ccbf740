"""Several prompts at once: replies, each of which is a request of an EngineCore, whole or as they come."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from octavo.errors import UsageError
from octavo.runtime.conversation import Asker, Conversation
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.thread import Pieces
from octavo.runtime.generation import EXECUTING
from octavo.runtime.output.reply import Reply
from octavo.runtime.sampling.sampler import Sampler
from octavo.runtime.scheduler.constraint import Constraint
from octavo.runtime.scheduler.request import Request


@dataclass(eq=False)
class BatchRow:
    """A prompt, how to choose the tokens after it, its reply, and what that may be; `logprobs` is Request's."""

    prompt: Sequence[int]
    sampler: Sampler
    reply: Reply
    constraint: Constraint | None = None
    logprobs: int | None = None

    def request(self) -> Request:
        reply = self.reply
        return Request(
            self.prompt, self.sampler, reply.max_tokens, reply.stop_ids,
            constraint=self.constraint, logprobs=self.logprobs,
        )


def fill(conversation: Conversation, rows: Iterable[BatchRow]) -> None:
    """Bring all replies to their ends, as many at a time as the engine takes; it is for nobody else meanwhile.

    A reply for which the context is too small ends with "context". Raises what `EngineCore.add` raises, and what makes
    a request fail.
    """
    conversation.core.engine.thread.finish(_steps(conversation, rows), alone=True)


def _steps(conversation: Conversation, rows: Iterable[BatchRow]) -> Pieces[None]:
    core, replies = conversation.core, dict[Request, Reply]()
    try:
        for row in rows:
            if row.reply.finish_reason is None:
                request = row.request()
                core.add(request)
                replies[request] = row.reply
        while replies:
            for request in dict.fromkeys(output.request for output in conversation.step()):
                if request in replies:
                    _read(core, request, replies)
            yield
    finally:
        for request in replies:
            core.cancel(request)
        core.scheduler.drop_cancelled()


class Stream(Iterator[tuple[int, str]]):
    """Pieces of several replies as they come, each with its place among the prompts; `replies` are all of them.

    It is iterated over by one thread at a time, once. `close` ends replies that are under way, as dropping it does.
    """

    def __init__(self, conversation: Conversation, rows: Sequence[BatchRow]) -> None:
        self.replies = [row.reply for row in rows]
        self._pieces = _pieces(conversation, rows)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, str]:
        try:
            return next(self._pieces)
        except ValueError as error:
            if str(error) != EXECUTING:
                raise
            raise UsageError("another thread is already iterating over these replies") from None

    def close(self) -> None:
        """End the replies. It is for the thread that iterates over them."""
        self._pieces.close()


def _pieces(conversation: Conversation, rows: Sequence[BatchRow]) -> Generator[tuple[int, str], None, None]:
    """Places of rows, each with text that came for it. Other threads may have steps between."""
    places = {row.request(): i for i, row in enumerate(rows) if row.reply.finish_reason is None}
    replies, asked = {request: rows[i].reply for request, i in places.items()}, Asker()
    try:
        while replies:
            conversation.ask_any(list(replies), asked, lambda: any(_has_more(r, replies[r]) for r in replies))
            for request in [request for request, reply in replies.items() if _has_more(request, reply)]:
                if text := _read(conversation.core, request, replies):
                    yield places[request], text
    finally:
        for request, reply in replies.items():
            conversation.leave(request)
            reply.finish_reason = reply.finish_reason or "interrupted"


def _has_more(request: Request, reply: Reply) -> bool:
    return request.num_shown > len(reply.tokens) or request.finish_reason is not None


def _read(core: EngineCore, request: Request, replies: dict[Request, Reply]) -> str:
    """What came for a reply, added to it, as text; one that has ended is left out of `replies`."""
    if request.failure is not None:
        raise request.failure
    reply, shown = replies[request], ""
    for n in range(len(reply.tokens), request.num_shown):
        if reply.finish_reason is None:
            shown += reply.add(request.tokens[len(request.prompt) + n], *request.found[n : n + 1])
    if reply.finish_reason is None and request.finish_reason is not None:
        shown += reply.end(request.finish_reason)
    if reply.finish_reason is not None:
        core.cancel(request)
        del replies[request]
    return shown
