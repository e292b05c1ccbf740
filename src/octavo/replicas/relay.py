"""A request on its way to a replica, and its response back; where the replica ends before that, to another one."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from starlette.types import Scope, Send

from octavo.replicas.pool import Pool, Replica
from octavo.replicas.upstream import Connection, UnreachableError, UpstreamLostError
from octavo.server.generation.handover import COMMENT, COMPLETE, HEADER, LOST
from octavo.server.http.api_errors import (
    NATIVE,
    ApiError,
    anthropic_error,
    is_anthropics,
    is_ollamas,
    ollama_error,
    unavailable,
)
from octavo.server.http.sse import IDLE_LINE, LINES, PING, event, named_event, to_json

log = logging.getLogger("octavo")
WAIT_S = 120.0
"""Seconds that a request waits for a replica where all have to be started again."""
SUSPECT = 2
"""Replicas that end at the same place of a reply, after which it waits to be asked without others like it: what else
was under way may be the reason, and moves with it."""
MOST_ENDS = 16
"""And after which it is thought to be the reason. Where replicas are killed so often that each other try is cut off,
as in tests, this happens by chance to one reply in 65,000."""
REFUSED_S = {429: 0.0, 503: 10.0, 529: 10.0}
"""Statuses of replicas that can't take a request now, after which others are asked, and for how long all of them."""
AGAIN_S = 0.2
OWN_HEADERS = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"expect", HEADER,
                         b"upgrade", b"te", b"trailer", b"proxy-connection"})
"""Headers that are of one connection, or that a client may not send on."""
NOTHING_TOLD = COMMENT + b"[]\n\n"


def chance_and_time(scope: Scope) -> tuple[int, int]:
    """What ids and the seed of a reply are made of, and when it is made, in seconds since 1970."""
    return secrets.randbits(62), int(time.time())


