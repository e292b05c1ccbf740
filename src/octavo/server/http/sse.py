"""Server-sent events and lines of JSON: replies as they come, for as long as the client reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.generation.handle import CompletionOutput, RequestHandle
from octavo.server.generation.handover import COMPLETE, LOST, comment
from octavo.server.http.api_errors import ApiError, api_error
from octavo.server.serve_options import Limits

log = logging.getLogger("octavo")
UNAVAILABLE = 503
to_json = msgspec.json.Encoder().encode
PING = b": ping\n\n"
LINES, IDLE_LINE = b"application/x-ndjson", b" "
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Renderer(Protocol):
    """How a route writes replies: bytes of server-sent events."""

    def begin(self) -> bytes:
        """What comes first; it is called before all else."""

    def events(self, outputs: list[CompletionOutput]) -> bytes:
        """Events for these outputs; b"" for none."""

    def end(self) -> bytes:
        """What comes last."""

    def error(self, error: ApiError) -> bytes:
        """What comes last where a reply failed."""

    def whole(self, found: Sequence[Sequence[CompletionOutput]]) -> Any:
        """The answer without a stream, once each reply has all its outputs."""


@asynccontextmanager
async def given_up_when_left(receive: Receive, handle: RequestHandle) -> AsyncIterator[None]:
    """Close a request's handle at the end, or as soon as its client is gone."""
    left = asyncio.get_running_loop().create_task(_close_when_left(receive, handle))
    try:
        yield
    finally:
        handle.close()
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left


async def until_left(receive: Receive) -> None:
    """Wait until a client, whose request is there as a whole, is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _close_when_left(receive: Receive, handle: RequestHandle) -> None:
    await until_left(receive)
    handle.close()


class StreamWatch:
    """Sends comments on streams that have nothing to send."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.streams = limits, set[EventStream]()
        self._task: asyncio.Task[None] | None = None

    def add(self, stream: EventStream) -> None:
        self.streams.add(stream)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """As often as is needed, until there is no stream left."""
        while self.streams:
            await asyncio.sleep(self.limits.ping / 4)
            now = monotonic()
            for stream in list(self.streams):
                if not stream.writing and now - stream.wrote_at >= self.limits.ping:
                    stream.handle.stream.wake()


class EventStream(Response):
    """A request's events as a response. Its status is known once there is a first token, or a comment is due.

    writing   a write is under way
    wrote_at  when the last one ended
    """

    head, idle = HEADERS, PING

    def __init__(self, handle: RequestHandle, renderer: Renderer, watch: StreamWatch) -> None:
        self.handle, self.renderer, self.watch = handle, renderer, watch
        self.background = None
        self.writing = False
        self.wrote_at = monotonic()

    def ping(self) -> None:
        """Write a comment now."""
        self.wrote_at = float("-inf")
        self.handle.stream.wake()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (probes := scope.get("state", {}).get("probes")) is not None:
            probes[:] = [self.ping]
        async with given_up_when_left(receive, self.handle):
            self.watch.add(self)
            try:
                await self._send_all(send)
            finally:
                self.watch.streams.discard(self)

    async def _send_all(self, send: Send) -> None:
        handle, renderer, begun = self.handle, self.renderer, False
        head: bytes | None = None  # what comes first, made before the first events are written
        told = handle.handover is not None  # to a front
        try:
            if handle.handover is not None and handle.handover.begun:  # the client has the head, and these events
                renderer.begin()
                for output in handle.replayed():
                    renderer.events([output])
                head = b""
            async for outputs in handle:
                parts = []
                for some in ([one] for one in outputs) if told else [[*outputs]]:
                    head = renderer.begin() if head is None else head
                    parts.append(renderer.events(some))
                data = b"".join(parts)
                due = monotonic() - self.wrote_at >= self.watch.limits.ping
                if not data and not due and not handle.rows:  # rows are told at once, so that none is computed again
                    continue
                if not begun:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.head})
                    head = renderer.begin() if head is None else head
                    data = head + data
                data = data or (self.idle if due else b"")
                if told:
                    data, handle.rows = data + comment(handle.rows), []
                await self._write(send, data)
            head = renderer.begin() if head is None else head
            last = renderer.end()
        except Exception as error:
            if not begun:
                raise
            if not isinstance(error, ApiError):
                log.warning("a stream ended: %s", error)
            one = api_error(error)
            last = LOST if told and one.status == UNAVAILABLE else renderer.error(one)
        if handle.stream.closed:
            return
        if told and last is not LOST:
            last += COMPLETE
        if not begun:
            assert head is not None
            await send({"type": "http.response.start", "status": 200, "headers": self.head})
            last = head + last
        await self._write(send, last, more=False)

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self.writing = True
        await send({"type": "http.response.body", "body": data, "more_body": more})
        self.writing, self.wrote_at = False, monotonic()


class LineStream(EventStream):
    """The same of lines, an object of JSON each. Where there is nothing to send comes a space before the next line."""

    head = [(b"content-type", LINES), *HEADERS[1:]]  # noqa: RUF012 (nobody changes it)
    idle = IDLE_LINE


def event(body: bytes) -> bytes:
    """A server-sent event of one line."""
    return b"data: " + body + b"\n\n"


def named_event(name: str, body: bytes) -> bytes:
    """A server-sent event that has a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), body)


DONE = event(b"[DONE]")
