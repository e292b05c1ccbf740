"""Connections: uvicorn's, with a time in which headers have to come and a size that they may have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from octavo.server.errors import ApiError
from octavo.server.options import Limits
from octavo.server.stream import to_json

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
else:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol

LINES = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


COUNTS_BODIES = hasattr(Protocol, "on_body")
"""Whether bodies are told from what follows them. h11 does not, and has a limit of its own for all but bodies."""


def connection_class(limits: Limits) -> type[asyncio.Protocol]:
    """The class of a server's connections."""
    return type("Connection", (Connection,), {"limits": limits})


class Connection(Protocol):
    """A connection that counts the bytes and seconds until a request's headers are there.

    While a request is under way, what comes is its body, what follows that, or the headers of the next one. Of all
    but the body it takes no more than of headers.
    """

    limits: Limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}
        self._header_bytes, self._tail = 0, b""
        self._bytes_after_body = 0
        self._earlier: list[RequestResponseCycle] = []
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        for cycle in self._earlier:  # uvicorn tells the last one only
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if before is None or before.response_complete:
            if before is not None and not self._header_bytes:
                self._start_timer()
            if not self._takes_headers(data):
                self._refuse(self._too_large())
                return
        else:
            self._bytes_after_body += len(data)
        super().data_received(data)
        if self._bytes_after_body > self.limits.header and COUNTS_BODIES:
            self._refuse(self._too_large())
        if self.cycle is not before:  # headers were complete, and a request began
            self._timer.cancel()
            self._header_bytes, self._tail = 0, b""

    def on_headers_complete(self) -> None:
        before, self._bytes_after_body = self.cycle, 0
        super().on_headers_complete()  # type: ignore[misc]
        self._earlier = [cycle for cycle in self._earlier if not cycle.response_complete]
        if before is not None and not before.response_complete:
            self._earlier.append(before)

    def on_body(self, body: bytes) -> None:
        self._bytes_after_body = 0
        super().on_body(body)  # type: ignore[misc]

    def _takes_headers(self, data: bytes) -> bool:
        """Count bytes of headers; whether these are within the limit."""
        end = (self._tail + data).find(b"\r\n\r\n")  # which may have begun with the last bytes
        self._header_bytes += len(data) if end < 0 else end
        self._tail = data[-3:]
        return self._header_bytes <= self.limits.header

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_time, self._refuse_late)

    def _refuse_late(self) -> None:
        self._refuse(ApiError(408, f"the headers are not there after {self.limits.header_time:g} s"))

    def _too_large(self) -> ApiError:
        return ApiError(431, f"the headers are larger than {self.limits.header} bytes")

    def _refuse(self, error: ApiError) -> None:
        self._timer.cancel()
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()  # in the middle of a response nothing else can be said
            return
        body = to_json(error.body())
        self.transport.write(b"".join((
            b"HTTP/1.1 %d %b\r\n" % (error.status, LINES[error.status]),
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body), body,
        )))  # fmt: skip
        self.transport.close()