@dataclass(frozen=True)
class Head:
    """The head of a response."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Relay:
    """A request, and what its client has of the response.

    blocks  of its prompt, see `blocks_of`
    wanted  the replica that the client has chosen; None for any
    moved   times that another replica went on with it
    """

    def __init__(
        self, pool: Pool, scope: Scope, body: bytes | bytearray, blocks: Sequence[int], ping_s: float,
        wanted: int | None = None,
    ) -> None:
        self.pool, self.scope, self.body, self.blocks, self.wanted = pool, scope, body, blocks, wanted
        self.moved = 0
        self._ping_s, self._idle = ping_s, IDLE_LINE if is_ollamas(scope) else PING
        self._chance, self._created = chance_and_time(scope)
        self._told = list[bytes]()
        self._begun = self._complete = False
        self._ends, self._told_before, self._alone = 0, 0, False
        self._probing: asyncio.Task[None] | None = None

    async def respond(self, send: Send) -> None:
        """Send the response. Raises ApiError before anything is sent, where there can be none."""
        try:
            async with aclosing(self._parts()) as parts:
                async for part in parts:
                    if isinstance(part, Head):
                        await send({"type": "http.response.start", "status": part.status, "headers": part.headers})
                        if _is_stream(part.headers):
                            self._let_probe(send)
                    elif part:
                        await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            self._clear()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _let_probe(self, send: Send) -> None:
        """Let the connection find out by a comment between two events whether the client is still there."""
        async def ping() -> None:
            await send({"type": "http.response.body", "body": self._idle, "more_body": True})

        def probe() -> None:
            self._probing = asyncio.get_running_loop().create_task(ping())

        if (probes := self.scope["state"].get("probes")) is not None:
            probes[:] = [probe]

    async def _parts(self) -> AsyncGenerator[Head | bytes, None]:
        """The head of the response, and its body in parts, from as many replicas as it takes."""
        began = wrote = time.monotonic()
        tried, refusal = set[Replica](), list[Head | bytes]()
        while not self._complete:
            if self._ends >= SUSPECT and not self._alone:
                if not await self._is_alone():
                    yield self._idle if self._begun else b""
                    continue
                began = time.monotonic()
            waited = time.monotonic() - began
            replica = await self.pool.choose(self.blocks, tried, min(WAIT_S - waited, self._ping_s), self.wanted)
            if replica is not None:
                tried.add(replica)
                refused = list[Head | bytes]()
                try:
                    async with aclosing(self._asked(replica)) as parts:
                        async for part in parts:
                            if refused or (isinstance(part, Head) and part.status in REFUSED_S):
                                refused.append(part)
                            elif not (isinstance(part, Head) and self._begun):
                                self._begun = True
                                yield part
                    refusal = refused or refusal
                except UnreachableError:
                    pass
                except UpstreamLostError as error:
                    log.info("a request is moved from %s: %s", replica, error)
                    self._move()
                    tried, refusal, began = {replica}, [], time.monotonic()
                    if self._ends >= MOST_ENDS:
                        yield self._error(f"{self._ends} replicas ended while they computed this reply ({error})")
                continue
            if self.pool.served is None:
                raise unavailable("Loading model", code="loading")
            if self.pool.ending and not self.pool.up:
                yield self._error("all replicas have ended")
                return
            patience = WAIT_S if self._begun or not refusal else REFUSED_S[_status(refusal)]
            if waited >= patience and refusal and not self._begun:
                for part in refusal:
                    yield part
                return
            if waited >= patience:
                yield self._error("no replica can go on with the reply")
                return
            if self._begun and time.monotonic() - wrote >= self._ping_s:
                wrote = time.monotonic()
                yield self._idle
            tried, refusal = set(), refusal[:0] if self._begun else refusal
            await asyncio.sleep(AGAIN_S)

    async def _is_alone(self) -> bool:
        """Wait a while until no other suspect is under way: whether that is so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._ping_s):
                await self.pool.suspect.acquire()
                self._alone = True
        return self._alone

    def _clear(self) -> None:
        """It got further, or is over."""
        if self._alone:
            self._alone = False
            self.pool.suspect.release()

    def _move(self) -> None:
        """Count the end of a replica, and whether the reply got on since the one before."""
        self._ends = 1 if len(self._told) > self._told_before else self._ends + 1
        self._told_before, self.moved = len(self._told), self.moved + 1

    async def _asked(self, replica: Replica) -> AsyncGenerator[Head | bytes, None]:
        """What a replica answers, of a stream from where it is. Raises UpstreamLostError."""
        upstream = replica.upstream
        if upstream is None:
            raise UnreachableError("the replica has ended")
        replica.load += 1
        try:
            connection = await upstream.take()
            try:
                connection.send(self._request())
                await connection.begun()
                head = Head(connection.status, _kept(connection))
                if _is_stream(head.headers):
                    first = True
                    async with aclosing(connection.chunks()) as chunks:
                        async for some in chunks:
                            shown = self._shown(some)
                            if first and shown:  # with the first bytes, so that a client has both or neither
                                first = False
                                yield head
                            yield b"".join(shown)
                            if self._complete:
                                break
                    if not self._complete:
                        raise UpstreamLostError("the replica's engine ended")
                else:
                    body = await connection.whole()  # as a whole: it can be asked for again until all of it is there
                    if self._begun and head.status not in REFUSED_S:
                        yield self._error(f"it can't go on: {head.status}, {body[:200].decode(errors='replace')}")
                        return
                    yield head
                    yield body
                    self._complete = head.status not in REFUSED_S
            finally:
                upstream.give_back(connection)
        finally:
            replica.load -= 1
            replica.answered += self._complete

    def _shown(self, chunks: Sequence[bytes]) -> list[bytes]:
        """What the client gets of some chunks; what is told with them is kept."""
        shown = []
        for chunk in chunks:
            at = chunk.rfind(COMMENT)
            told = chunk[at:]
            if told == LOST:  # its stream ends with this
                break
            shown.append(chunk[:at])
            if told == COMPLETE:
                self._complete = True
            elif told != NOTHING_TOLD:
                self._told.append(told[len(COMMENT) : -2])
                self._clear()
        return shown

    def _request(self) -> bytes:
        """The request as the replica gets it."""
        scope = self.scope
        handover = b'{"chance":%d,"created":%d,"begun":%b,"pieces":[%b]}' % (
            self._chance, self._created, b"true" if self._begun else b"false", b",".join(self._told),
        )
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # whose body nobody sends on
        if method != "POST":
            handover = b""
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        lines = [b"%b %b%b HTTP/1.1" % (method.encode(), scope["raw_path"], query)]
        lines += [b"%b: %b" % header for header in scope["headers"] if header[0] not in OWN_HEADERS]
        lines.append(b"x-request-id: %b" % scope["state"]["id"].encode())
        lines.append(self.pool.proof(len(handover)))
        lines.append(b"content-length: %d\r\n\r\n" % (len(handover) + len(self.body)))
        return b"".join((b"\r\n".join(lines), handover, self.body))

    def _error(self, why: str) -> bytes:
        """The end of a stream that can't go on. Raises ApiError where nothing has been sent."""
        error = unavailable(why, code="replicas_ended")
        if not self._begun:
            raise error
        log.error("a stream ended: %s", why)
        self._complete = True
        return _event(self.scope, error)


def _event(scope: Scope, error: ApiError) -> bytes:
    """An error within a stream, as the clients of its route know it."""
    if is_ollamas(scope):
        return to_json(ollama_error(error)) + b"\n"
    if is_anthropics(scope):
        return named_event("error", to_json(anthropic_error(error)))
    if scope["path"].endswith("/responses"):
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return named_event("error", to_json(told))
    return event(to_json(error.body(native=scope["path"] in NATIVE)))


def _is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and (b"event-stream" in value or LINES in value) for name, value in headers)


def _status(parts: Sequence[Head | bytes]) -> int:
    return next(part.status for part in parts if isinstance(part, Head))


def _kept(connection: Connection) -> list[tuple[bytes, bytes]]:
    """Headers of a response that are about it, not about the connection; its ids are the front's own."""
    own = (b"connection", b"keep-alive", b"transfer-encoding", b"date", b"x-request-id", b"request-id")
    return [header for header in connection.headers.items() if header[0] not in own]
