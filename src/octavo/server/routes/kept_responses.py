"""Responses that later requests go on from, and ask for by their ids: `store`, `previous_response_id`, `background`.

An application around another, which knows nothing of other requests: it gets the whole conversation as `input`. So it
may be a model's server, or a front of several, and what is kept does not end with one of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from time import time
from types import MethodType
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.generation.ids import new_id
from octavo.server.http.api_errors import ApiError, api_error, bad
from octavo.server.http.body import LARGE, Bodies, Sharing, parse, read
from octavo.server.http.inner_call import Answer, asked
from octavo.server.http.sse import to_json
from octavo.server.routes.answer import json_response, key_of
from octavo.server.routes.response_store import Kept, ResponseStore, failed, unfinished
from octavo.server.routes.responses import KEEPS
from octavo.server.routes.responses_schema import ResponsesRequest
from octavo.server.serve_options import Limits

log = logging.getLogger("octavo")
CREATE = ("/v1/responses", "/responses")
COUNT = ("/v1/responses/input_tokens", "/responses/input_tokens")
ENDS = (b"event: response.completed\n", b"event: response.incomplete\n")
PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_",
            "custom_tool_call": "ctc_", "custom_tool_call_output": "ctco_"}
MOST_LISTED = 100
Handlers = Mapping[Any, Callable[[Request, Exception], Any]]


class _Asked(msgspec.Struct):
    """What of a request decides whether its response is kept."""

    input: msgspec.Raw = msgspec.Raw(b"null")
    store: Any = None
    previous_response_id: Any = None
    background: Any = None


class KeptResponses:
    """An ASGI application around one that answers /v1/responses.

    handlers  of errors, as Starlette has them
    limits    of bodies
    """

    def __init__(
        self, app: ASGIApp, store: ResponseStore, handlers: Handlers, limits: Callable[[], Limits]
    ) -> None:
        self.app, self.store, self.limits = app, store, limits
        self._running, self._bodies = dict[str, asyncio.Task[None]](), Bodies()
        both = [("POST", path, self.create) for path in CREATE] + [("POST", path, self.count) for path in COUNT]
        both += [(method, path, MethodType(endpoint, self)) for method, path, endpoint in BY_ID]
        self._routes = [Route(path, endpoint, methods=[method]) for method, path, endpoint in both]
        self._own = Starlette(routes=self._routes, exception_handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_own = scope["type"] == "http" and any(one.matches(scope)[0] is Match.FULL for one in self._routes)
        await (self._own if is_own else self.app)(scope, receive, send)

    async def create(self, request: Request) -> Response:
        """Reply to a conversation, and keep the response."""
        body, owner = await read(request, self.limits()), key_of(request)
        asked = _read(body)
        if asked is None:
            return _Passed(self.app, body)
        if asked.background is True:
            return await self._begin(request, body, asked, owner)
        items = None
        if isinstance(asked.previous_response_id, str):
            body, items = await self._whole(body, asked.previous_response_id, owner)
        request.scope["state"][KEEPS] = True
        if asked.store is False:
            return _Passed(self.app, body)
        size = len(body)
        return _Passed(self.app, body, lambda response: self._keep(response, owner, items, asked.input, size))

    async def count(self, request: Request) -> Response:
        """The tokens of a response's prompt."""
        body, owner = await read(request, self.limits()), key_of(request)
        asked = _read(body)
        if asked is not None and isinstance(asked.previous_response_id, str):
            body, _ = await self._whole(body, asked.previous_response_id, owner)
            request.scope["state"][KEEPS] = True
        return _Passed(self.app, body)

    async def _whole(self, body: bytearray, previous: str, owner: str) -> tuple[bytearray, list[Any]]:
        """A body with all of the conversation as its input, and that. Raises ApiError."""
        kept = self.store.get(previous, owner)
        if kept is None:
            raise bad(f"Previous response with id '{previous}' not found.", "previous_response_id",
                      "previous_response_not_found")

        def made() -> tuple[bytearray, list[Any]]:
            response, given = json.loads(kept.response), parse(body, self.limits().depth)
            if response["status"] not in ("completed", "incomplete"):
                raise bad(f"Previous response with id '{previous}' is {response['status']}.", "previous_response_id")
            ResponsesRequest.model_validate({**given, "previous_response_id": None, "background": None})
            new = _items(msgspec.Raw(to_json(given.get("input"))))
            items = [*json.loads(kept.items), *response["output"], *new]
            return bytearray(to_json({**given, "input": items})), items

        return await asyncio.to_thread(made) if len(body) + len(kept.items) > LARGE else made()

    async def _keep(
        self, response: dict[str, Any], owner: str, items: list[Any] | None, given: msgspec.Raw, size: int
    ) -> None:
        """Keep a response to these items, or to what was `given` as input; `size`: bytes of the request."""
        def keep() -> None:
            whole = _items(given) if items is None else items
            self.store.put(response["id"], owner, Kept(to_json(response), to_json(whole)))

        if self.store.path is None and size <= LARGE:
            keep()
        else:
            await asyncio.to_thread(keep)

    async def _begin(self, request: Request, body: bytearray, asked: _Asked, owner: str) -> Response:
        """Answer at once, and reply in the background. Raises ApiError, and ValidationError."""
        given = parse(body, self.limits().depth)
        ResponsesRequest.model_validate({**given, "background": None})
        if given.get("stream"):
            raise bad("background: can't be used together with stream", "background")
        if asked.store is False:
            raise bad("background: needs store, as what is not kept can't be asked for later", "background")
        if len(self._running) >= self.limits().queue:
            raise ApiError(429, f"{len(self._running)} responses are computed in the background (allowed: as many)",
                           code="queue_full", headers={"Retry-After": "1"})
        items = None
        if isinstance(asked.previous_response_id, str):
            body, items = await self._whole(body, asked.previous_response_id, owner)
            given["input"] = items
        one = new_id("resp_")
        response: dict[str, Any] = {
            "id": one, "object": "response", "created_at": int(time()), "status": "queued",
            "background": True, "model": given.get("model") or "", "output": [], "error": None, "usage": None,
            "incomplete_details": None, "instructions": given.get("instructions"), "store": True,
            "metadata": given.get("metadata") or {}, "tools": given.get("tools") or [],
            "tool_choice": given.get("tool_choice") or "auto",
            "parallel_tool_calls": given.get("parallel_tool_calls") is not False,
            "previous_response_id": given.get("previous_response_id"),
        }
        items = items or _items(asked.input)
        self.store.put(one, owner, Kept(to_json(response), to_json(items)), running=True)
        headers = [one for one in request.headers.raw if one[0] in (b"authorization", b"x-api-key")]
        inner = to_json({**given, "background": False, "stream": False})
        doing = self._reply(response, items, owner, inner, headers)
        self._running[one] = task = asyncio.get_running_loop().create_task(doing)
        task.add_done_callback(lambda _: self._running.pop(one, None))
        return json_response(response)

    async def _reply(
        self, response: dict[str, Any], items: list[Any], owner: str, body: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """Have a response computed, and keep what comes of it."""
        one, told = response["id"], unfinished(response)
        try:
            found = await asked(self._inner, CREATE[0], body, one, key=owner, headers=headers)
            told = _told(response, found)
        except asyncio.CancelledError:
            if self._running.get(one) is None:  # by its client
                told = to_json({**response, "status": "cancelled"})
            raise
        except Exception as error:
            log.warning("response %s failed", one, exc_info=True)
            told = failed(response, "server_error", api_error(error).message)
        finally:
            self.store.put(one, owner, Kept(told, to_json(items)))

    async def _inner(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, for a request that no client waits for."""
        scope["state"][KEEPS] = True
        await Sharing(self.app, self._bodies)(scope, receive, send)

    async def cancel(self, request: Request) -> Response:
        """End a response that is computed in the background."""
        kept = self._kept(request)
        response = json.loads(kept.response)
        if not response.get("background"):
            raise bad("Cannot cancel a synchronous response.")
        await self._stop(response["id"])
        return Response(self._kept(request).response, media_type="application/json")

    async def _stop(self, one: str) -> None:
        """Have a response that is computed in the background end as cancelled."""
        if (task := self._running.pop(one, None)) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def retrieve(self, request: Request) -> Response:
        """A response that is kept."""
        if request.query_params.get("stream") in ("true", "1"):
            raise bad("stream: the events of a response are not kept (allowed: false)", "stream")
        return Response(self._kept(request).response, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Forget a response."""
        one = request.path_params["id"]
        self._kept(request)
        await self._stop(one)
        self.store.delete(one, key_of(request))
        return json_response({"id": one, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """What a response was a reply to, the conversation before it too."""
        items = json.loads(self._kept(request).items)
        return json_response(listed(items, request.query_params))

    def _kept(self, request: Request) -> Kept:
        """The response that a request names. Raises ApiError."""
        one = request.path_params["id"]
        kept = self.store.get(one, key_of(request))
        if kept is None:
            raise _unknown(one)
        return kept


class _Passed(Response):
    """The inner application's answer to a body; `keep` is given the response that it comes to, before its end is sent.

    What is not sent yet waits for that, so that a client that has the end can go on from it.
    """

    def __init__(
        self, app: ASGIApp, body: bytes | bytearray, keep: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        self.app, self._body, self._keep, self.background = app, body, keep, None
        self._status, self._events, self._data = 0, False, bytearray()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = True

        async def receiving() -> Message:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": bytes(self._body), "more_body": False}
            return await receive()

        async def sending(message: Message) -> None:
            await self._look(message)
            await send(message)

        length = [(b"content-length", b"%d" % len(self._body))]
        headers = [one for one in scope["headers"] if one[0] not in (b"content-length", b"transfer-encoding")]
        await self.app({**scope, "headers": headers + length}, receiving, send if self._keep is None else sending)

    async def _look(self, message: Message) -> None:
        """Keep the response where a message has its end."""
        assert self._keep is not None
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._events = any(k == b"content-type" and b"event-stream" in v for k, v in message["headers"])
            return
        if self._status != 200:
            return
        self._data += message.get("body", b"")
        if not self._events:
            if not message.get("more_body"):
                await self._keep(msgspec.json.decode(self._data))
            return
        *events, self._data = self._data.split(b"\n\n")
        for one in events:
            if one.startswith(ENDS):
                await self._keep(msgspec.json.decode(one.partition(b"\ndata: ")[2])["response"])


def _read(body: bytearray) -> _Asked | None:
    """What a body asks for; None where it is wrong, which the application that it is for says better."""
    try:
        return msgspec.json.decode(body, type=_Asked)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _items(given: msgspec.Raw) -> list[Any]:
    """The `input` of a request as items with ids, whose contents are parts."""
    found = msgspec.json.decode(given)
    items = [{"role": "user", "content": found}] if isinstance(found, str) else found
    return [_item(one) for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def _item(given: dict[str, Any]) -> dict[str, Any]:
    item: dict[str, Any] = {"type": "message", **given}
    if not isinstance(item.get("id"), str):
        item["id"] = new_id(PREFIXES.get(item["type"], "item_") if isinstance(item["type"], str) else "item_")
    if item["type"] == "message":
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        more: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
        if isinstance(item.get("content"), str):
            item["content"] = [{"type": kind, "text": item["content"], **more}]
        item.setdefault("status", "completed")
    return item


def _told(response: dict[str, Any], found: Answer) -> bytes:
    """What the application answered, as the response that was promised."""
    said = msgspec.json.decode(found.body)
    if found.status != 200:
        error = said.get("error", {})
        return failed(response, error.get("code") or error.get("type") or "server_error", error.get("message", ""))
    own = {name: response[name] for name in ("id", "created_at", "background")}
    return to_json({**said, **own})


def listed(items: list[dict[str, Any]], query: Mapping[str, str], most: int = MOST_LISTED) -> dict[str, Any]:
    """A page of a list, as OpenAI's are: `limit`, `after` and `order`, the last one first unless it is "asc".

    Raises ApiError.
    """
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= most):
        raise bad(f"limit is {limit[:20]!r} (allowed: 1 to {most})", "limit")
    if order not in ("asc", "desc"):
        raise bad(f"order is {order[:20]!r} (allowed: asc, desc)", "order")
    rows = items if order == "asc" else items[::-1]
    if after is not None:
        at = next((i for i, one in enumerate(rows) if one["id"] == after), None)
        if at is None:
            raise bad(f"after is {after[:80]!r}, which is none of these", "after")
        rows = rows[at + 1 :]
    page = rows[: int(limit)]
    ids = [one["id"] for one in page] or [None]
    return {"object": "list", "data": page, "first_id": ids[0], "last_id": ids[-1], "has_more": len(rows) > len(page)}


def _unknown(one: str) -> ApiError:
    return ApiError(404, f"Response with id '{one[:200]}' not found.", type="invalid_request_error")


BY_ID = tuple(
    (method, f"{path}/{{id}}{rest}", endpoint)
    for path in CREATE
    for method, rest, endpoint in (
        ("GET", "", KeptResponses.retrieve), ("DELETE", "", KeptResponses.delete),
        ("POST", "/cancel", KeptResponses.cancel), ("GET", "/input_items", KeptResponses.input_items),
    )
)
"""Routes of a kept response."""
