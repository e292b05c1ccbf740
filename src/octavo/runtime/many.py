"""Several prompts at once: replies, each of which is a request of an EngineCore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.runtime.conversation import Conversation
from octavo.runtime.core import EngineCore
from octavo.runtime.engine_thread import Pieces
from octavo.runtime.reply import Reply
from octavo.runtime.request import Constraint, Output, Request
from octavo.runtime.sampling import Sampler


@dataclass(eq=False)
class Row:
    """A prompt, how to choose the tokens after it, its reply, and what that may be."""

    prompt: Sequence[int]
    sampler: Sampler
    reply: Reply
    constraint: Constraint | None = None


def fill(conversation: Conversation, rows: Iterable[Row]) -> None:
    """Bring all replies to their ends, as many at a time as the engine takes; it is for nobody else meanwhile.

    A reply for which the context is too small ends with "context". Raises what `EngineCore.add` raises, and what makes
    a request fail.
    """
    conversation.core.engine.thread.finish(_steps(conversation, rows), alone=True)


def _steps(conversation: Conversation, rows: Iterable[Row]) -> Pieces[None]:
    core, replies = conversation.core, dict[Request, Reply]()
    try:
        for row in rows:
            if row.reply.finish_reason is None:
                request = Request(row.prompt, row.sampler, constraint=row.constraint)
                core.add(request)
                replies[request] = row.reply
        while replies:
            for output in conversation.step():
                _take(core, output, replies)
            yield
    finally:
        for request in replies:
            core.cancel(request)
        core.scheduler.drop_cancelled()


def _take(core: EngineCore, output: Output, replies: dict[Request, Reply]) -> None:
    """Add what a step brought to a reply, and leave out the replies that it ends."""
    request = output.request
    if request not in replies:
        return
    if request.failure is not None:
        raise request.failure
    reply = replies[request]
    if output.token is not None:
        reply.add(output.token)
    if reply.finish_reason is None and output.finish_reason is not None:
        reply.end(output.finish_reason)
    if reply.finish_reason is not None:
        core.cancel(request)
        del replies[request]
