"""A batch under way: replicas are kept busy with its requests, and each answer is written as it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.batch.input_index import InputIndex
from octavo.batch.output_files import OutputFiles
from octavo.batch.replica import Replica, ReplicaDiedError
from octavo.batch.request_line import BatchRequest, Defaults
from octavo.server.http.inner_call import Answer

SHARES, MOST_SHARE = 4, 256
"""Parts in which each replica gets its share of what is left, and requests of a part: neighbours share a cache."""
MOST_DEATHS = 5
"""Requests after each other that end a replica: then it is not them."""


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Told(msgspec.Struct):
    usage: _Usage | None = None


_told = msgspec.json.Decoder(_Told)


@dataclass
class BatchCounts:
    """What was done in this run; `seconds` are from its first request to its last answer so far."""

    total: int
    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    began: float = field(default_factory=monotonic)
    seconds: float = 0.0

    def add(self, answer: Answer) -> None:
        self.done += 1
        self.seconds = monotonic() - self.began
        self.failed += answer.status >= 400
        usage = _told.decode(answer.body).usage if answer.status < 400 else None
        if usage is not None:
            details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
            self.prompt_tokens += usage.prompt_tokens or usage.input_tokens
            self.completion_tokens += usage.completion_tokens or usage.output_tokens
            self.cached_tokens += details.cached_tokens


class BatchRun:
    """The requests `left` of an index, in this order, for some replicas.

    A replica that dies takes the answers under way with it. Each of these requests is then asked alone: so the one that
    ends replicas is found, and no other is refused for it.
    """

    def __init__(
        self, index: InputIndex, left: NDArray[np.int64], defaults: Defaults, files: OutputFiles,
        show: Callable[[BatchCounts], None] = lambda counts: None,
    ) -> None:
        self.index, self.defaults, self.files, self.show = index, defaults, files, show
        self.counts = BatchCounts(len(left))
        self._left, self._at = left, 0

    async def run(self, replicas: Sequence[Replica]) -> BatchCounts:
        """Ask all. Raises OctavoError where no more can be asked, or an answer can't be written."""
        self.counts.began = monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for replica in replicas:
                    group.create_task(_Feed(self, replica, len(replicas)).run())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return self.counts

    def take(self, replicas: int) -> NDArray[np.int64]:
        """The next part of what is left, for one of some replicas."""
        left = len(self._left) - self._at
        share = left if replicas == 1 else min(MOST_SHARE, left // (SHARES * replicas) + 1, left)
        self._at += share
        return self._left[self._at - share : self._at]

    def write(self, request: BatchRequest, answer: Answer) -> None:
        self.files.respond(request, answer.status, answer.request_id, answer.body)
        self.counts.add(answer)
        self.show(self.counts)


class _Feed:
    """Keeps one replica busy."""

    def __init__(self, batch: BatchRun, replica: Replica, replicas: int) -> None:
        self.batch, self.replica, self.replicas = batch, replica, replicas
        self._next = self._requests()
        self._suspects = deque[BatchRequest]()
        self._suspected = set[int]()
        self._deaths = 0

    def _requests(self) -> Iterator[BatchRequest]:
        while len(part := self.batch.take(self.replicas)):
            yield from map(self.batch.index.request, map(int, part))

    async def run(self) -> None:
        """Ask until nothing is left. Cancelled, it ends what is under way."""
        under_way = dict[asyncio.Task[Answer], BatchRequest]()
        try:
            while True:
                self._begin(under_way)
                if not under_way:
                    return
                done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._end(under_way.pop(task), task)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _begin(self, under_way: dict[asyncio.Task[Answer], BatchRequest]) -> None:
        """Ask as much as there is room for; suspects one at a time, with nothing beside them."""
        if self._suspects:
            if not under_way:
                self._ask(self._suspects.popleft(), under_way)
            return
        while len(under_way) < self.replica.room and (request := next(self._next, None)) is not None:
            self._ask(request, under_way)

    def _ask(self, request: BatchRequest, under_way: dict[asyncio.Task[Answer], BatchRequest]) -> None:
        body = request.body(self.batch.defaults)
        asking = self.replica.answer(request.url, body, f"req_{request.number}")
        under_way[asyncio.ensure_future(asking)] = request

    def _end(self, request: BatchRequest, task: asyncio.Task[Answer]) -> None:
        try:
            answer = task.result()
            self._deaths = 0
        except ReplicaDiedError as error:
            if request.number not in self._suspected:
                self._suspected.add(request.number)
                self._suspects.append(request)
                return
            self._deaths += 1  # of this request alone
            if self._deaths >= MOST_DEATHS:
                raise
            answer = _ended(error, request)
        self.batch.write(request, answer)


def _ended(error: Exception, request: BatchRequest) -> Answer:
    """What is answered to a request that ends replicas."""
    told = {"message": f"the engine ended twice while it computed this request, the second time alone: {error}",
            "type": "server_error", "param": None, "code": "engine_ended"}
    return Answer(500, f"req_{request.number}", msgspec.json.encode({"error": told}))
