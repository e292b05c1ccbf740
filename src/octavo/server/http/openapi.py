"""openapi.json: what the routes take, written from the models that check it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

from octavo import __version__
from octavo.server.routes.anthropic_schema import CountRequest, MessagesRequest
from octavo.server.routes.llama_server_schema import (
    DetokenizeRequest,
    InfillRequest,
    NativeRequest,
    TemplateRequest,
    TokenizeRequest,
)
from octavo.server.routes.ollama_schema import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaNameRequest,
)
from octavo.server.routes.rerank_schema import RerankRequest, ScoreRequest
from octavo.server.routes.responses_schema import ResponsesRequest
from octavo.server.routes.schema import ChatRequest, CompletionRequest, EmbeddingRequest, FimRequest

BODIES: dict[str, type[BaseModel]] = {
    "/chat/completions": ChatRequest, "/completions": CompletionRequest, "/embeddings": EmbeddingRequest,
    "/completion": NativeRequest, "/infill": InfillRequest, "/fim/completions": FimRequest,
    "/tokenize": TokenizeRequest, "/detokenize": DetokenizeRequest,
    "/apply-template": TemplateRequest, "/responses": ResponsesRequest,
    "/rerank": RerankRequest, "/reranking": RerankRequest, "/v2/rerank": RerankRequest, "/score": ScoreRequest,
    "/chat/completions/input_tokens": ChatRequest, "/responses/input_tokens": ResponsesRequest,
    "/api/chat": OllamaChatRequest, "/api/generate": OllamaGenerateRequest, "/api/show": OllamaNameRequest,
    "/api/embed": OllamaEmbedRequest, "/api/embeddings": OllamaEmbeddingsRequest,
    "/messages": MessagesRequest, "/messages/count_tokens": CountRequest,
}
"""What the body of a route is, without the /v1 before it."""
REF = "#/components/schemas/{model}"
ERROR = {
    "type": "object", "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message", "type"], "properties": {
        "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "integer", "null"]},
    }}},
}


def describe(routes: list[Route]) -> dict[str, Any]:
    """The document for some routes."""
    places, schemas = models_json_schema([(m, "validation") for m in BODIES.values()], ref_template=REF)
    found: dict[str, Any] = {}
    for route in routes:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            found.setdefault(route.path.replace(":path", ""), {})[method.lower()] = _operation(route, places)
    return {
        "openapi": "3.1.0", "info": {"title": "Octavo", "version": __version__}, "paths": found,
        "components": {
            "schemas": {**schemas["$defs"], "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, places: Any) -> dict[str, Any]:
    wrong = {"description": "What is wrong", "content": _json({"$ref": REF.format(model="Error")})}
    found: dict[str, Any] = {
        "summary": (route.endpoint.__doc__ or "").partition("\n")[0],
        "responses": {"200": {"description": "The answer"}, "4XX": wrong, "5XX": wrong},
    }
    if route.param_convertors:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.param_convertors
        ]
    body = BODIES.get(route.path.removeprefix("/v1"))
    if body is not None:
        found["requestBody"] = {"required": True, "content": _json(places[body, "validation"])}
    return found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
