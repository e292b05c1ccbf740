"""Requests told apart: an id of each, in its response and in what is logged of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.generation.handle import RequestHandle
from octavo.server.generation.ids import REQUEST_ID, id_headers, request_id
from octavo.server.serve_options import ServerOptions

log = logging.getLogger("octavo.requests")
PLAIN = re.compile(r"[!#-~]+")
ASKED_AGAIN = ("/health", "/v1/health", "/metrics")
"""What probes ask for all the time: it is not logged."""
LONGEST = 200
"""Characters of a value that are logged."""


class Trace:
    """An ASGI application around another: each response has the request's id, and each request a line if asked for.

    What a front asks for itself has none: `own` in its state, see `HandoverReader`.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self.app, self.options = app, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = monotonic(), 0
        state = scope.setdefault("state", {})
        one = id_of(scope)
        REQUEST_ID.set(one)
        own = id_headers(one)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            if scope["path"] not in ASKED_AGAIN and not state.get("own"):
                status = state.get("refused", status)
                self._log(one, scope["method"], scope["path"], status or "-", _told(state, start))

    def unread(self, one: str, status: int) -> None:
        """Tell of what was refused before it was known what it asks."""
        self._log(one, "-", "-", status, {})

    def _log(self, one: str, method: str, path: str, status: int | str, more: Mapping[str, Any]) -> None:
        if self.options.log_requests:
            fields = {"id": one, "method": method, "path": path, "status": status, "model": self.options.name, **more}
            log.info(_line(fields), extra={"news": True})


def id_of(scope: Any) -> str:
    """The id of the request that an ASGI scope is of, from then on the same."""
    one: str = scope.setdefault("state", {}).setdefault("id", request_id(scope["headers"]))
    return one


def _told(state: Mapping[str, Any], start: float) -> dict[str, Any]:
    """What is known of a request's work: tokens, seconds, and how each of its replies ended."""
    found: dict[str, Any] = {}
    if (handle := state.get("handle")) is not None:
        found = _of_replies(handle, start)
    elif (n := state.get("prompt_tokens")) is not None:
        found = {"prompt": n}
    return {**found, "seconds": f"{monotonic() - start:.3f}"}


def _of_replies(handle: RequestHandle, start: float) -> dict[str, Any]:
    counts = handle.usage()
    begun = [choice.first_at for choice in handle.choices if choice.prefill is not None]
    unfinished = "left" if handle.failure is None else "error"
    return {
        "prompt": counts["prompt_tokens"], "cached": counts["prompt_tokens_details"]["cached_tokens"],
        "reply": counts["completion_tokens"], "first": f"{min(begun) - start:.3f}" if begun else "-",
        "finish": ",".join(choice.finish or unfinished for choice in handle.choices),
    }


def _line(fields: Mapping[str, Any]) -> str:
    """Names and values with "=" between them; a value that is not a plain word is a string of JSON, in ASCII."""
    words = (f"{name}={text if PLAIN.fullmatch(text := str(value)[:LONGEST]) else json.dumps(text)}"
             for name, value in fields.items())
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} request {' '.join(words)}"
