"""EngineClient: the front's end of an engine. Requests in, rows of tokens out; it runs on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Literal, Self

from octavo.errors import OctavoError, UsageError
from octavo.runtime.engine.stats import Stats
from octavo.server.engine.engine_protocol import (
    AdapterInfo,
    AdaptersLoaded,
    Add,
    Asks,
    Cancel,
    Embed,
    EngineOutput,
    Failed,
    Go,
    Info,
    LoadAdapter,
    Loading,
    Ready,
    Score,
    Scored,
    SlotAction,
    SlotDone,
    SlotKind,
    StepOutputs,
    ToEngine,
    ToFront,
    UnloadAdapter,
    Vectors,
)

Answer = Scored | Vectors | SlotDone | AdaptersLoaded
State = Literal["loading", "ready", "dead"]
NO_STATS = Stats(*[0] * 10)


class EngineDiedError(OctavoError):
    """The engine ended while a request was under way."""


class EngineFailedError(OctavoError):
    """What the engine said of a request that it can't compute; `kind` is the name of its error."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class EngineStream:
    """Rows of some replies as steps bring them: an asynchronous iterator of lists, which ends with the last reply.

    Rows that come while nobody waits are one list. `wake` gives an empty one.
    """

    __slots__ = ("_client", "_rows", "_waiter", "closed", "failure", "left")

    def __init__(self, client: EngineClient, ids: Sequence[int]) -> None:
        self._client = client
        self.left = set(ids)
        self.closed = False
        self.failure: Exception | None = None
        self._rows: list[EngineOutput] = []
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[EngineOutput]:
        if not self._rows:
            if self.failure is not None:
                raise self.failure
            if self.closed or not self.left:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
            if self.failure is not None and not self._rows:
                raise self.failure
            if self.closed:
                raise StopAsyncIteration
        rows, self._rows = self._rows, []
        return rows

    def push(self, row: EngineOutput) -> None:
        self._rows.append(row)
        if row.finish is not None:
            self.left.discard(row.id)
        self.wake()

    def fail(self, error: Exception) -> None:
        """Raise an error once the rows that are there are taken."""
        self.failure = error
        self.left.clear()
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def drop(self, one: int) -> None:
        """Cancel a reply."""
        if one in self.left:
            self.left.discard(one)
            self._client.cancel([one])

    def close(self) -> None:
        """Cancel all that are left."""
        self.closed = True
        if self.left:
            self._client.cancel(list(self.left))
            self.left.clear()
        self.wake()


