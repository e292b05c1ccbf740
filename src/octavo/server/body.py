"""Bodies of requests: read within their limits, and taken apart without a doubt about what they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from octavo.garbage import no_collection
from octavo.server.errors import ApiError, bad, unavailable
from octavo.server.options import Limits

SLOWEST = 1024
"""Bytes a second with which a body may take longer than its time."""
LARGE = 64 << 10
"""Bytes of a body that is taken apart in another thread, and from which on it counts in the sum of all."""
WINDOW = 64 << 10
"""Bytes that are looked at before another thread may run."""
MOST_PARTS = 1 << 17
"""Keys, lists and objects of a body; 16,384 messages have half as many."""
T = TypeVar("T", bound=BaseModel)
CLOSE = {"Connection": "close"}


class Bodies:
    """The bytes of large bodies that are read or taken apart, within a limit for all together."""

    def __init__(self) -> None:
        self.held = 0

    @contextmanager
    def counted(self, data: bytearray) -> Iterator[None]:
        """Give back what was counted of a body at the end of the block."""
        try:
            yield
        finally:
            self.held -= _counted(data)

    def extend(self, data: bytearray, piece: bytes, limits: Limits) -> None:
        """Add a piece to a body. Raises ApiError where all bodies together are too large; one alone may always be."""
        before, others = _counted(data), self.held - _counted(data)
        if others and _counted(data) + len(piece) > LARGE and self.held + len(piece) > limits.bodies:
            raise unavailable(f"bodies of {limits.bodies} bytes are read now, as many as may be")
        data += piece
        self.held += _counted(data) - before


def _counted(data: bytearray) -> int:
    return len(data) if len(data) > LARGE else 0


async def read(request: Request, data: bytearray, limits: Limits, bodies: Bodies) -> None:
    """Read a body into `data`. Raises ApiError for one that is too large, too slow or of another type than JSON."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the content type is {kind!r} (allowed: application/json)", headers=CLOSE)
    length = request.headers.get("content-length", "0")
    if int(length) > limits.body if length.isdigit() else True:
        raise _too_large(limits)
    loop, stream = asyncio.get_running_loop(), request.stream()
    enough, end = 0, 0.0
    try:
        while True:
            if len(data) >= enough:  # what has to be there in its time; then more has to come in as much
                enough, end = len(data) + int(SLOWEST * limits.body_time), loop.time() + limits.body_time
            async with asyncio.timeout_at(end):
                piece = await anext(stream, None)
            if piece is None:
                return
            if len(data) + len(piece) > limits.body:
                raise _too_large(limits)
            bodies.extend(data, piece, limits)
    except TimeoutError:
        slow = f"neither the whole body nor {SLOWEST} bytes a second came in {limits.body_time:g} s"
        raise ApiError(408, slow, headers=CLOSE) from None
    except ClientDisconnect:
        raise ApiError(400, "the body ends too early") from None


def _too_large(limits: Limits) -> ApiError:
    allowed = f"16 MiB, or {limits.token} bytes a token of the context"
    return ApiError(413, f"the body is larger than {limits.body} bytes (allowed: {allowed})", headers=CLOSE)


async def read_as(request: Request, kind: type[T], limits: Limits, bodies: Bodies) -> T:
    """A body as a model of the schema. Raises ApiError, and ValidationError for fields that are wrong."""
    data = bytearray()
    with bodies.counted(data):
        await read(request, data, limits, bodies)
        if len(data) > LARGE:
            return await asyncio.to_thread(lambda: kind.model_validate(parse(data, limits.depth, limits.values)))
        return kind.model_validate(parse(data, limits.depth, limits.values))


def parse(data: bytes | bytearray, depth: int, most: int = Limits.values) -> dict[str, Any]:
    """An object in JSON. Raises ApiError for anything that is not plain: a key twice, NaN, half a surrogate pair.

    `depth` and `most` are levels and values that it may have. What reads a body keeps Python's lock, so it is the
    quickest there is, and what is in a body is counted before.
    """
    n_keys = _count_keys(data, most)
    try:
        with no_collection():
            value = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep(depth) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        value = _explain(data, str(error), depth)
    if _check_depth(value, depth) < n_keys:
        _explain(data, "a key is there twice", depth)
    if not isinstance(value, dict):
        raise bad("the body is no JSON object")
    return value


def _count_keys(data: bytes | bytearray, most: int) -> int:
    """The keys that JSON has. Raises ApiError for more keys, lists and objects, or values, than any request needs."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # so that each quote begins or ends a string
    keys = others = values = 0
    within = False
    for at in range(0, len(plain), WINDOW):
        pieces = plain[at : at + WINDOW].split(b'"')
        outside = b"".join(pieces[within::2])
        keys += outside.count(b":")
        others += outside.count(b"[") + outside.count(b"{")
        values += outside.count(b",")
        within ^= len(pieces) % 2 == 0
        if keys + others > MOST_PARTS:
            raise bad(f"the body has more than {MOST_PARTS} keys, lists and objects")
        if values + others > most:
            raise bad(f"the body has more than {most} values")
    return keys


def _explain(data: bytes | bytearray, problem: str, depth: int) -> Any:
    """Raise ApiError for what is no plain JSON: of a small body in words that say where, what and which key.

    A number that is too large for a float is infinity here, so that its field can be named.
    """
    if len(data) > LARGE:
        raise bad(f"the body is no JSON: {problem}")
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise bad(f"the body is no UTF-8: byte {error.start}") from None
    except UnicodeEncodeError:
        raise bad("the body has a lone surrogate, which is no text") from None
    except RecursionError:
        raise _too_deep(depth) from None
    except ValueError as error:
        raise bad(f"the body is no JSON: {error}") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


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
