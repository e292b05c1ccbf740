"""From a request to its response: what endpoints of all families do alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.generation.handle import RequestHandle
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ApiError
from octavo.server.http.body import read_as
from octavo.server.http.sse import EventStream, Renderer, StreamWatch, given_up_when_left, to_json, until_left

T = TypeVar("T", bound=BaseModel)
R = TypeVar("R")
LEFT = 499
"""The status of a response that nobody is there for, as nginx calls it."""


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def health_response(why: ApiError | None) -> Response:
    """Of /health, where `why` is what keeps requests from being answered."""
    if why is None:
        return json_response({"status": "ok"})
    return json_response(why.body(native=True), why.status, why.headers)


async def body_of(request: Request, kind: type[T]) -> T:
    """The body as a model of the schema. Raises ApiError, and ValidationError."""
    return await read_as(request, kind, service_of(request).limits)


def key_of(request: Request) -> str:
    """The key that a request came with; "" without one."""
    key: str = getattr(request.state, "key", "")
    return key


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(body), status, headers, "application/json")


async def unless_left(request: Request, doing: Coroutine[Any, Any, R]) -> R:
    """What is done for a client that waits for it. Raises ApiError where it leaves, and does no more of it."""
    task = asyncio.ensure_future(doing)
    left = asyncio.ensure_future(until_left(request.receive))
    try:
        await asyncio.wait([task, left], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(LEFT, "the client left")
        return task.result()
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def answered(
    request: Request, handle: RequestHandle, renderer: Renderer, *, stream: bool | None,
    kind: type[EventStream] = EventStream,
) -> Response:
    """Replies as events or whole; an empty response where the client left before."""
    request.state.handle = handle  # for what is logged
    if stream:
        watch: StreamWatch = request.app.state.watch
        return kind(handle, renderer, watch)
    async with given_up_when_left(request.receive, handle):
        found = await handle.finished()
        left = handle.stream.closed
    return Response(status_code=LEFT) if left else json_response(renderer.whole(found))
