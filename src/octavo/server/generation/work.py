"""Work: a Job under way. What its replies bring, step by step, in a form that every route can write down."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Self

from octavo.server.engine.protocol import Add, Begun, Likely, Progress, Row
from octavo.server.generation.job import Job
from octavo.server.generation.output_parser import Delta, Detail
from octavo.server.generation.service import Service
from octavo.server.http.errors import bad, of_kind

ENDS = {"stop": "stop", "length": "length", "context": "length", "interrupted": "stop"}
"""What clients know the ends of replies as."""


MOST_WHOLE = 1 << 20
"""Tokens of an answer that is no stream, with those that were likely in their places: each takes half a kilobyte."""


def require_whole(values: int) -> None:
    """Raises ApiError for more tokens, and likely ones in their places, than an answer may have at once."""
    if values > MOST_WHOLE:
        raise bad(f"the answer has more than {MOST_WHOLE} tokens and likely tokens in their places (allowed: a stream)")


@dataclass(slots=True)
class Event:
    """What came of a reply: pieces of it, tokens with how likely they were, and why it ended if it did.

    A token that ends it is among its tokens, and in no piece.
    """

    choice: int
    deltas: list[Delta] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    likely: list[Likely] = field(default_factory=list)
    finish: str | None = None
    progress: list[Progress] = field(default_factory=list)


@dataclass(slots=True)
class Choice:
    """A reply so far.

    end      why the engine ended it: "stop", "length" or "context"
    stopped  the stop string that did
    ended    the token that did
    drafted  tokens of its drafts, and how many of them were right; None where there were none
    """

    detail: Detail
    n_prompt: int
    tokens: int = 0
    reasoning_tokens: int = 0
    called: bool = False
    finish: str | None = None
    end: str | None = None
    stopped: str | None = None
    ended: int | None = None
    begun: Begun | None = None
    drafted: tuple[int, int] | None = None
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def seconds(self) -> float:
        """From its first token to its last."""
        return self.last_at - self.first_at


class Work:
    """The replies of a Job: an asynchronous iterator of lists of Events, which may be empty.

    failure  what ended them early, if anything did

    Whoever begins one has to `close` it, also where it came to its end. Raises ApiError where there is no room, and
    from the iteration where a reply fails.
    """

    def __init__(self, service: Service, job: Job) -> None:
        self.service, self.job = service, job
        self._room = len(job.prompts) * job.n, sum(map(len, job.prompts))
        service.admit(*self._room)
        try:
            self.started = monotonic()
            self.choices = [Choice(job.detail(service, p), len(p)) for p in job.prompts for _ in range(job.n)]
            ids = service.client.new_ids(len(self.choices))
            self._ids = ids
            adds = [
                Add(ids[i * job.n : (i + 1) * job.n], prompt, job.sampling, (job.seed + i * job.n) % (1 << 64),
                    1 if job.max_tokens == 0 else job.max_tokens, job.logprobs, job.cache_salt, job.grammar,
                    job.thinking, job.after_sampling, job.progress)
                for i, prompt in enumerate(job.prompts)
            ]
            self.stream = service.client.submit(adds)
        except BaseException:
            service.leave(*self._room)
            raise
        self._stop_ids = {*service.tokenizer.stop_ids, *job.sampling.stop_token_ids}
        self._closed = False
        self.failure: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Event]:
        try:
            return self._events(await self.stream.__anext__())
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.failure = error
            raise

    def _events(self, rows: list[Row]) -> list[Event]:
        if len(rows) == 1:
            event = Event(self.stream.places[rows[0].id])
            self._take(rows[0], event)
            return [event]
        events: dict[int, Event] = {}
        for row in rows:
            i = self.stream.places[row.id]
            self._take(row, events.setdefault(i, Event(i)))
        return list(events.values())

    def _take(self, row: Row, event: Event) -> None:
        choice = self.choices[event.choice]
        if choice.finish is not None:
            return
        choice.drafted = row.drafted
        if row.error is not None:
            raise of_kind(*row.error)
        now = monotonic()
        if row.progress is not None:
            event.progress.append(row.progress)
            return
        if row.begun is not None:
            self._begin(choice, row.begun, now)
        if row.token is not None and self.job.max_tokens != 0:
            self._token(choice, row.token, row.likely, event, now)
        if choice.finish is None and row.finish is not None:
            event.deltas += choice.detail.finish(cut=row.finish != "stop")
            choice.stopped = choice.detail.stopped
            self._end(choice, "length" if self.job.max_tokens == 0 else row.finish, event)

    def _begin(self, choice: Choice, begun: Begun, now: float) -> None:
        choice.begun, choice.first_at, choice.last_at = begun, now, now
        metrics = self.service.metrics
        metrics.first.observe(now - self.started)
        metrics.queued.observe(begun.queued)
        metrics.prompt_tokens += choice.n_prompt - begun.cached
        metrics.cached_tokens += begun.cached
        metrics.prompt_seconds += begun.prompt

    def _token(self, choice: Choice, token: int, likely: Likely | None, event: Event, now: float) -> None:
        metrics = self.service.metrics
        metrics.generated_tokens += 1
        if choice.tokens:
            metrics.later_tokens += 1
            metrics.gap.observe(now - choice.last_at)
        choice.tokens += 1
        choice.last_at = now
        event.tokens.append(token)
        if likely is not None:
            event.likely.append(likely)
        if token in self._stop_ids:
            choice.ended = token
            return
        deltas = choice.detail.push((token,))
        if deltas:
            event.deltas += deltas
            choice.reasoning_tokens += bool(deltas[0].reasoning)
            choice.called = choice.called or any(delta.tool is not None for delta in deltas)
        if choice.detail.stopped is not None:
            choice.stopped = choice.detail.stopped
            self.stream.drop(self._ids[event.choice])
            self._end(choice, "stop", event)

    def _end(self, choice: Choice, reason: str, event: Event) -> None:
        choice.end = reason
        finish = ENDS[reason]
        choice.finish = event.finish = "tool_calls" if choice.called and finish == "stop" else finish
        metrics, now = self.service.metrics, monotonic()
        metrics.generated_seconds += choice.seconds
        if choice.tokens > 1:
            metrics.per_token.observe(choice.seconds / (choice.tokens - 1))
        metrics.ended(now - self.started, finish, choice.n_prompt + choice.tokens)

    def close(self) -> None:
        """Want no more, and give the room back that the replies had."""
        if not self._closed:
            self._closed = True
            self.stream.close()
            self.service.leave(*self._room)

    async def finished(self) -> list[list[Event]]:
        """Everything at once: for each reply its events. Raises ApiError for more than is kept."""
        found: list[list[Event]] = [[] for _ in self.choices]
        values = 0
        async for events in self:
            for event in events:
                found[event.choice].append(event)
                values += len(event.tokens) + sum(len(one.top) for one in event.likely)
            require_whole(values)
        return found
