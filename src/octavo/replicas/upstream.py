"""Connections from the front to a replica: a request at a time, and its response as it comes, chunk by chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from time import monotonic

from httptools import HttpParserError, HttpResponseParser

from octavo.errors import OctavoError

MOST_UNREAD = 256 << 10
"""Bytes of a response that wait to be taken, before no more are read."""
IDLE_S = 30.0
"""Seconds after which a connection that is not used is not used again; a replica closes it after 75."""
CONNECT_S = 5.0


class UpstreamLostError(OctavoError):
    """A replica that can't be reached, or whose connection ended in the middle of a response."""


class UnreachableError(UpstreamLostError):
    """A replica that takes no connection, so that it can't have begun with a request."""


class Connection(asyncio.Protocol):
    """One to a replica. `status` and `headers` are those of the last response."""

    def __init__(self) -> None:
        self.status, self.headers = 0, dict[bytes, bytes]()
        self.idle_since = 0.0
        self._ended = self._lost = False
        self._chunks, self._part, self._unread = list[bytes](), list[bytes](), 0
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._ended and not self._lost and monotonic() - self.idle_since < IDLE_S

    def send(self, data: bytes) -> None:
        """Send a request; then `begun` waits for the head of the response."""
        assert self._transport is not None
        self._parser = HttpResponseParser(self)
        self.status, self.headers, self._ended = 0, {}, False
        self._transport.write(data)

    async def begun(self) -> int:
        """The status of the response. Raises UpstreamLostError."""
        while not self.status:
            await self._wait()
        return self.status

    async def chunks(self) -> AsyncGenerator[list[bytes], None]:
        """The whole chunks of the response, several where they come together. Raises UpstreamLostError."""
        while True:
            while not self._chunks and not self._ended:
                await self._wait()
            chunks, self._chunks = self._chunks, []
            if self._unread > MOST_UNREAD and self._transport is not None and not self._lost:
                self._transport.resume_reading()
            self._unread = 0
            if chunks:
                yield chunks
            elif self._ended:
                return

    async def whole(self) -> bytes:
        """The body of the response. Raises UpstreamLostError."""
        return b"".join([chunk async for chunks in self.chunks() for chunk in chunks])

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._lost:
            raise UpstreamLostError("the replica's connection ended")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._wake()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (HttpParserError, AttributeError):  # bytes that are not HTTP, or that nobody asked for
            self.abort()
            return
        if self._unread > MOST_UNREAD and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._part.append(data)
        self._unread += len(data)

    def on_chunk_complete(self) -> None:
        if self._part:
            self._chunks.append(b"".join(self._part) if len(self._part) > 1 else self._part[0])
            self._part.clear()

    def on_message_complete(self) -> None:
        self.on_chunk_complete()
        self._ended, self.idle_since = True, monotonic()


class Upstream:
    """A replica's address, and the connections that are open to it."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._idle, self._busy = list[Connection](), set[Connection]()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def take(self) -> Connection:
        """A connection for one request; `give_back` it. Raises UnreachableError."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                break
            connection.abort()
        else:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, connection = await loop.create_connection(Connection, self.host, self.port)
            except OSError as error:
                raise UnreachableError(f"a replica can't be reached: {error.strerror or error}") from None
        self._busy.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose response is at its end; close it otherwise."""
        self._busy.discard(connection)
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.abort()

    def abort(self) -> None:
        """Close all: what is under way is lost."""
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
