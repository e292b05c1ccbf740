"""A client of HTTP/1.1 that notes when bytes arrive: one request on one connection.

asyncio's protocols rather than a library: a client that shares the machine with the server it measures has to be light.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

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
        self._take, self._buffer = take, bytearray()
        self._left: int | None = None  # bytes of the body or of the chunk; None: until the connection ends
        self._chunked = False

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        try:
            self._buffer += data
            if self.status or self._head():
                self._body()
        except Exception as error:
            self.done.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if self.status and self._left is None and not self._chunked and error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(ReplyError(f"the connection ended before the answer: {error or 'closed'}"))

    def _head(self) -> bool:
        """Take the status and the headers off the buffer; whether they were all there."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MOST_HEAD:
                raise ReplyError(f"the answer's headers are longer than {MOST_HEAD} bytes")
            return False
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ReplyError(f"the response begins with {first[:80]!r} (allowed: HTTP/1.1 and a status)")
        self.status = int(rest[:3])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        self._left = 0 if self._chunked else None if length is None else int(length)
        return True

    def _body(self) -> None:
        if self._chunked:
            self._chunks()
        elif self._left is None:
            self._pass_on(len(self._buffer))
        else:
            self._left -= self._pass_on(min(self._left, len(self._buffer)))
            if not self._left:
                self.done.set_result(None)

    def _chunks(self) -> None:
        """Pass on what is there of each chunk: its size in hexadecimal, a line end, its bytes, a line end."""
        while self._buffer:
            if self._left:
                self._left -= self._pass_on(min(self._left, len(self._buffer)))
                continue
            if self._buffer.startswith(b"\r\n"):
                del self._buffer[:2]
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return
            size = bytes(self._buffer[:end]).partition(b";")[0]
            del self._buffer[: end + 2]
            try:
                self._left = int(size, 16)
            except ValueError:
                raise ReplyError(f"a chunk's size is {size[:40]!r} (allowed: hexadecimal digits)") from None
            if not self._left:
                self.done.set_result(None)
                return

    def _pass_on(self, n: int) -> int:
        if n:
            self._take(bytes(self._buffer[:n]))
            del self._buffer[:n]
        return n


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
