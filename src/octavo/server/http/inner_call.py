"""Requests that the server asks of its own application: lines of batches, responses in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

log = logging.getLogger("octavo")
HOST = [(b"host", b"localhost"), (b"content-type", b"application/json")]


@dataclass(frozen=True)
class Answer:
    """An answer as the server gives it: `body` is JSON."""

    status: int
    request_id: str
    body: bytes


async def asked(
    app: ASGIApp, url: str, body: bytes, request_id: str, *, key: str = "",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Answer:
    """What an application answers to a POST; `key` is what `AccessGuard` would have found. Cancelled, it is left."""
    given = iter([body])
    status, parts = 0, list[bytes]()

    async def receive() -> Message:
        for data in given:
            return {"type": "http.request", "body": data, "more_body": False}
        await asyncio.get_running_loop().create_future()  # the client does not leave
        raise AssertionError("nothing sets it")

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": url, "raw_path": url.encode(), "query_string": b"", "root_path": "", "client": None, "server": None,
        "headers": [*HOST, *headers, (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id.encode())],
        "state": {"id": request_id, "key": key},
    }
    try:
        await app(scope, receive, send)
    except Exception:  # Starlette raises what it has answered with 500
        if not status:
            raise
        log.warning("request %s failed", request_id, exc_info=True)
    return Answer(status, request_id, b"".join(parts))
