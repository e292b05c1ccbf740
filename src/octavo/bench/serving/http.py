"""A client of HTTP/1.1 that notes when bytes arrive: one request on one connection.

asyncio's protocols and a parser rather than a library: a client that shares the machine with the server it measures has
to be light.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from httptools import HttpParserCallbackError, HttpParserError, HttpResponseParser

from octavo.errors import BackendError, UsageError

MOST_HEAD = 1 << 16
"""Bytes of a status line and headers."""


class ReplyError(BackendError):
    """A server that can't be reached, or whose answer breaks HTTP's rules."""


@dataclass(frozen=True)
class Address:
    """Where a server is: `path` comes before each route's own, `key` goes with each request."""

    host: str
    port: int
    secure: bool = False
    path: str = ""
    key: str | None = None

    @property
    def url(self) -> str:
        """As a user would write it."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}{self.path}"


def address(url: str, key: str | None = None) -> Address:
    """The server of `http://host:port`, with or without a `/v1` at its end. Raises UsageError for other URLs."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise UsageError(
            f"{url!r} is not the URL of a server (allowed: http://HOST:PORT or https://HOST, with a path or without)"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    secure = parts.scheme == "https"
    return Address(parts.hostname, port or (443 if secure else 80), secure, path, key)


def request_bytes(to: Address, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    """A request as it goes out; the connection ends with its answer."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {to.path}{path} HTTP/1.1", f"Host: {to.host}:{to.port}", "Connection: close"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    if to.key is not None:
        lines.append(f"Authorization: Bearer {to.key}")
    return "\r\n".join([*lines, "", ""]).encode() + data


class Exchange(asyncio.Protocol):
    """The answer to one request: `status` and `headers`, and each part of the body as it arrives, to `take`."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.status, self.headers = 0, dict[str, str]()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits for it
        self.on_body, self._head = take, 0
        self._parser = HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        self._head += 0 if self.status else len(data)
        try:
            self._parser.feed_data(data)
            if not self.status and self._head > MOST_HEAD:
                raise ReplyError(f"the answer's headers are longer than {MOST_HEAD} bytes")
        except HttpParserCallbackError as error:
            self.done.set_exception(error.__context__ or error)
        except HttpParserError as error:
            self.done.set_exception(ReplyError(f"the answer is not HTTP/1.1: {error}"))
        except ReplyError as error:
            self.done.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if self.status and error is None and not self.headers.keys() & {"content-length", "transfer-encoding"}:
            self.done.set_result(None)
        else:
            self.done.set_exception(ReplyError(f"the connection ended before the answer: {error or 'closed'}"))


async def exchange(
    to: Address, data: bytes, take: Callable[[bytes], None], sent: Callable[[], None] = lambda: None
) -> Exchange:
    """Send one request and wait for the end of its answer; `sent` is called when it is written.

    Raises ReplyError. A task that is cancelled here closes the connection.
    """
    loop = asyncio.get_running_loop()
    tls = ssl.create_default_context() if to.secure else None
    try:
        transport, protocol = await loop.create_connection(lambda: Exchange(take), to.host, to.port, ssl=tls)
    except OSError as error:
        raise ReplyError(f"{to.url} can't be reached: {error.strerror or error}") from None
    try:
        sent()
        transport.write(data)
        await protocol.done
    finally:
        transport.abort()
    return protocol


async def get_json(to: Address, path: str) -> tuple[Any, Exchange]:
    """What a GET of `path` answers, as JSON, and the exchange. Raises ReplyError for any status but 200."""
    parts: list[bytes] = []
    done = await exchange(to, request_bytes(to, "GET", path), parts.append)
    text = b"".join(parts)
    if done.status != 200:
        raise ReplyError(f"{to.url}{path} answered {done.status}: {text[:200].decode(errors='replace')}")
    try:
        return json.loads(text), done
    except ValueError:
        raise ReplyError(f"{to.url}{path} answered {text[:80]!r} (allowed: JSON)") from None
