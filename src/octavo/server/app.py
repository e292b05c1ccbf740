"""The application: which route goes where, and what becomes of errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from octavo.errors import OctavoError
from octavo.server.generation.handover import HandoverReader
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ApiError, answer_of, api_error
from octavo.server.http.body import Sharing
from octavo.server.http.guard import AccessGuard
from octavo.server.http.openapi import describe
from octavo.server.http.sse import StreamWatch
from octavo.server.http.trace import Trace
from octavo.server.routes import adapters, anthropic, meta, ollama, rerank, responses
from octavo.server.routes import llama_server as native
from octavo.server.routes import openai as routes_openai
from octavo.server.routes.answer import json_response
from octavo.server.routes.kept_responses import BY_ID, KeptResponses
from octavo.server.routes.not_served import NOT_SERVED
from octavo.server.routes.response_store import ResponseStore

log = logging.getLogger("octavo")
Around = Callable[[ASGIApp], ASGIApp]
Endpoint = Callable[[Request], Awaitable[Response]]

WITH_PREFIX: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/chat/completions", routes_openai.chat_completions),
    ("POST", "/completions", routes_openai.text_completions),
    ("POST", "/fim/completions", routes_openai.fim_completions),
    ("POST", "/chat/completions/input_tokens", routes_openai.count_tokens),
    ("POST", "/chat/completions/render", routes_openai.render_chat),
    ("POST", "/completions/render", routes_openai.render_texts),
    ("POST", "/responses", responses.responses),
    ("POST", "/responses/input_tokens", responses.count_tokens),
    ("POST", "/embeddings", routes_openai.embeddings),
    ("POST", "/rerank", rerank.rerank),
    ("POST", "/reranking", rerank.rerank),
    ("POST", "/score", rerank.score),
    ("GET", "/models", meta.models),
    ("POST", "/models/load", ollama.of_several),
    ("POST", "/models/unload", ollama.of_several),
    ("GET", "/models/{name:path}", meta.model),
    ("GET", "/health", meta.health),
)
"""Routes that are there with /v1 before them and without it."""
OTHERS: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/v1/messages", anthropic.messages),
    ("POST", "/v1/messages/count_tokens", anthropic.count_tokens),
    ("POST", "/v2/rerank", rerank.rerank),
    ("POST", "/completion", native.completion),
    ("POST", "/infill", native.infill),
    ("POST", "/tokenize", native.tokenize),
    ("POST", "/detokenize", native.detokenize),
    ("GET", "/tokenizer_info", native.tokenizer_info),
    ("POST", "/apply-template", native.apply_template),
    ("GET", "/props", native.props),
    ("GET", "/lora-adapters", adapters.listed),
    ("POST", "/lora-adapters", adapters.scale),
    ("POST", "/v1/load_lora_adapter", adapters.load),
    ("POST", "/v1/unload_lora_adapter", adapters.unload),
    ("GET", "/slots", native.slots),
    ("POST", "/slots/{number}", native.slot_action),
    ("GET", "/metrics", meta.metrics),
    ("GET", "/", meta.chat_page),
    ("POST", "/api/chat", ollama.chat),
    ("POST", "/api/generate", ollama.generate),
    ("POST", "/api/embed", ollama.embed),
    ("POST", "/api/embeddings", ollama.embeddings),
    ("POST", "/api/show", ollama.show),
    ("GET", "/api/tags", ollama.tags),
    ("GET", "/api/ps", ollama.ps),
    ("GET", "/api/version", ollama.version),
    ("POST", "/api/pull", ollama.of_several),
    ("POST", "/api/copy", ollama.of_several),
    ("DELETE", "/api/delete", ollama.of_several),
)
"""Routes that are there once."""
TOLD: tuple[type[Exception], ...] = (
    HTTPException, ApiError, OctavoError, ValidationError, OSError, MemoryError, Exception,
)
"""Errors that clients are told of; the last has a traceback in the log, too."""


def routes() -> list[Route]:
    """All that there are."""
    both = [(method, prefix + path, endpoint) for method, path, endpoint in WITH_PREFIX for prefix in ("/v1", "")]
    described = ("GET", "/openapi.json", openapi)
    found = (*both, *OTHERS, *NOT_SERVED, described)
    return [Route(path, endpoint, methods=[method]) for method, path, endpoint in found]


async def openapi(request: Request) -> Response:
    """This description."""
    kept = [Route(path, endpoint, methods=[method]) for method, path, endpoint in BY_ID]
    return json_response(describe([*routes(), *kept]))


def make_app(service: Service, store: ResponseStore | None = None, around: Around = lambda app: app) -> ASGIApp:
    """The ASGI application that serves a model.

    store   keeps responses; None where none are kept
    around  what else answers requests that have a key
    """
    app = Starlette(
        routes=routes(),
        exception_handlers=dict.fromkeys(TOLD, answer_error),
    )
    app.state.service, app.state.watch = service, StreamWatch(service.options.limits)
    app.router.redirect_slashes = False
    options = service.options
    inner = app if store is None else KeptResponses(app, store, app.exception_handlers, lambda: service.limits)
    shared = HandoverReader(Sharing(inner, service.bodies), options.secret)
    return Trace(AccessGuard(around(shared), options), options)


async def answer_error(request: Request, error: Exception) -> Response:
    """What a client is told of an error."""
    path = request.url.path
    if isinstance(error, OSError | MemoryError):
        log.warning("%s %s: %s: %s", request.method, path, type(error).__name__, error)
    if isinstance(error, HTTPException):  # Starlette's own, of paths and methods that no route has
        message = f"{request.method} is not allowed for {path}" if error.status_code == 405 else f"no route {path}"
        error = ApiError(error.status_code, message, headers=dict(error.headers or {}))
    told = api_error(error)
    status, body = answer_of(told, request.scope)
    return json_response(body, status, told.headers)
