"""Bodies of requests: read within their limits, and taken apart without a doubt about what they say."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, closing
from threading import Lock
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.garbage import no_collection
from octavo.runtime.grammar.json_schema import not_plain, shown_fault, whole_number
from octavo.server.http.api_errors import ApiError, bad, unavailable
from octavo.server.serve_options import Limits

SLOWEST = 1024
"""Bytes a second with which a body may take longer than its time."""
LARGE = 64 << 10
"""Bytes of a body that is taken apart in another thread, and from which on it counts in the sum of all."""
WINDOW = 64 << 10
"""Bytes that are looked at before another thread may run."""
VALUE = 48
"""Bytes that a value of a body takes once it is taken apart: a number, and its places in two lists."""
LARGE_NUMBER = re.compile(rb"[0-9]{19}|[eE]\+?[0-9]{3}")
"""What numbers have that may be too large."""
MOST_PARTS = 1 << 17
"""Keys, lists and objects of a body; 16,384 messages have half as many."""
T = TypeVar("T", bound=BaseModel)
CLOSE = {"Connection": "close"}
OF_CURL = "application/x-www-form-urlencoded"
"""What `curl -d` says of any body. A page of another site could say so too, but it has an Origin."""


class Bodies:
    """The memory of large bodies, from their first piece to the end of their requests, within a limit for all."""

    def __init__(self) -> None:
        self.held = 0
        self._lock = Lock()

    def add(self, before: int, n: int, most: int) -> None:
        """Count `n` bytes more for a request that has `before`. Raises ApiError for too much; one may have anything."""
        with self._lock:
            if self.held > before and self.held + n > most:
                raise unavailable(f"the bodies of running requests take {most} bytes, which is the limit")
            self.held += n

    def remove(self, n: int) -> None:
        with self._lock:
            self.held -= n


class Share:
    """What one request has of `Bodies`."""

    def __init__(self, bodies: Bodies) -> None:
        self.bodies, self.held = bodies, 0

    def grow(self, n: int, limits: Limits) -> None:
        """Have `n` bytes in all, which count if they are many. Raises ApiError where all have too much together."""
        if n > max(self.held, LARGE):
            self.bodies.add(self.held, n - self.held, limits.bodies)
            self.held = n

    def close(self) -> None:
        self.bodies.remove(self.held)
        self.held = 0


class Sharing:
    """An ASGI application around another: each request has a share of the memory for bodies until it is answered."""

    def __init__(self, app: ASGIApp, bodies: Bodies) -> None:
        self.app, self.bodies = app, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing(Share(self.bodies)) as share:
            scope.setdefault("state", {})["share"] = share
            await self.app(scope, receive, send)


async def read(request: Request, limits: Limits) -> bytearray:
    """A body. Raises ApiError for one that is too large, too slow or of another type than JSON."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and (kind != OF_CURL or "origin" in request.headers):
        raise ApiError(415, f"the content type is {kind!r}, not application/json", headers=CLOSE)
    length = request.headers.get("content-length", "0")
    if int(length) > limits.body if length.isdigit() else True:
        raise _too_large(limits)
    data, share = bytearray(), request.state.share
    async with aclosing(pieces(request, limits)) as found:
        async for piece in found:
            if len(data) + len(piece) > limits.body:
                raise _too_large(limits)
            share.grow(len(data) + len(piece), limits)
            data += piece
    return data


