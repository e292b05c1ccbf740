"""What happens to models, told to all who listen: server-sent events of /models/sse, as llama-server has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.http.sse import HEADERS, PING, event, to_json, until_left

MOST_UNREAD = 1000
"""Events that wait for a listener, after which its stream ends."""


class Events:
    """Tells listeners."""

    def __init__(self) -> None:
        self._listeners = set[asyncio.Queue[bytes]]()

    def tell(self, model: str, what: str, data: Any = None) -> None:
        """Tell that something happened to a model; "*" for all of them."""
        told = {"model": model, "event": what} | ({} if data is None else {"data": data})
        line = event(to_json(told))
        for queue in list(self._listeners):
            if queue.full():
                self._listeners.discard(queue)
            else:
                queue.put_nowait(line)

    async def lines(self, ping_s: float) -> AsyncGenerator[bytes, None]:
        """Events from now on, and a comment where there is none for a while."""
        queue = asyncio.Queue[bytes](MOST_UNREAD)
        self._listeners.add(queue)
        try:
            yield PING
            while queue in self._listeners or not queue.empty():
                try:
                    async with asyncio.timeout(ping_s):
                        yield await queue.get()
                except TimeoutError:
                    yield PING
        finally:
            self._listeners.discard(queue)


class LinesResponse(Response):
    """What is told bit by bit as a response, until its client leaves."""

    def __init__(self, lines: AsyncGenerator[bytes, None], head: list[tuple[bytes, bytes]] = HEADERS) -> None:
        self._lines, self._head, self.background = lines, head, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self._head})
            async with aclosing(self._lines) as lines:
                async for line in lines:
                    await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        writing, left = asyncio.ensure_future(write()), asyncio.ensure_future(until_left(receive))
        try:
            await asyncio.wait([writing, left], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (writing, left):
                one.cancel()
            await asyncio.gather(writing, left, return_exceptions=True)
