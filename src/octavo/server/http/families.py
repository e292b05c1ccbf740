"""Families of routes, by whose clients they are for: their errors have other shapes."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from octavo.server.generation.ids import REQUEST_ID, new_id
from octavo.server.http.errors import ApiError, PromptTooLongError
from octavo.server.routes.llama_server_paths import is_native

ANTHROPIC = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}
VERSION = b"anthropic-version"
OVERLOADED = 529
"""What Anthropic's clients know as the status of a server that can't answer now."""


def is_anthropics(scope: Scope) -> bool:
    """Whether a request is of Anthropic's clients: of its routes, or with the version that these send to all."""
    return scope["path"] in ANTHROPIC or any(name == VERSION for name, _ in scope["headers"])


def answer_of(error: ApiError, scope: Scope) -> tuple[int, dict[str, Any]]:
    """Status and body of an error, for the clients that a request is of."""
    if is_anthropics(scope):
        return OVERLOADED if error.status == 503 else error.status, anthropic_error(error)
    return error.status, error.body(native=is_native(scope["path"]))


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic's clients know it."""
    words = error.message
    if isinstance(error, PromptTooLongError):
        words = f"prompt is too long: {error.n_prompt} tokens > {error.n_ctx} maximum"
    kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": words},
        "request_id": REQUEST_ID.get(None) or new_id("req_"),
    }
