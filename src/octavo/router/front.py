"""The front's routes: its own, and all others to the model that a request names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from octavo import __version__
from octavo.replicas.front import BaseFront, Others, Responds, application, health, said_by
from octavo.replicas.relay import Relay
from octavo.router import ollama
from octavo.router.catalog import Catalog
from octavo.router.events import LinesResponse
from octavo.router.metrics import ModelMetrics
from octavo.router.models import Model, Models, status_of
from octavo.router.pulls import Pulls
from octavo.server.app import openapi, routes
from octavo.server.http.api_errors import ApiError, bad, ending, is_anthropics, is_ollamas
from octavo.server.http.body import LARGE, read
from octavo.server.routes.answer import json_response
from octavo.server.routes.meta import chat_page
from octavo.server.routes.ollama import version
from octavo.server.routes.ollama_schema import seconds
from octavo.server.serve_options import Limits, ServerOptions

SAYING = ("/api/chat", "/api/generate")
"""Routes by which Ollama's clients load and unload models too, where they say nothing."""
NULL = msgspec.Raw(b"null")


class Named(msgspec.Struct):
    """What of a request's body says which model it is for; of one of Ollama's also how long that is to stay loaded."""

    model: str | None = None
    keep_alive: msgspec.Raw = NULL
    prompt: msgspec.Raw = NULL
    messages: msgspec.Raw = NULL

    def keep(self) -> float | None:
        """Seconds that the model stays loaded without a request; None for as long as others. Raises ApiError."""
        try:
            value = msgspec.json.decode(self.keep_alive, type=float | str | None)
            return None if value is None else seconds(value)
        except msgspec.ValidationError:
            raise bad("keep_alive must be a number or a string", "keep_alive") from None
        except ValueError as error:
            raise bad(f"keep_alive: {error}", "keep_alive") from None

    @property
    def says_nothing(self) -> bool:
        return all(bytes(one) in (b"null", b"[]", b'""') for one in (self.prompt, self.messages))


from_json = msgspec.json.Decoder(Named).decode


class ModelsFront(BaseFront):
    """A front of models.

    look  finds what there is to serve, see `Models.replace`
    may_pull, may_delete  clients may have models downloaded, and removed
    """

    def __init__(
        self, models: Models, options: ServerOptions, look: Callable[[], Catalog], *, pulls: bool = True,
        deletes: bool = False,
    ) -> None:
        super().__init__(options)
        self.models, self.look = models, look
        self.metrics, self.pulls = ModelMetrics(models), Pulls(models.events, self.reload)
        self.may_pull, self.may_delete, self._routes = pulls, deletes, routes()
        self.created = int(time.time())

    @property
    def limits(self) -> Limits:
        """What is taken of clients: as much as any model's server has taken."""
        limits = self.options.limits
        served = [one.pool.served for one in self.models.models.values() if one.pool is not None]
        known = [one for one in served if one is not None]
        return replace(limits, body=max([limits.body, *(one.body for one in known)]),
                       values=max([limits.values, *(one.values for one in known)]))

    def health(self) -> ApiError | None:
        return ending() if self.models.ending else None

    def require_pulls(self) -> None:
        """Raise ApiError where the models are those of the command line."""
        if not self.may_pull:
            raise bad("models were named on the command line, so none is downloaded here: start `octavo serve` without "
                      "names for that")

    def require_removable(self, model: Model) -> None:
        """Raise ApiError for a model that clients may not remove."""
        if model.known.source != "cache":
            where = {"argument": "was named on the command line", "models_dir": "is of --models-dir",
                     "preset": "is of --models-preset"}[model.known.source]
            raise bad(f"{model.name} {where} and is not in the hub's cache: it can't be removed here", "model")
        if not self.may_delete:
            raise ApiError(403, "no model is removed here: start `octavo serve` with --allow-delete for that")

    async def reload(self) -> None:
        """Look again what there is to serve."""
        self.models.replace(await asyncio.to_thread(self.look))

    @asynccontextmanager
    async def relayed(self, request: Request, body: bytearray) -> AsyncIterator[Responds]:
        found = [(route.matches(request.scope)[0], route.methods or set()) for route in self._routes]
        if not any(match is Match.FULL for match, _ in found):  # no model is loaded for that
            allowed = sorted(set().union(*(methods for match, methods in found if match is Match.PARTIAL)))
            raise HTTPException(405, headers={"Allow": ", ".join(allowed)}) if allowed else HTTPException(404)
        asked = await (asyncio.to_thread(named, body) if len(body) > LARGE else _now(body))
        model = self._meant(request, asked)
        model.keep = asked.keep() if is_ollamas(request.scope) else None
        if model.keep == 0 and asked.says_nothing and request.url.path in SAYING:
            self.models.unload(model)
            yield ollama.Unloaded(model, chat=request.url.path == "/api/chat")
            return
        if request.query_params.get("autoload") in ("false", "0") and model.state != "loaded":
            raise bad(f"{model.name} is not loaded", "model", "model_not_loaded")
        async with self.models.taken(model) as pool:
            yield Relay(pool, request.scope, body, (), self.limits.ping)

    def _meant(self, request: Request, asked: Named) -> Model:
        """The model that a request is for. Raises ApiError."""
        if name := asked.model if request.method == "POST" else request.query_params.get("model"):
            return self.models.find(name)
        if (only := self.models.only()) is not None:
            return only
        where = "field" if request.method == "POST" else "query parameter"
        raise bad(f"no model is named: set the {where} `model` to {self.models.catalog.choices()}", "model")


