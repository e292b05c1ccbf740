"""What there is, and how it is: /health, /v1/models, /metrics and the chat page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.io.hub.download_cache import shown_name
from octavo.server.http.api_errors import ApiError, is_anthropics
from octavo.server.http.page import page
from octavo.server.routes.answer import health_response, json_response, service_of


async def health(request: Request) -> Response:
    """Whether requests can be answered. It needs no key."""
    return health_response(service_of(request).health())


async def models(request: Request) -> Response:
    """The model that is served, and the adapters that requests may choose."""
    found = [_model(request), *(_adapter(request, name) for name in service_of(request).adapters.loaded)]
    if is_anthropics(request.scope):
        return json_response({"data": found, "has_more": False, "first_id": found[0]["id"], "last_id": found[-1]["id"]})
    return json_response({"object": "list", "data": found})


async def model(request: Request) -> Response:
    """A model by its name."""
    service, name = service_of(request), request.path_params["name"]
    if (adapter := service.adapters.named(name)) is not None:
        return json_response(_adapter(request, adapter))
    if not service.is_called(name):
        message = f"unknown model {name!r}: this server has {service.options.name}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return json_response(_model(request))


def _model(request: Request) -> dict[str, Any]:
    """The model, as OpenAI or Anthropic tells of one."""
    service = service_of(request)
    info = service.info
    if is_anthropics(request.scope):
        name, created = service.options.name, datetime.fromtimestamp(service.created, UTC).isoformat()
        return {"type": "model", "id": name, "display_name": name, "created_at": created, "lifecycle": "active",
                "max_input_tokens": info.n_ctx, "max_tokens": info.n_ctx}
    meta = {
        "n_ctx": info.n_ctx, "n_ctx_train": info.n_ctx_train, "n_params": info.n_params, "size": info.nbytes,
        "n_vocab": info.n_vocab,
    }
    options = service.options
    return {
        "id": options.name, "object": "model", "created": service.created, "owned_by": "octavo",
        "aliases": sorted({options.name, *options.aliases}), "tags": sorted(options.tags), "meta": meta,
        "max_model_len": info.n_ctx,
    }


def _adapter(request: Request, name: str) -> dict[str, Any]:
    """An adapter, as the model with it."""
    found, service = _model(request), service_of(request)
    if is_anthropics(request.scope):
        return {**found, "id": name, "display_name": name}
    root = shown_name(service.adapters.loaded[name].path)
    return {**found, "id": name, "aliases": [name], "root": root, "parent": service.options.name}


async def metrics(request: Request) -> Response:
    """Counts and times, as Prometheus reads them."""
    service = service_of(request)
    headers = {"Process-Start-Time-Unix": str(service.created)}  # as llama-server's, for its clients
    return Response(service.metrics.text(), headers=headers, media_type="text/plain; version=0.0.4")


async def chat_page(request: Request) -> Response:
    """A page to talk to the model with; for Ollama's clients, which don't ask for HTML, a line that all is well."""
    if "text/html" not in request.headers.get("accept", "text/html"):
        return Response("Ollama is running", media_type="text/plain")
    body, headers = page()
    return Response(body, headers=headers)
