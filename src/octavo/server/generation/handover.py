"""Handover: what a front of replicas knows of a request, so that any of them writes the same bytes, from any place on.

The front sends it before the body, in a header that names its secret and how many bytes it has. A replica that is told
the secret streams, after each piece, a comment with the rows that the piece came from; the front keeps these and passes
on the rest. Where the replica ends in the middle, the request goes to another one with the rows so far: it goes through
them silently, as if it had written what the client has, and continues.

What comes otherwise from a clock or from chance, ids, the time and a seed, comes from the handover.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence
from contextvars import ContextVar
from random import Random

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.engine.engine_protocol import EngineOutput
from octavo.server.generation.ids import CHANCE
from octavo.server.http.api_errors import ApiError, answer_of

HEADER = b"x-octavo-handover"
OWN = b"-"
"""In place of the bytes of a handover: the front asks for itself, not for a client."""
COMMENT, COMPLETE, LOST = b": octavo ", b": octavo complete\n\n", b": octavo lost\n\n"
"""How comments for the front begin; the one after the last piece; the one where the engine ended before that."""
to_json = msgspec.json.Encoder().encode


class Handover(msgspec.Struct):
    """A request as its front knows it.

    chance   what ids and a seed are made of
    created  seconds since 1970
    begun    the client has the head of the stream
    pieces   rows that replies are made of, an EngineOutput each whose id is the number of its reply, by pieces of the
             stream
    """

    chance: int
    created: int
    begun: bool = False
    pieces: list[list[EngineOutput]] = []

    def tokens(self, replies: int) -> list[list[int] | None]:
        """The tokens so far of this many replies; None for one that has ended."""
        found: list[list[int] | None] = [[] for _ in range(replies)]
        for row in (row for piece in self.pieces for row in piece):
            if row.finish is not None:
                found[row.id] = None
            elif (tokens := found[row.id]) is not None and row.token is not None:
                tokens.append(row.token)
        return found


HANDOVER: ContextVar[Handover | None] = ContextVar("HANDOVER", default=None)
"""That of the request that is answered; None for one that no front has sent."""
from_json = msgspec.json.Decoder(Handover).decode


def created() -> int:
    """When a reply is made, in seconds since 1970."""
    handover = HANDOVER.get()
    return int(time.time()) if handover is None else handover.created


def comment(rows: Sequence[EngineOutput]) -> bytes:
    """A piece's rows, for the front."""
    return COMMENT + b"[%b]\n\n" % b",".join(map(_written, rows))


def _written(row: EngineOutput) -> bytes:
    if row.token is not None and row.finish is None and row.logprobs is None and row.prefill is None:
        return b"[%d,%d]" % (row.id, row.token)
    return to_json(row)


class HandoverReader:
    """An ASGI application around another: takes what comes before a body, of those who know the secret.

    Others are refused where there is one, and where there is none the header means nothing.
    """

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self.app, self._secret = app, secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(HEADER, b"") if scope["type"] == "http" else b""
        secret, _, size = given.partition(b" ")
        if not self._secret or scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        own = size == OWN
        if not hmac.compare_digest(secret, self._secret) or not (own or size.isdigit()):
            status, body = answer_of(ApiError(403, "this is a replica, which answers its front only"), scope)
            await Response(to_json(body), status, media_type="application/json")(scope, receive, send)
            return
        if own:
            scope.setdefault("state", {})["own"] = True
        if own or int(size) == 0:
            await self.app(scope, receive, send)
            return
        found = await _read(receive, int(size))
        if found is None:
            return
        data, rest = found
        scope = {**scope, "headers": [_without(header, int(size)) for header in scope["headers"]]}
        handover = from_json(data)
        HANDOVER.set(handover)
        CHANCE.set(Random(handover.chance))

        async def receiving() -> Message:
            nonlocal rest
            if rest is None:
                return await receive()
            message, rest = rest, None
            return message

        await self.app(scope, receiving, send)


async def _read(receive: Receive, n: int) -> tuple[bytes, Message | None] | None:
    """The first `n` bytes of a body, and the message with what comes after them; None where they don't come."""
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        data += message.get("body", b"")
        if len(data) >= n:
            return bytes(data[:n]), {**message, "body": bytes(data[n:])}


def _without(header: tuple[bytes, bytes], n: int) -> tuple[bytes, bytes]:
    """A header of a body that is `n` bytes shorter."""
    name, value = header
    return (name, b"%d" % (int(value) - n)) if name == b"content-length" else header