def named(body: bytes | bytearray) -> Named:
    """The model that a body names; of no body none. Raises ApiError for a body that is not JSON."""
    try:
        return from_json(body or b"{}")
    except msgspec.ValidationError as error:
        raise bad(f"the body is not an object whose `model` is a string: {error}", "model") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad(f"the body is not valid JSON: {error}") from None


async def _now(body: bytearray) -> Named:
    return named(body)


def make_front(front: ModelsFront) -> ASGIApp:
    """The ASGI application of a front of models."""
    both = (("GET", "/health", health), ("GET", "/models", models), ("POST", "/models", pull),
            ("DELETE", "/models", remove), ("GET", "/models/sse", events), ("POST", "/models/load", load),
            ("POST", "/models/unload", unload), ("GET", "/models/{name:path}", model))
    return application(front, (
        *((method, prefix + path, endpoint) for method, path, endpoint in both for prefix in ("", "/v1")),
        ("GET", "/metrics", metrics), ("GET", "/props", props), ("GET", "/", chat_page),
        ("GET", "/openapi.json", openapi), ("GET", "/api/tags", ollama.tags), ("GET", "/api/ps", ollama.ps),
        ("GET", "/api/version", version), ("POST", "/api/show", ollama.show), ("POST", "/api/pull", ollama.pull),
        ("POST", "/api/copy", ollama.copy), ("DELETE", "/api/delete", ollama.delete),
    ))


def front_of(request: Request) -> ModelsFront:
    front: ModelsFront = request.app.state.front
    return front


async def asked(request: Request) -> str:
    """The model that the body of one of these routes names. Raises ApiError."""
    name = named(await read(request, front_of(request).limits)).model
    if not name:
        raise bad("no model is named: {\"model\": NAME}", "model")
    return name


async def models(request: Request) -> Response:
    """All models, and how they are; with `reload` it is looked first what there is."""
    front = front_of(request)
    if request.query_params.get("reload"):
        await front.reload()
    rows = [row(front, one, request) for one in front.models.models.values()]
    if is_anthropics(request.scope):
        ids = [one["id"] for one in rows] or [None]
        return json_response({"data": rows, "has_more": False, "first_id": ids[0], "last_id": ids[-1]})
    return json_response({"object": "list", "data": rows + front.pulls.rows(), "can_pull": front.may_pull})


