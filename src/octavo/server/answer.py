"""From a request to its response: what endpoints of all families do alike."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from octavo.server.body import read_as
from octavo.server.service import Service
from octavo.server.stream import EventStream, Renderer, Watch, to_json
from octavo.server.work import Event, Work

T = TypeVar("T", bound=BaseModel)
LEFT = 499
"""The status of a response that nobody is there for, as nginx calls it."""


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def body_of(request: Request, kind: type[T]) -> T:
    """The body as a model of the schema. Raises ApiError, and ValidationError."""
    return await read_as(request, kind, service_of(request).options.limits)


def key_of(request: Request) -> str:
    """The key that a request came with; "" without one."""
    key: str = getattr(request.state, "key", "")
    return key


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(body), status, headers, "application/json")


def streamed(request: Request, work: Work, renderer: Renderer) -> Response:
    """A job's events as they come."""
    watch: Watch = request.app.state.watch
    return EventStream(work, renderer, watch)


async def finished(request: Request, work: Work) -> list[list[Event]] | None:
    """All that a job brings; None where the client left before its end."""
    left = asyncio.get_running_loop().create_task(_until_left(request.receive, work))
    try:
        found = await work.finished()
        return None if work.stream.closed else found
    finally:
        work.close()
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left


async def _until_left(receive: Receive, work: Work) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    work.close()


def left() -> Response:
    """What is sent to a client that is gone."""
    return Response(status_code=LEFT)
