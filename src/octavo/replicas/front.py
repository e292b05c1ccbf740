"""The front's application: its own routes, and all others to a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.replicas.merged_metrics import MergedMetrics
from octavo.replicas.pool import Pool, Replica
from octavo.replicas.relay import Relay
from octavo.replicas.routing import blocks_of
from octavo.replicas.upstream import UpstreamLostError
from octavo.server.app import TOLD, answer_error
from octavo.server.http.api_errors import ApiError, ending, unavailable
from octavo.server.http.body import LARGE, Bodies, Sharing, read
from octavo.server.http.guard import AccessGuard
from octavo.server.http.sse import until_left
from octavo.server.http.trace import Trace
from octavo.server.routes.answer import health_response, json_response, key_of
from octavo.server.serve_options import Limits, ServerOptions

RANK = "x-data-parallel-rank"


class Front:
    """What the routes share.

    under_way  requests that are not answered
    """

    def __init__(self, pool: Pool, options: ServerOptions) -> None:
        self.pool, self.options = pool, options
        self.metrics = MergedMetrics(pool)
        self.under_way = 0

    @property
    def limits(self) -> Limits:
        """What is taken of clients: as much as the replicas take."""
        limits, served = self.options.limits, self.pool.served
        return limits if served is None else replace(limits, body=served.body, values=served.values)

    def health(self) -> ApiError | None:
        """Why nothing can be answered now; None where it can."""
        if self.pool.ending:
            return ending()
        if not self.pool.up:
            if self.pool.served is None:
                return unavailable("Loading model", code="loading")
            return unavailable("No replica can answer now", code="no_replica")
        return None


def make_front(front: Front) -> ASGIApp:
    """The ASGI application of a front."""
    own = [
        Route(path, endpoint, methods=[method])
        for method, path, endpoint in (
            ("GET", "/health", health), ("GET", "/v1/health", health), ("GET", "/metrics", metrics),
            ("GET", "/replicas", replicas), ("POST", "/replicas/restart", restart),
        )
    ]
    app = Starlette(routes=own, exception_handlers=dict.fromkeys(TOLD, answer_error))
    app.router.default = _Others(app, front)
    app.router.redirect_slashes = False
    app.state.front = front
    options = replace(front.options, log_requests=False)  # replicas log them, with what they know
    return Trace(AccessGuard(Sharing(app, Bodies()), options), options)


def front_of(request: Request) -> Front:
    front: Front = request.app.state.front
    return front


async def health(request: Request) -> Response:
    """Whether a replica can answer requests. It needs no key."""
    return health_response(front_of(request).health())


async def metrics(request: Request) -> Response:
    """Counts and times of all replicas that answer."""
    front = front_of(request)
    said = await asyncio.gather(*(_said(front.pool, one, request) for one in front.pool.replicas))
    text = front.metrics.text({i: one for i, one in enumerate(said) if one is not None})
    return Response(text, media_type="text/plain; version=0.0.4")


async def _said(pool: Pool, replica: Replica, request: Request) -> str | None:
    """A replica's /metrics, with the key that the front was asked with."""
    if replica.upstream is None:
        return None
    given = [(k, v) for k, v in request.headers.raw if k in (b"authorization", b"x-api-key")]
    with suppress(UpstreamLostError, TimeoutError):
        async with asyncio.timeout(1.0):
            connection = await replica.upstream.take()
            try:
                lines = b"".join(b"%b: %b\r\n" % header for header in given)
                lines += pool.proof() + b"\r\n"
                connection.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
                status = await connection.begun()
                text = (await connection.whole()).decode()
                return text if status == 200 else None
            finally:
                replica.upstream.give_back(connection)
    return None


async def replicas(request: Request) -> Response:
    """How each replica is."""
    return json_response([
        {
            "replica": one.number, "state": one.state, "pid": one.pid or None,
            "address": None if one.upstream is None else one.upstream.address, "requests": one.load,
            "answered": one.answered, "restarts": one.restarts, "rolling_restarts": one.rolled, "why": one.why,
        }
        for one in front_of(request).pool.replicas
    ])


async def restart(request: Request) -> Response:
    """Begin to start all replicas anew, one after the other."""
    pool = front_of(request).pool
    if pool.rolling:
        raise ApiError(409, "the replicas are being started anew already")
    answer = b'{"status":"restarting"}'
    return Response(answer, 202, media_type="application/json", background=BackgroundTask(pool.roll))


class _Others:
    """All other routes: a replica answers. An ASGI application within Starlette's."""

    def __init__(self, app: Starlette, front: Front) -> None:
        self.app, self.front = app, front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, front = Request(scope, receive), self.front
        if (why := front.health()) is not None and (front.pool.ending or front.pool.served is None):
            raise why
        limits = front.limits
        body = await read(request, limits) if scope["method"] == "POST" else bytearray()
        key = b"" if front.options.share_cache else key_of(request).encode()
        blocks = await (asyncio.to_thread(blocks_of, body, key) if len(body) > LARGE else _now(body, key))
        relay = Relay(front.pool, scope, body, blocks, limits.ping, _wanted(request, len(front.pool.replicas)))
        front.under_way += 1
        try:
            async with _cancelled_when_left(receive):
                await relay.respond(send)
        finally:
            front.under_way -= 1
            front.metrics.moved += relay.moved


def _wanted(request: Request, n: int) -> int | None:
    """The replica that a router has chosen, by the header that vLLM reads. Raises ApiError for none of `n`."""
    given = request.headers.get(RANK)
    if given is None:
        return None
    number = int(given) if given.isdecimal() and len(given) <= len(str(n)) else n
    if number >= n:
        raise ApiError(400, f"{RANK} is {given[:20]!r} (allowed: a replica, 0 to {n - 1})", param=RANK)
    return number


async def _now(body: bytearray, key: bytes) -> list[int]:
    return blocks_of(body, key)


@asynccontextmanager
async def _cancelled_when_left(receive: Receive) -> AsyncIterator[None]:
    """Cancel what is done for a client, as soon as it is gone."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def look() -> None:
        nonlocal gone
        await until_left(receive)
        gone = True
        task.cancel()

    looking = asyncio.get_running_loop().create_task(look())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