async def model(request: Request) -> Response:
    """A model by its name."""
    front = front_of(request)
    return json_response(row(front, front.models.find(request.path_params["name"]), request))


def row(front: ModelsFront, model: Model, request: Request) -> dict[str, Any]:
    """A model as OpenAI and llama-server tell of one, or Anthropic."""
    known, needs, info = model.known, model.needs, dict(model.info)
    if is_anthropics(request.scope):
        created = datetime.fromtimestamp(front.created, UTC).isoformat()
        return {"type": "model", "id": known.name, "display_name": known.name, "created_at": created,
                "lifecycle": "active"}
    told = status_of(model)
    memory = None if needs is None else {
        "weights": needs.weights, "caches": needs.caches, "work": needs.work, "processes": needs.process,
    }
    return info | {
        "id": known.name, "object": "model", "created": front.created, "owned_by": "octavo",
        "aliases": sorted(known.names), "tags": sorted(known.server.tags), "path": known.engine.path,
        "status": {"value": told.pop("status"), "args": [], **told}, "source": known.source,
        "can_remove": known.source == "cache" and front.may_delete, "memory": memory,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "requests": {"waiting": model.waiting, "running": model.answering}, "failures": model.failures,
    }


async def load(request: Request) -> Response:
    """Begin to load a model."""
    front = front_of(request)
    model = front.models.find(await asked(request))
    if model.state not in ("unloaded", "sleeping", "stopping"):
        raise bad("model is already running", "model")
    front.models.load(model)
    return json_response({"success": True})


async def unload(request: Request) -> Response:
    """Begin to end a model, or end the pull of one."""
    front = front_of(request)
    name = await asked(request)
    if front.pulls.cancel(name):
        return json_response({"success": True})
    model = front.models.find(name)
    if model.state in ("unloaded", "sleeping"):
        raise bad("model is not running", "model", "model_not_loaded")  # llama-server's words
    front.models.unload(model)
    return json_response({"success": True})


async def pull(request: Request) -> Response:
    """Begin to download a model of the hub."""
    front = front_of(request)
    front.require_pulls()
    name = await asked(request)
    if front.models.catalog.find(name) is not None:
        raise bad(f"model {name!r} is there already", "model")
    await front.pulls.begin(name)
    return json_response({"success": True})


async def remove(request: Request) -> Response:
    """Remove a model from the hub's cache."""
    front = front_of(request)
    model = front.models.find(request.query_params.get("model", ""))
    front.require_removable(model)
    if model.state not in ("unloaded", "sleeping"):
        raise ApiError(409, f"{model.name} is {status_of(model)['status']}: unload it first", param="model")
    await front.pulls.remove(model.name)
    return json_response({"success": True})


async def events(request: Request) -> Response:
    """What happens to models, as it happens."""
    front = front_of(request)
    return LinesResponse(front.models.events.lines(front.limits.ping))


async def metrics(request: Request) -> Response:
    """Counts and times of all models that are loaded."""
    front = front_of(request)
    loaded = [(one.name, one.pool) for one in front.models.models.values() if one.pool is not None]
    said = await asyncio.gather(*(said_by(pool, pool.replicas[0], request) for _, pool in loaded))
    text = front.metrics.text({name: one for (name, _), one in zip(loaded, said, strict=True) if one is not None})
    return Response(text, media_type="text/plain; version=0.0.4")


async def props(request: Request) -> Response:
    """llama-server's properties of a router, or of the model that is named."""
    front = front_of(request)
    if request.query_params.get("model"):
        return cast(Response, Others(front))
    return json_response({
        "role": "router", "max_instances": 0, "models_autoload": True, "model_alias": "octavo", "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0}, "build_info": f"octavo-{__version__}",
        "memory": front.models.memory,
    })