async def pieces(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    """A body as it comes. Raises ApiError for one that is too slow, or ends too early."""
    loop, stream = asyncio.get_running_loop(), request.stream()
    n, enough, end = 0, 0, 0.0
    try:
        while True:
            if n >= enough:  # what has to be there in its time; then more has to come in as much
                enough, end = n + int(SLOWEST * limits.body_time), loop.time() + limits.body_time
            async with asyncio.timeout_at(end):
                piece = await anext(stream, None)
            if piece is None:
                return
            n += len(piece)
            yield piece
    except TimeoutError:
        slow = f"the body is too slow: not complete in {limits.body_time:g} s, at less than {SLOWEST} bytes a second"
        raise ApiError(408, slow, headers=CLOSE) from None
    except ClientDisconnect:
        raise ApiError(400, "the body ends too early") from None


def _too_large(limits: Limits) -> ApiError:
    allowed = f"16 MiB, or {limits.token} bytes a token of the context"
    return ApiError(413, f"the body is larger than {limits.body} bytes (allowed: {allowed})", headers=CLOSE)


async def read_as(request: Request, kind: type[T], limits: Limits) -> T:
    """A body as a model of the schema. Raises ApiError, and ValidationError for fields that are wrong."""
    data = await read(request, limits)

    def taken_apart() -> T:
        request.state.share.grow(len(data) + VALUE * count_values(data, limits.values), limits)
        return kind.model_validate(parse(data, limits.depth))

    return await asyncio.to_thread(taken_apart) if len(data) > LARGE else kind.model_validate(parse(data, limits.depth))


def count_values(data: bytes | bytearray, most: int) -> int:
    """About how many values JSON has. Raises ApiError for more than `most`."""
    n = sum(outside.count(b",") + outside.count(b"[") + outside.count(b"{") for outside in outside_texts(data))
    if n > most:
        raise bad(f"the body has more than {most} values")
    return n


def parse(data: bytes | bytearray, depth: int) -> dict[str, Any]:
    """An object in JSON. Raises ApiError for anything that is not plain: a key twice, NaN, half a surrogate pair, a
    number that is too large for what goes on from here.

    What reads a body keeps Python's lock, so it is the quickest there is, and what is in a body is counted before.
    """
    n_keys = count_keys(data)
    strange = LARGE_NUMBER.search(data) is not None
    try:
        with no_collection():
            value = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep(depth) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        value, strange = _explain(data, str(error), depth), True
    if strange and (fault := not_plain(value)) is not None:
        raise bad(shown_fault(*fault), next(map(str, fault[0]), None))
    if _check_depth(value, depth) < n_keys:
        _explain(data, "a key occurs twice", depth)
    if not isinstance(value, dict):
        raise bad("the body is not a JSON object")
    return value


def count_keys(data: bytes | bytearray) -> int:
    """The keys that JSON has. Raises ApiError for more keys, lists and objects than any request needs."""
    keys = others = 0
    for outside in outside_texts(data):
        keys += outside.count(b":")
        others += outside.count(b"[") + outside.count(b"{")
        if keys + others > MOST_PARTS:
            raise bad(f"the body has more than {MOST_PARTS} keys, lists and objects")
    return keys


def outside_texts(data: bytes | bytearray) -> Iterator[bytes]:
    """What JSON has outside of its strings, piece by piece."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # so that each quote begins or ends a string
    within = False
    for at in range(0, len(plain), WINDOW):
        pieces = plain[at : at + WINDOW].split(b'"')
        yield b"".join(pieces[within::2])
        within ^= len(pieces) % 2 == 0


def _explain(data: bytes | bytearray, problem: str, depth: int) -> Any:
    """Raise ApiError for what is not plain JSON: of a small body in words that say where, what and which key.

    A number that is too large for a float is infinity here, so that its field can be named.
    """
    if len(data) > LARGE:
        raise bad(f"the body is not valid JSON: {problem}")
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_constant, parse_int=whole_number)
    except UnicodeDecodeError as error:
        raise bad(f"the body is not valid UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _too_deep(depth) from None
    except ValueError as error:
        raise bad(f"the body is not valid JSON: {error}") from None
    return value


def plain_arguments(text: str) -> str:
    """Arguments of a call as they are. Raises ValueError for JSON with what templates can't write; all else is text."""
    strange = "\\" in text or LARGE_NUMBER.search(text.encode())
    try:
        fault = not_plain(json.loads(text, parse_int=whole_number)) if strange else None
    except (ValueError, RecursionError):
        return text
    if fault is not None:
        raise ValueError(shown_fault(*fault))
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} occurs twice")
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _check_depth(value: object, most: int) -> int:
    """The keys of all objects together. Raises ApiError for more levels than there may be."""
    level, keys = [value], 0
    for _ in range(most + 1):
        if not level:
            return keys
        keys += sum(len(one) for one in level if isinstance(one, dict))
        inner = (one for outer in level for one in _values(outer))
        level = [one for one in inner if isinstance(one, (dict, list))]
    raise _too_deep(most)


def _values(outer: object) -> Iterable[object]:
    return outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()


def _too_deep(most: int) -> ApiError:
    return bad(f"the body is nested deeper than {most} levels")