class EngineClient:
    """Sends requests to an engine, and gives each of them what comes back. Subclasses know where the engine is.

    state     "loading", "ready" or "dead"; `failure` says why it is dead, `wrong_argument` which argument is wrong
    info      what is loaded; None before the first time that it is
    adapters  that requests may choose now
    answers   there was a sign of life lately
    stalled   replies are under way, and no step ended for long
    stats     the engine's counts after its last step; none of an engine that has ended
    restarts  times that the engine was started again
    on_load   is told what the engine needs, and may then `go`, and how far its model is
    """

    def __init__(self) -> None:
        self.state: State = "loading"
        self.failure: str | None = None
        self.wrong_argument: str | None = None
        self.info: Info | None = None
        self.adapters: list[AdapterInfo] = []
        self.answers, self.stalled = True, False
        self.stats = NO_STATS
        self.restarts = 0
        self.on_step: Callable[[StepOutputs], None] = lambda step: None
        self.on_load: Callable[[Asks | Loading], None] = lambda message: None
        self._ids = count(1)
        self._streams: dict[int, EngineStream] = {}
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._changed = asyncio.Event()

    @property
    def up(self) -> bool:
        """Whether there is an engine that answers and gets on."""
        return self.state == "ready" and self.answers and not self.stalled

    @property
    def under_way(self) -> int:
        """Replies that are not at their ends."""
        return len(self._streams)

    async def start(self) -> None:
        """Start the engine; `ready` waits until its model is loaded."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the engine."""
        raise NotImplementedError

    def _send(self, message: ToEngine) -> None:
        raise NotImplementedError

    async def ready(self) -> None:
        """Wait until the model is loaded. Raises EngineDiedError where it can't be, UsageError for a wrong argument."""
        while self.state == "loading":
            self._changed.clear()
            await self._changed.wait()
        if self.state == "dead":
            if self.failure and self.wrong_argument:
                raise UsageError(self.failure, argument=self.wrong_argument)
            raise EngineDiedError(self.failure or "the engine ended")

    def new_ids(self, n: int) -> list[int]:
        return [next(self._ids) for _ in range(n)]

    def submit(self, adds: Sequence[Add]) -> EngineStream:
        """Begin replies. Raises EngineDiedError where there is no engine."""
        if self.state != "ready":
            raise EngineDiedError(self.failure or "the engine is not ready")
        stream = EngineStream(self, [one for add in adds for one in add.ids])
        for add in adds:
            self._streams.update(dict.fromkeys(add.ids, stream))
            self._send(add)
        return stream

    def cancel(self, ids: list[int]) -> None:
        """End replies; nothing more comes of them."""
        for one in ids:
            self._streams.pop(one, None)
        if self.state == "ready":
            self._send(Cancel(ids))

    async def score(self, tokens: list[int], k: int) -> Scored:
        """How likely the tokens of a text are. Raises EngineFailedError, EngineDiedError. Cancelled, it ends."""
        (one,) = self.new_ids(1)
        answer = await self._ask(one, Score(one, tokens, k))
        assert isinstance(answer, Scored)
        return answer

    async def embed(
        self, texts: list[list[int]], pooling: str, *, normalize: bool, seconds: Sequence[int] = ()
    ) -> Vectors:
        """Vectors of texts, or scores, see `Embed`. Raises EngineFailedError, EngineDiedError."""
        (one,) = self.new_ids(1)
        answer = await self._ask(one, Embed(one, texts, pooling, normalize, [*seconds]))
        assert isinstance(answer, Vectors)
        return answer

    async def slot(self, action: SlotKind, tokens: list[int], salt: str, path: str) -> SlotDone:
        """Save, restore or erase a conversation, see `SlotAction`. Raises EngineFailedError, EngineDiedError."""
        (one,) = self.new_ids(1)
        answer = await self._ask(one, SlotAction(one, action, tokens, salt, path))
        assert isinstance(answer, SlotDone)
        return answer

    async def load_adapter(self, name: str, path: str) -> None:
        """Have an adapter of the engine's machine under a name. Raises EngineFailedError, EngineDiedError."""
        (one,) = self.new_ids(1)
        await self._ask(one, LoadAdapter(one, name, path))

    async def unload_adapter(self, name: str) -> None:
        """Have the engine forget an adapter. Raises EngineFailedError, EngineDiedError."""
        (one,) = self.new_ids(1)
        await self._ask(one, UnloadAdapter(one, name))

    async def _ask(self, one: int, message: ToEngine) -> Answer:
        if self.state != "ready":
            raise EngineDiedError(self.failure or "the engine is not ready")
        self._answers[one] = future = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            answer: Answer = await future
            return answer
        except asyncio.CancelledError:
            if self.state == "ready":
                self._send(Cancel([one]))
            raise
        finally:
            self._answers.pop(one, None)

    def go(self) -> None:
        """Let an engine that asks load its model."""
        self._send(Go())

    def deliver(self, message: ToFront) -> None:
        """Take a message of the engine."""
        if isinstance(message, StepOutputs):
            self._take(message)
        elif isinstance(message, Asks | Loading):
            self.on_load(message)
        elif isinstance(message, Ready):
            self.info, self.failure, self.adapters = message.info, None, message.info.adapters
            self.stats = replace(NO_STATS, empty=message.info.n_pages)
            self._set_state("ready")
        elif isinstance(message, Answer | Failed):
            self._answer(message)

    def _answer(self, message: Answer | Failed) -> None:
        if isinstance(message, AdaptersLoaded):
            self.adapters = message.adapters
        if (future := self._answers.get(message.id)) is not None and not future.done():
            if isinstance(message, Failed):
                future.set_exception(EngineFailedError(message.kind, message.message))
            else:
                future.set_result(message)

    def _take(self, step: StepOutputs) -> None:
        self.stats = step.stats
        streams = self._streams
        for row in step.outputs:
            stream = streams.get(row.id)
            if stream is not None:
                if row.finish is not None:
                    del streams[row.id]
                stream.push(row)
        self.on_step(step)

    def died(self, why: str) -> None:
        """The engine is gone, and with it all that was under way."""
        self.give_up(EngineDiedError(why))

    def give_up(self, error: Exception) -> None:
        """End everything, and take no more: waiting clients get this error."""
        self.failure, self.stats = str(error), NO_STATS
        self._set_state("dead")
        streams, self._streams = set(self._streams.values()), {}
        for stream in streams:
            stream.fail(error)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)

    def _set_state(self, state: State) -> None:
        self.state = state
        self._changed.set()
