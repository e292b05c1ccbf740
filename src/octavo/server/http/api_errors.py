"""Errors as clients get them: a status, and a body as those of OpenAI, Anthropic, Ollama or llama-server know it."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.types import Scope

from octavo import errors as kinds
from octavo.errors import AdaptersFullError, CacheFullError, ContextFullError, OctavoError, UnknownAdapterError
from octavo.server.engine.client import EngineDiedError, EngineFailedError
from octavo.server.generation.ids import REQUEST_ID, new_id

TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
    429: "rate_limit_exceeded", 431: "invalid_request_error", 500: "server_error", 501: "not_supported_error",
    503: "unavailable_error",
}
"""What OpenAI's errors call each status."""
FIELD = re.compile(r"([a-z_]+(?:\.[a-z_]+)*): ")
"""The field that a check of several names."""
NEED = "must be "
NEEDED = {
    "string_type": "a string", "bool_type": "true or false", "list_type": "a list", "none_required": "null",
    "int_type": "an integer", "int_from_float": "an integer", "float_type": "a number",
    "finite_number": "a finite number", "dict_type": "an object", "model_type": "an object",
    "literal_error": "{expected}", "greater_than_equal": "{ge} or more", "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}", "less_than": "less than {lt}",
}
WORDS = {kind: NEED + words for kind, words in NEEDED.items()} | {
    "missing": "is missing", "extra_forbidden": "is not an option here",
    "too_long": "has too many values (at most {max_length})",
    "too_short": "must not be empty", "string_too_short": "must not be empty",
    "string_too_long": "is too long (at most {max_length} characters)",
    "union_tag_invalid": "is of type {tag!r} (allowed: {expected_tags})",
    "union_tag_not_found": "has no {discriminator}",
}
"""What is wrong with a field, by pydantic's name for it."""
FAULTS = frozenset({"NonFiniteError", "BackendError", "DeviceMemoryError", "HostMemoryError", "QuarantineError"})
"""Errors that are not the request's."""
OURS = FAULTS | {name for name, one in vars(kinds).items() if isinstance(one, type) and issubclass(one, OctavoError)}
SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})
"""Errors of a system that has no descriptor, process or memory to give."""
RETRIED_S, ENDED_S = 1, 30
"""Seconds after which a request may be sent again that an engine's end cut off, or a server's."""
ANTHROPIC = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}
VERSION = b"anthropic-version"
OVERLOADED = 529
"""What Anthropic's clients know as the status of a server that can't answer now."""
NATIVE = frozenset({
    "/completion", "/infill", "/tokenize", "/detokenize", "/apply-template", "/props", "/lora-adapters", "/slots",
    "/health",
})
"""llama-server's own routes: their errors have its shape."""


class ApiError(Exception):
    """What a client is told.

    param  the field that is wrong
    code   for programs
    more   further fields of the error
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, type: str | None = None,
        headers: dict[str, str] | None = None, more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.type = type or TYPES.get(status, "server_error")
        self.headers, self.more = headers or {}, more or {}

    def body(self, *, native: bool = False) -> dict[str, Any]:
        """The error as OpenAI's routes have it, or as those of llama-server."""
        if native:
            reason = {"reason": self.code} if self.status == 503 and self.code else {}
            return {"error": {"code": self.status, "message": self.message, "type": self.type, **reason, **self.more}}
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**fields, **self.more}}


class PromptTooLongError(ApiError):
    """A prompt that fills the context. The message has what agents look for, of OpenAI's and of llama-server's."""

    def __init__(self, n_prompt: int, n_ctx: int, param: str = "messages", *, at_least: bool = False) -> None:
        """`at_least`: the prompt may have more tokens than `n_prompt`; they were not counted."""
        counted = f"at least {n_prompt}" if at_least else str(n_prompt)
        counted += ", which leaves none for a reply" if n_prompt == n_ctx else ""
        super().__init__(
            400,
            f"This model's maximum context length is {n_ctx} tokens, but the request has {counted}: "
            "it exceeds the available context size",
            param=param, code="context_length_exceeded", more={"n_prompt_tokens": n_prompt, "n_ctx": n_ctx},
        )
        self.n_prompt, self.n_ctx = n_prompt, n_ctx

    def body(self, *, native: bool = False) -> dict[str, Any]:
        body = super().body(native=native)
        if native:
            body["error"]["type"] = "exceed_context_size_error"
        return body


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is wrong."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, retry_after: int = RETRIED_S, code: str | None = None) -> ApiError:
    """A server that can't answer now."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(retry_after)})


def ending() -> ApiError:
    """A server that takes no more requests, and cuts off what is under way when its time is over."""
    return unavailable("The server is shutting down", ENDED_S, "server_ending")


def api_error(error: Exception) -> ApiError:
    """What a client is told of any error.

    One that comes again with the same request is not a 5xx, after which clients retry, or says not to retry.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, EngineDiedError):
        return ApiError(503, f"the engine ended: {error}", code="engine_ended", headers={"Retry-After": str(RETRIED_S)})
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SHORT):
        return unavailable(f"the system is out of resources: {error or type(error).__name__}")
    kind = error.kind if isinstance(error, EngineFailedError) else type(error).__name__
    return of_kind(kind, str(error), getattr(error, "argument", None), ours=isinstance(error, OctavoError))


