"""Connections: uvicorn's, within limits of time, of bytes and of their number.

Requests are read as they are answered: what follows one that is under way is held, and from some bytes on not read.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from uvicorn.protocols.http.flow_control import FlowControl

from octavo.server.generation.ids import id_headers, request_id
from octavo.server.http.api_errors import ApiError, answer_of, unavailable
from octavo.server.http.guard import HEALTH_PATHS
from octavo.server.http.sse import to_json
from octavo.server.http.trace import Trace, id_of
from octavo.server.routes.answer import json_response
from octavo.server.serve_options import Limits

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
else:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol

log = logging.getLogger("octavo")
LINES = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
HEAD_END = b"\r\n\r\n"
SLICE = 4096
"""Bytes that the parser has at a time: what begins in them is there before what is before it is answered."""
SPARE = 64
"""Connections that wait for a request, beside those with one under way, before the first of them is closed."""
LOOK_S = 0.1
"""Seconds between looks whether a client that sends no more is still there."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
COUNTS_BODIES = hasattr(Protocol, "on_body")
"""Whether bodies are told from what follows them. h11 does not, and has a limit of its own for all but bodies."""


def connection_class(limits: Limits) -> type[asyncio.Protocol]:
    """The class of a server's connections."""
    return type("Connection", (Connection,), {"limits": limits, "waiting": {}})


