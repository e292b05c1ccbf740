"""Connections: uvicorn's, with a time in which headers have to come and a size that they may have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from octavo.server.errors import ApiError
from octavo.server.options import Limits
from octavo.server.stream import to_json

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol

LINES = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


def connection_class(limits: Limits) -> type[asyncio.Protocol]:
    """The class of a server's connections."""

    class Connection(Protocol):
        """One of them. It counts the bytes and seconds until a request's headers are there."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app_state = {**self.app_state, "transport": transport}
            self._seen, self._tail = 0, b""
            self._timer = self.loop.call_later(limits.header_time, self._late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            if before is None or before.response_complete:
                if before is not None and not self._seen:
                    self._timer = self.loop.call_later(limits.header_time, self._late)
                end = (self._tail + data).find(b"\r\n\r\n")  # which may have begun with the last bytes
                self._seen += len(data) if end < 0 else end
                self._tail = data[-3:]
                if self._seen > limits.header:
                    self._refuse(ApiError(431, f"the headers are larger than {limits.header} bytes"))
                    return
            super().data_received(data)
            if self.cycle is not before:
                self._timer.cancel()
                self._seen, self._tail = 0, b""

        def _late(self) -> None:
            self._refuse(ApiError(408, f"the headers are not there after {limits.header_time:g} s"))

        def _refuse(self, error: ApiError) -> None:
            self._timer.cancel()
            if self.transport.is_closing():
                return
            body = to_json(error.body())
            self.transport.write(b"".join((
                b"HTTP/1.1 %d %b\r\n" % (error.status, LINES[error.status]),
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body), body,
            )))  # fmt: skip
            self.transport.close()

    return Connection