def of_kind(kind: str, message: str, param: str | None = None, *, ours: bool = True) -> ApiError:
    """What a client is told of an error whose class has this name.

    `ours`: its words are meant for users if it is one of this package.
    """
    if kind == CacheFullError.__name__:
        return unavailable(f"the KV cache is full: {message}")
    if kind == AdaptersFullError.__name__:
        return ApiError(429, message, param=param, code="adapters_full", headers={"Retry-After": str(RETRIED_S)})
    if kind == UnknownAdapterError.__name__:
        return ApiError(404, message, param=param, code="adapter_not_found")
    if kind == ContextFullError.__name__:
        return bad(message, param, "context_length_exceeded")
    if kind in FAULTS or kind not in OURS or not ours:
        words = message if ours and kind in OURS else f"internal error: {kind}"
        return ApiError(500, words, headers={"x-should-retry": "false"})
    return bad(message, param)


def _invalid(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body, by the name of its field."""
    found = _telling(error.errors(include_url=False, include_input=False))
    place = ".".join(map(str, _place(found[0])))
    if found[0]["type"] in WORDS:
        return bad(f"{place or 'the body'} {_joined([_words(one) for one in found])}", place.partition(".")[0] or None)
    words = found[0]["msg"].removeprefix("Value error, ")
    if not place:  # checks of several fields say which one is wrong
        named = FIELD.match(words)
        return bad(words, named[1].partition(".")[0] if named else None)
    return bad(f"{place}: {words}", place.partition(".")[0])


def _telling(errors: Sequence[ErrorDetails], after: int = 0) -> list[ErrorDetails]:
    """The first error, or the one of its union's branch that goes furthest; of each where several go as far.

    `after`: parts of their places that are known to be alike.
    """
    first = errors[0]["loc"]
    at = next((i for i, part in enumerate(first) if i >= after and _is_branch(part)), None)
    if at is None:
        return [errors[0]]
    branches: dict[int | str, list[ErrorDetails]] = {}
    for one in errors:
        if one["loc"][:at] == first[:at]:
            branches.setdefault(one["loc"][at], []).append(one)
    found = [_telling(branch, at + 1) for branch in branches.values()]
    furthest = max(_distance(branch[0]) for branch in found)
    return [one for branch in found if _distance(branch[0]) == furthest for one in branch]


def _distance(error: ErrorDetails) -> tuple[int, bool, list[int]]:
    """How far a value is what a branch takes: the fault's depth, whether the type is right, and its place in lists."""
    place = _place(error)
    depth = len(place) + (error["type"] == "too_long")  # what is in it may be right
    return depth, not error["type"].endswith("_type"), [part for part in place if isinstance(part, int)]


def _place(error: ErrorDetails) -> list[int | str]:
    return [part for part in error["loc"] if not _is_branch(part)]


def _words(error: ErrorDetails) -> str:
    return WORDS.get(error["type"], error["msg"]).format(**error.get("ctx", {}))


def _joined(messages: Sequence[str]) -> str:
    """What is wrong, where several types are right."""
    if not all(message.startswith(NEED) for message in messages):
        return messages[0]
    return NEED + " or ".join(dict.fromkeys(message.removeprefix(NEED) for message in messages))


def _is_branch(part: int | str) -> bool:
    """Whether a part of a place is the name of a branch of a union, which no client knows."""
    return isinstance(part, str) and (
        part in ("str", "int", "float", "bool") or "[" in part or part.startswith("constrained-") or part[:1].isupper()
    )


def is_anthropics(scope: Scope) -> bool:
    """Whether a request is of Anthropic's clients: of its routes, or with the version that these send to all."""
    return scope["path"] in ANTHROPIC or any(name == VERSION for name, _ in scope["headers"])


def is_ollamas(scope: Scope) -> bool:
    """Whether a request is for one of Ollama's routes."""
    path: str = scope["path"]
    return path.startswith("/api/")


def answer_of(error: ApiError, scope: Scope) -> tuple[int, dict[str, Any]]:
    """Status and body of an error, for the clients that a request is of."""
    if is_ollamas(scope):
        return error.status, ollama_error(error)
    if is_anthropics(scope):
        return OVERLOADED if error.status == 503 else error.status, anthropic_error(error)
    return error.status, error.body(native=scope["path"] in NATIVE)


def ollama_error(error: ApiError) -> dict[str, Any]:
    """An error as Ollama's clients know it; some of them look for the words that a model is not found."""
    return {"error": f"model not found: {error.message}" if error.code == "model_not_found" else error.message}


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