class _Flow(FlowControl):
    """Reads no more while it is `full`, whoever else would."""

    full = False

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class Connection(Protocol):
    """A connection that counts the bytes and seconds until a request's headers are there.

    While a request is under way, what comes is its body, or what follows that. Of all but the body it takes no more
    than of headers.

    waiting  a server's connections that have no request under way, the one that waits longest first

    The state of a request has `probes`, where a response puts a function that writes what a client passes over.
    """

    limits: Limits
    waiting: dict[Connection, None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._held = bytearray()
        self._probes: list[Callable[[], None]] = []
        self.app_state = {**self.app_state, "probes": self._probes}
        self._header_bytes, self._tail = 0, b""
        self._bytes_after_body = 0
        self._earlier: list[RequestResponseCycle] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sends_no_more = self._probed = False
        self._unread, self._read_at = 0, monotonic()
        self._looking = self.loop.call_later(self.limits.write_time / 4, self._look)
        self._start_timer()
        self.waiting[self] = None
        if len(self.connections) > self.limits.connections + SPARE:
            first = next(iter(self.waiting))
            del self.waiting[first]
            self.connections.discard(first)
            first.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._looking.cancel()
        self._held.clear()
        self.waiting.pop(self, None)
        for cycle in self._earlier:  # uvicorn tells the last one only
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._held += data
        self._feed()

    def _feed(self) -> None:
        """Give the parser what may be looked at now."""
        while self._held and not self._answering and not self.transport.is_closing():
            cycle = self.cycle
            within = cycle is not None and not cycle.response_complete  # a body
            end = -1 if within else self._held.find(HEAD_END, 0, SLICE)
            n = SLICE if end < 0 else end + len(HEAD_END)
            piece = bytes(self._held[:n])
            del self._held[:n]
            self._parse(piece)
        flow: _Flow = self.flow  # type: ignore[assignment]
        was_full, flow.full = flow.full, len(self._held) > self.limits.header
        if self.transport.is_closing():
            self._held.clear()
        elif not flow.full:
            if was_full:
                flow.resume_reading()
        elif HEAD_END in self._held:
            flow.pause_reading()
        else:
            self._refuse(self._too_large())

    @property
    def _answering(self) -> bool:
        """Whether a request that is there as a whole waits for its answer, or for its turn."""
        cycle = self.cycle
        whole = cycle is not None and not cycle.response_complete and not cycle.more_body
        return whole or bool(getattr(self, "pipeline", ()))

    @property
    def _responding(self) -> bool:
        """Whether a response has been begun that is not at its end."""
        cycles = self._earlier if self.cycle is None else [*self._earlier, self.cycle]
        return any(cycle.response_started and not cycle.response_complete for cycle in cycles)

    def _parse(self, data: bytes) -> None:
        before = self.cycle
        if before is None or before.response_complete:
            if self._timer is None:
                self._start_timer()
            if not self._takes_headers(data):
                self._refuse(self._too_large())
                return
        else:
            self._bytes_after_body += len(data)
        under_way = len(self.connections) - len(self.waiting)
        crowded = self in self.waiting and under_way >= self.limits.connections
        self.app = self._crowded if crowded else self.config.loaded_app
        super().data_received(data)
        if self._bytes_after_body > self.limits.header and COUNTS_BODIES:
            self._refuse(self._too_large())
        if self.cycle is not before:  # headers were complete, and a request began
            self._stop_timer()
            self.waiting.pop(self, None)

    async def _crowded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application of a server that has too many requests under way: it says so, and how it is."""
        app = self.config.loaded_app
        if scope["path"] not in HEALTH_PATHS:
            app = Trace(self._say_crowded, app.options)
        await app(scope, receive, send)

    async def _say_crowded(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = unavailable(f"{self.limits.connections} connections have a running request, which is the limit")
        status, body = answer_of(error, scope)
        await json_response(body, status, {**error.headers, "Connection": "close"})(scope, receive, send)

    def on_headers_complete(self) -> None:
        before, self._bytes_after_body = self.cycle, 0
        super().on_headers_complete()  # type: ignore[misc]
        self._earlier = [cycle for cycle in self._earlier if not cycle.response_complete]
        if before is not None and not before.response_complete:
            self._earlier.append(before)

    def on_body(self, body: bytes) -> None:
        self._bytes_after_body = 0
        if self.cycle.response_complete:  # nobody wants it: it is passed over, in the time of a head
            self._header_bytes, self._tail = 0, b""
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        super().on_message_complete()  # type: ignore[misc]
        if self.cycle.response_complete:  # the rest of a body that nobody wanted was not a head
            self._stop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._probes.clear()
        self._feed()
        if self._answering or self.transport.is_closing():
            return
        if self._sends_no_more:
            self.transport.close()
        elif self.cycle.response_complete:
            self.waiting[self] = None

    def _unsupported_upgrade_warning(self) -> None:
        """A request that would speak another protocol is answered in this one."""

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that sends no more gets the answer to what it has sent, as long as it is there; not so with TLS."""
        self._sends_no_more = self._answering and self.scheme == "http" and hasattr(select, "poll")
        if self._sends_no_more:
            self._looking.cancel()
            self._looking = self.loop.call_later(LOOK_S, self._look)
        return self._sends_no_more

    def _look(self) -> None:
        """See whether the client is there, and reads."""
        now, size = monotonic(), self.transport.get_write_buffer_size()
        grows = self._responding and not self.flow.write_paused
        if size == 0 or size < self._unread or grows:
            self._read_at = now
        self._unread = size
        if now - self._read_at >= self.limits.write_time:
            of = "" if self.cycle is None else f": the response to {id_of(self.cycle.scope)}"
            log.warning("disconnecting a client that reads nothing%s", of)
            self.transport.abort()
            return
        if self._sends_no_more:
            self._probe()
        self._looking = self.loop.call_later(LOOK_S if self._sends_no_more else self.limits.write_time / 4, self._look)

    def _probe(self) -> None:
        """Send something once to a client that sends no more: the system of one that is gone says so.

        Before a response it is an interim one, which every client of HTTP/1.1 passes over, within a stream a comment.
        """
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        if poll.poll(0):  # an error, or both directions are closed
            self.transport.abort()
        elif self._probed:
            return
        elif self._responding:
            for probe in self._probes:
                probe()
        elif self.scope["http_version"] == "1.1":
            self.transport.write(CONTINUE)
        self._probed = True

    def _takes_headers(self, data: bytes) -> bool:
        """Count bytes of headers; whether these are within the limit."""
        end = (self._tail + data).find(HEAD_END)  # which may have begun with the last bytes
        self._header_bytes += len(data) if end < 0 else end
        self._tail = data[-3:]
        return self._header_bytes <= self.limits.header

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_time, self._refuse_late)

    def _stop_timer(self) -> None:
        """A head is there, or none is wanted any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._header_bytes, self._tail = 0, b""

    def _refuse_late(self) -> None:
        self._refuse(ApiError(408, f"the headers are not complete after {self.limits.header_time:g} s"))

    def _too_large(self) -> ApiError:
        return ApiError(431, f"the headers are larger than {self.limits.header} bytes")

    def send_400_response(self, msg: str) -> None:
        """uvicorn's word for what is not HTTP."""
        self._refuse(ApiError(400, msg))

    def _refuse(self, error: ApiError) -> None:
        some = self._header_bytes > 0
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self._responding:
            self.transport.abort()  # in the middle of a response nothing else can be said
            return
        one, cycle = request_id(), self.cycle
        if cycle is not None and not cycle.response_complete:  # this is what its client gets, whatever it comes to
            one = id_of(cycle.scope)
            cycle.scope["state"]["refused"] = error.status
        elif some:
            self.config.loaded_app.unread(one, error.status)
        body = to_json(error.body())
        self.transport.write(b"".join((
            b"HTTP/1.1 %d %b\r\n" % (error.status, LINES[error.status]),
            *(b"%b: %b\r\n" % header for header in id_headers(one)),
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body), body,
        )))
        self.transport.close()
