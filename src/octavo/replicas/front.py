"""The front's application: its own routes, and all others to a replica."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import Protocol

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.replicas.merged_metrics import ReplicaMetrics
from octavo.replicas.pool import Pool, Replica
from octavo.replicas.relay import Relay
from octavo.replicas.routing import blocks_of
from octavo.replicas.upstream import UpstreamLostError
from octavo.server.app import TOLD, Around, Endpoint, answer_error
from octavo.server.http.api_errors import ApiError, ending, unavailable
from octavo.server.http.body import LARGE, Bodies, Sharing, read
from octavo.server.http.guard import AccessGuard
from octavo.server.http.sse import until_left
from octavo.server.http.trace import Trace
from octavo.server.routes.answer import health_response, json_response, key_of
from octavo.server.routes.kept_responses import KeptResponses
from octavo.server.routes.not_served import NOT_SERVED
from octavo.server.routes.response_store import ResponseStore
from octavo.server.serve_options import Limits, ServerOptions

RANK = "x-data-parallel-rank"


class Responds(Protocol):
    """What answers a request, as `Relay` does."""

    async def respond(self, send: Send) -> None:
        """Send the response. Raises ApiError before anything is sent, where there can be none."""


class BaseFront(ABC):
    """What the routes of a front share.

    under_way  requests that are not answered
    store      keeps responses
    around     what else answers requests, see `make_app`
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.under_way = 0
        self.store = ResponseStore(options.data_dir)
        self.around: Around = lambda app: app

    @property
    def limits(self) -> Limits:
        """What is taken of clients: as much as the servers behind it take."""
        return self.options.limits

    @abstractmethod
    def health(self) -> ApiError | None:
        """Why nothing can be answered now; None where it can."""

    def refusal(self) -> ApiError | None:
        """Why a request is refused before it is read; None where it is not."""
        return self.health()

    @abstractmethod
    def relayed(self, request: Request, body: bytearray) -> AbstractAsyncContextManager[Responds]:
        """What answers a request for another route. Raises ApiError where there can be no answer."""


class Front(BaseFront):
    """A front of replicas."""

    def __init__(self, pool: Pool, options: ServerOptions) -> None:
        super().__init__(options)
        self.pool, self.metrics = pool, ReplicaMetrics(pool)

    @property
    def limits(self) -> Limits:
        limits, served = self.options.limits, self.pool.served
        return limits if served is None else replace(limits, body=served.body, values=served.values)

    def health(self) -> ApiError | None:
        if self.pool.ending:
            return ending()
        if not self.pool.up:
            if self.pool.served is None:
                return unavailable("Loading model", code="loading")
            return unavailable("No replica can answer now", code="no_replica")
        return None

    def refusal(self) -> ApiError | None:
        return self.health() if self.pool.ending or self.pool.served is None else None

    @asynccontextmanager
    async def relayed(self, request: Request, body: bytearray) -> AsyncIterator[Relay]:
        key = b"" if self.options.share_cache else key_of(request).encode()
        blocks = await (asyncio.to_thread(blocks_of, body, key) if len(body) > LARGE else _now(body, key))
        wanted = _wanted(request, len(self.pool.replicas))
        relay = Relay(self.pool, request.scope, body, blocks, self.limits.ping, wanted)
        try:
            yield relay
        finally:
            self.metrics.moved += relay.moved


def make_front(front: Front) -> ASGIApp:
    """The ASGI application of a front of replicas."""
    return application(front, (
        ("GET", "/health", health), ("GET", "/v1/health", health), ("GET", "/metrics", metrics),
        ("GET", "/replicas", replicas), ("POST", "/replicas/restart", restart),
    ))


def application(front: BaseFront, own: Iterable[tuple[str, str, Endpoint]]) -> ASGIApp:
    """A front's ASGI application: its own routes, and what it relays."""
    routes = [Route(path, endpoint, methods=[method]) for method, path, endpoint in (*own, *NOT_SERVED)]
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(TOLD, answer_error))
    app.router.default = Others(front)
    app.router.redirect_slashes = False
    app.state.front = front
    options = replace(front.options, log_requests=False)  # those behind it log them, with what they know
    inner = KeptResponses(app, front.store, app.exception_handlers, lambda: front.limits)
    return Trace(AccessGuard(front.around(Sharing(inner, Bodies())), options), options)


def front_of(request: Request) -> Front:
    front: Front = request.app.state.front
    return front


async def health(request: Request) -> Response:
    """Whether requests can be answered. It needs no key."""
    front: BaseFront = request.app.state.front
    return health_response(front.health())


async def metrics(request: Request) -> Response:
    """Counts and times of all replicas that answer."""
    front = front_of(request)
    said = await asyncio.gather(*(said_by(front.pool, one, request) for one in front.pool.replicas))
    text = front.metrics.text({str(i): one for i, one in enumerate(said) if one is not None})
    return Response(text, media_type="text/plain; version=0.0.4")


async def said_by(pool: Pool, replica: Replica, request: Request) -> str | None:
    """A replica's /metrics, with the key that the front was asked with; None where it does not answer."""
    if replica.upstream is None:
        return None
    given = [(k, v) for k, v in request.headers.raw if k in (b"authorization", b"x-api-key")]
    with suppress(UpstreamLostError, TimeoutError):
        async with asyncio.timeout(1.0):
            lines = b"".join(b"%b: %b\r\n" % header for header in given)
            status, text = await pool.get(replica.upstream, "/metrics", lines)
            return text.decode() if status == 200 else None
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


class Others:
    """All other routes: they are relayed. An ASGI application within Starlette's."""

    def __init__(self, front: BaseFront) -> None:
        self.front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, front = Request(scope, receive), self.front
        if (why := front.refusal()) is not None:
            raise why
        body = await read(request, front.limits) if scope["method"] == "POST" else bytearray()
        front.under_way += 1
        try:
            async with _cancelled_when_left(receive), front.relayed(request, body) as relay:
                await relay.respond(send)
        finally:
            front.under_way -= 1


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
