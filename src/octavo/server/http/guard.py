"""Who may ask: the Host and Origin of a request, and its key. An ASGI application around another."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.http.api_errors import ApiError, answer_of
from octavo.server.http.sse import to_json
from octavo.server.serve_options import ServerOptions

HEALTH_PATHS = ("/health", "/v1/health")
OPEN_PATHS = (*HEALTH_PATHS, "/")
"""Which need no key: the chat page, which has nothing secret in it, asks for one itself."""
ALLOWED_METHODS = b"GET, POST, OPTIONS"
ALLOWED_HEADERS = b"authorization, content-type, x-api-key, anthropic-version, anthropic-beta, x-request-id"
"""Headers that pages of allowed origins may send, where they don't ask for others."""
HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,4096}")
READ_HEADERS = b"retry-after, x-should-retry, x-request-id, request-id"
"""Headers of responses that clients in these pages may read."""


class AccessGuard:
    """Lets a request through, or answers it: 403 for a foreign Host or Origin, 401 for a key that is none of ours.

    Names that a page of another site could point at this machine are refused as a Host, so that it can't read what
    the server says; numbers of machines can't be such names.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self.app, self.options = app, options
        self._hosts = {"localhost", socket.gethostname().lower(), options.host.lower(), *map(str.lower, options.hosts)}
        self._keys = [hashlib.sha256(key.encode()).digest() for key in options.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        allowed = bool(origin) and (origin in self.options.origins or "*" in self.options.origins)
        cors = _cors(origin) if allowed else []
        try:
            if not _is_check(scope, headers):
                self._require_place(headers, origin, allowed)
            if scope["method"] == "OPTIONS":
                if not allowed:
                    raise ApiError(405, "OPTIONS is only for pages of allowed origins", headers={"Allow": "GET, POST"})
                await _answer(send, 204, b"", _preflight(origin, headers))
                return
            _require_plain(scope)
            scope.setdefault("state", {})["key"] = self._check_key(scope["path"], headers)
        except ApiError as error:
            more = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
            status, body = answer_of(error, scope)
            await _answer(send, status, to_json(body), [(b"content-type", b"application/json"), *more, *cors])
            return
        await self.app(scope, receive, _with(send, cors) if allowed else send)

    def _require_place(self, headers: dict[bytes, bytes], origin: str, allowed: bool) -> None:
        """Raises ApiError for a foreign Host, and for an Origin that is neither `allowed` nor the server's own."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._known(_name(host)):
            raise ApiError(403, f"the Host is {host!r} (allowed: localhost, addresses, names by --allow-host)")
        if origin and not allowed and origin.partition("://")[2] != host:
            raise ApiError(403, f"the Origin is {origin!r} (allowed: this server's own, and those of --cors-origin)")

    def _known(self, name: str) -> bool:
        if name in self._hosts or name.endswith(".localhost") or "*" in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _check_key(self, path: str, headers: dict[bytes, bytes]) -> str:
        """The key that a request has. Raises ApiError for one that is none of ours; all are compared, in equal time."""
        if not self._keys or path in OPEN_PATHS:
            return ""
        given = headers.get(b"authorization", b"")
        given = given[7:] if given[:7].lower() == b"bearer " else headers.get(b"x-api-key", b"")
        digest = hashlib.sha256(given.strip()).digest()
        if not sum(hmac.compare_digest(digest, key) for key in self._keys):
            words = "the API key is wrong" if given else "an API key is required: Authorization: Bearer KEY"
            raise ApiError(401, words, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return digest.hex()


def _is_check(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Whether a balancer looks if the server is there, in HTTP/1.0, which has no Host; no browser asks so."""
    plain = scope["http_version"] == "1.0" and b"host" not in headers and b"origin" not in headers
    return plain and scope["path"] in HEALTH_PATHS and scope["method"] in ("GET", "HEAD")


def _require_plain(scope: Scope) -> None:
    """Raises ApiError for a transfer coding other than `chunked`, as RFC 9112 6.1 has it: nobody here decodes it."""
    codings = b",".join(value for name, value in scope["headers"] if name == b"transfer-encoding").strip().lower()
    if codings not in (b"", b"chunked"):
        shown = codings.decode("latin-1")
        raise ApiError(501, f"the Transfer-Encoding is {shown!r} (allowed: chunked)", headers={"Connection": "close"})


def _name(host: str) -> str:
    """A Host without its port, an IPv6 address without its brackets."""
    host = host.lower().rstrip(".")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _cors(origin: str) -> list[tuple[bytes, bytes]]:
    """Headers that let a page of an allowed origin read an answer, an error too."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", READ_HEADERS),
        (b"vary", b"Origin"),
    ]


def _preflight(origin: str, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """What such a page may send: any headers that it asks for, as clients have some of their own."""
    asked = headers.get(b"access-control-request-headers", b"")
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", ALLOWED_METHODS),
        (b"access-control-allow-headers", asked if HEADER_NAMES.fullmatch(asked) else ALLOWED_HEADERS),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin, Access-Control-Request-Headers"),
    ]


def _with(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))] if status != 204 else headers
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
