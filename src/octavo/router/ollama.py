"""Ollama's routes of a front of models: which there are, and bringing, naming and removing them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from math import isfinite
from time import monotonic
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from octavo.huggingface import open_model_file
from octavo.io.model_path import resolve
from octavo.replicas.local import cards
from octavo.router.events import LinesResponse
from octavo.router.models import Model, Models
from octavo.router.pulls import Pull, Pulls
from octavo.server.http.api_errors import ApiError, bad
from octavo.server.http.body import read_as
from octavo.server.http.sse import LineStream, to_json
from octavo.server.model_name import plain_name, tagged_name
from octavo.server.routes.answer import json_response, unless_left
from octavo.server.routes.ollama_facts import FOREVER, go_time, model_row, shown_model
from octavo.server.routes.ollama_schema import OllamaCopyRequest, OllamaNameRequest
from octavo.server.serve_options import Limits


class Front(Protocol):
    """What these routes ask of a front of models."""

    models: Models
    pulls: Pulls

    @property
    def limits(self) -> Limits: ...

    def require_pulls(self) -> None: ...

    def require_removable(self, model: Model) -> None: ...


TOLD_S = 0.5
"""Seconds after which it is told again how far a pull is."""


async def tags(request: Request) -> Response:
    """All models by all of their names, copies too."""
    models = _front(request).models
    names = [(name, one) for one in models.models.values() for name in one.known.names]
    names += [(name, models.find(name)) for name in models.copies]
    return json_response({"models": await asyncio.to_thread(lambda: [_row(*one) for one in names])})


async def ps(request: Request) -> Response:
    """The models that are loaded."""
    models = _front(request).models
    found = [(one, models.rest(one)) for one in models.models.values() if one.state in ("loaded", "draining")]
    rows = await asyncio.to_thread(lambda: [_row(one.name, one) for one, _ in found])
    return json_response({"models": [row | _place(*one) for row, one in zip(rows, found, strict=True)]})


async def show(request: Request) -> Response:
    """The facts of a model, which is not loaded for that."""
    front = _front(request)
    body = await read_as(request, OllamaNameRequest, front.limits)
    model = front.models.find(_meant(body))

    def read() -> dict[str, Any]:
        known, path = model.known, resolve(model.known.engine.path)
        n_ctx = model.info.get("max_model_len", known.engine.n_ctx)
        with open_model_file(path) as file:
            return shown_model(known.name, path, file, n_ctx, verbose=bool(body.verbose),
                               template=known.server.template_text)

    return json_response(await asyncio.to_thread(read))


async def pull(request: Request) -> Response:
    """Download a model of the hub, and tell how far it is; one that is there already is a success at once."""
    front = _front(request)
    body = await read_as(request, OllamaNameRequest, front.limits)
    name = plain_name(_meant(body))
    if front.models.catalog.find(name) is not None:
        return json_response({"status": "success"}) if body.stream is False else _lines(_success())
    front.require_pulls()
    there = front.pulls.find(name)
    begun = there or await front.pulls.begin(name)
    lines = _progress(front.pulls, begun, name, stops=there is None)
    if body.stream is not False:
        return _lines(lines)
    await unless_left(request, _exhausted(lines))
    if begun.why is not None:
        raise ApiError(500, f"{name} can't be downloaded: {begun.why}")
    return json_response({"status": "success"})


async def copy(request: Request) -> Response:
    """Give a model another name, until the server ends."""
    front = _front(request)
    body = await read_as(request, OllamaCopyRequest, front.limits)
    front.models.copy(body.source, body.destination)
    return Response()


async def delete(request: Request) -> Response:
    """Take away a name that a model was given, or remove a model from the hub's cache."""
    front = _front(request)
    body = await read_as(request, OllamaNameRequest, front.limits)
    name = _meant(body)
    if front.models.copies.pop(plain_name(name), None) is None:
        model = front.models.find(name)
        front.require_removable(model)
        await front.models.unloaded(model)
        await front.pulls.remove(model.name)
    return Response()


class Unloaded:
    """The answer to a request that says nothing but that a model is not to stay."""

    def __init__(self, model: Model, *, chat: bool) -> None:
        said = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
        common = {"model": model.name, "created_at": go_time(datetime.now(UTC))}
        self._response = json_response({**common, **said, "done": True, "done_reason": "unload"})

    async def respond(self, send: Send) -> None:
        await self._response({"type": "http"}, _nothing, send)


async def _nothing() -> Any:
    raise AssertionError("nothing more is received")


def _front(request: Request) -> Front:
    front: Front = request.app.state.front
    return front


def _meant(body: OllamaNameRequest) -> str:
    if not body.meant:
        raise bad('no model is named: {"model": NAME}', "model")
    return body.meant


def _row(name: str, model: Model) -> dict[str, Any]:
    return model_row(tagged_name(name), resolve(model.known.engine.path))


def _place(model: Model, rest: float) -> dict[str, Any]:
    """What a loaded model takes, and when it is unloaded if nobody asks it for anything."""
    left = model.used + rest - monotonic()
    expires = go_time(datetime.now(UTC) + timedelta(seconds=left)) if isfinite(left) else FOREVER
    on_card = model.known.engine.device not in ("cpu", "reference") and cards()
    return {"size": model.held, "size_vram": model.held if on_card else 0, "expires_at": expires,
            "context_length": model.info.get("max_model_len", 0)}


async def _progress(pulls: Pulls, pull: Pull, name: str, *, stops: bool) -> AsyncGenerator[bytes, None]:
    """How far a download is, until it ends. `stops`: it does too where nobody reads this any more."""
    assert pull.task is not None
    yield _line(status="pulling manifest")
    try:
        while not pull.task.done():
            if pull.total:
                yield _line(status=f"pulling {name}", digest=name, total=pull.total, completed=pull.done)
            await asyncio.wait([pull.task], timeout=TOLD_S)
    finally:
        if stops and not pull.task.done():
            pulls.cancel(name)
    yield _line(error=f"{name} can't be downloaded: {pull.why}") if pull.why is not None else _line(status="success")


async def _success() -> AsyncGenerator[bytes, None]:
    yield _line(status="success")


async def _exhausted(lines: AsyncGenerator[bytes, None]) -> None:
    async for _ in lines:
        pass


def _lines(lines: AsyncGenerator[bytes, None]) -> Response:
    return LinesResponse(lines, LineStream.head)


def _line(**fields: Any) -> bytes:
    return to_json(fields) + b"\n"
