"""OpenAI's /v1/responses: a reply as a response, whole or in events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.engine.engine_protocol import Prefill
from octavo.server.generation.content_blocks import Blocks, Change, ReplyBlock
from octavo.server.generation.handle import CompletionOutput, RequestHandle
from octavo.server.generation.handover import created
from octavo.server.generation.ids import new_id
from octavo.server.generation.logprobs import chat_logprobs
from octavo.server.http.api_errors import ApiError, bad
from octavo.server.http.sse import named_event, to_json
from octavo.server.routes import chat
from octavo.server.routes.answer import answered, body_of, key_of, service_of
from octavo.server.routes.openai import counted
from octavo.server.routes.responses_schema import ResponsesRequest, chat_request

KEEPS = "keeps_responses"
"""In the state of a request: what it comes to is kept, if it asks for that."""
PREFIXES = {"thinking": "rs_", "text": "msg_", "call": "fc_"}
GROWS = {
    "thinking": "response.reasoning_text", "text": "response.output_text", "call": "response.function_call_arguments",
}
FIELDS = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
"""Names that /v1/responses has for fields of /v1/chat/completions."""


async def responses(request: Request) -> Response:
    """Reply to a conversation, as OpenAI's newer interface has it."""
    body, service = await body_of(request, ResponsesRequest), service_of(request)
    name, asked = service.require_model(body.model), chat_request(body)
    kept = _is_kept(request, body)
    with _named():
        generation = await chat.generation_request(service, asked, key_of(request))
    handle = RequestHandle(service, generation)
    reply = ResponseReply(body, name, handle, kept=kept)
    return await answered(request, handle, reply, stream=body.stream)


async def count_tokens(request: Request) -> Response:
    """The number of tokens that a response's prompt has."""
    body, service = await body_of(request, ResponsesRequest), service_of(request)
    _is_kept(request, body)
    with _named():
        return await counted(chat_request(body), service)


def _is_kept(request: Request, body: ResponsesRequest) -> bool:
    """Whether the response is kept, here or by the front. Raises ApiError for what needs that where none is."""
    keeps = bool(service_of(request).options.secret) or getattr(request.state, KEEPS, False)
    for name in ("previous_response_id", "background"):
        if getattr(body, name) and not keeps:
            raise bad(f"{name}: no response is kept here", name)
    return keeps and body.store is not False


@contextmanager
def _named() -> Iterator[None]:
    """Errors with the names that fields have here."""
    try:
        yield
    except ApiError as error:
        name = FIELDS.get(error.param or "")
        if name is not None:
            error.message = re.sub(rf"\b{error.param}\b", name, error.message)
            error.param = name.partition(".")[0]
        raise


class ResponseReply:
    """Writes a reply as a response."""

    def __init__(self, body: ResponsesRequest, name: str, handle: RequestHandle, *, kept: bool) -> None:
        self.body, self.name, self.handle, self.blocks, self.kept = body, name, handle, Blocks(), kept
        self.id, self.created = new_id("resp_"), created()
        self._ids: dict[int, str] = {}
        self._held: list[Any] = []  # log-probabilities of tokens whose text has not been sent
        self._logprobs: dict[int, list[Any]] = {}  # log-probabilities of each text, by the index of its block
        self._number = 0  # number of the next event

    def begin(self) -> bytes:
        response = self._response("in_progress")
        return b"".join(self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress"))

    def events(self, outputs: Sequence[CompletionOutput]) -> bytes:
        choice = self.handle.choices[0]
        read = [
            self._event(
                "response.in_progress", response=self._response("in_progress"), prompt_progress=choice.progress(at),
                **self._times(at),
            ) for one in outputs for at in one.progress
        ]
        return b"".join((*read, *(x for change, told in self._changes(outputs) for x in self._written(change, told))))

    def _times(self, at: Prefill | None = None) -> dict[str, Any]:
        """Times of an event, where these are asked for."""
        return {"timings": self.handle.choices[0].timings(at)} if self.body.timings_per_token else {}

    def _changes(self, outputs: Sequence[CompletionOutput]) -> Iterator[tuple[Change, list[Any]]]:
        """What outputs change, with the log-probabilities of each piece of text, and of held tokens before it."""
        for one in outputs:
            if self.handle.request.logprobs is not None:
                shown = self.handle.shown_tokens(one)
                tokens, likely = one.tokens[:shown], one.logprobs[:shown]
                self._held += chat_logprobs(self.handle.service.tokenizer, tokens, likely)["content"]
            for change in self.blocks.take([one]):
                yield change, self._tell(change[1]) if change[0] == "grows" else []

    def _tell(self, block: ReplyBlock) -> list[Any]:
        """How likely the tokens were that are held back, as a part of a text."""
        told, self._held = self._held, []
        if block.kind != "text":
            return []
        self._logprobs.setdefault(block.index, []).extend(told)
        return told

    def end(self) -> bytes:
        cut = self._status() == "incomplete"
        closing = b"".join(part for change in self._last() for part in self._written(change, [], cut=cut))
        response = self._response(self._status())
        return closing + self._event(f"response.{response['status']}", response=response, **self._times())

    def _last(self) -> Iterator[Change]:
        """The end of the block that is open, with what is held back."""
        for change in self.blocks.end():
            self._tell(change[1])
            yield change

    def error(self, error: ApiError) -> bytes:
        failed = self._response("failed") | {"error": {"code": error.code or error.type, "message": error.message}}
        told = self._event("error", code=error.code or error.type, message=error.message, param=error.param)
        return told + self._event("response.failed", response=failed)

    def whole(self, found: Sequence[Sequence[CompletionOutput]]) -> dict[str, Any]:
        """The response of a request that is finished."""
        for _ in (*self._changes(found[0]), *self._last()):
            pass
        return self._response(self._status())

    def _written(self, change: Change, told: list[Any], *, cut: bool = False) -> Iterator[bytes]:
        """The events of a change. `told`: how likely the tokens of a piece were; `cut`: the block is not complete."""
        what, block, piece = change
        place: dict[str, Any] = {"output_index": block.index}
        item = {**place, "item_id": self._id(block)}
        inner = item if block.kind == "call" else {**item, "content_index": 0}
        logprobs: dict[str, Any] = {"logprobs": told} if block.kind == "text" else {}
        if what == "begins":
            yield self._event("response.output_item.added", **place, item=self._item(block, begun=True))
            if block.kind != "call":
                yield self._event("response.content_part.added", **inner, part=_part(block, "", []))
        elif what == "grows":
            yield self._event(f"{_grows(block)}.delta", **inner, delta=piece, **logprobs, **self._times())
        else:
            if block.kind == "text":
                logprobs = {"logprobs": self._logprobs.get(block.index, [])}
            key = "input" if block.custom else "arguments" if block.kind == "call" else "text"
            named = {"name": block.name} if block.kind == "call" and not block.custom else {}
            yield self._event(f"{_grows(block)}.done", **inner, **{key: block.text}, **named, **logprobs)
            if block.kind != "call":
                yield self._event("response.content_part.done", **inner, part=self._part(block))
            yield self._event("response.output_item.done", **place, item=self._item(block, cut=cut))

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = to_json({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return named_event(kind, data)

    def _id(self, block: ReplyBlock) -> str:
        return self._ids.setdefault(block.index, new_id("ctc_" if block.custom else PREFIXES[block.kind]))

    def _part(self, block: ReplyBlock) -> dict[str, Any]:
        return _part(block, block.text, self._logprobs.get(block.index, []))

    def _item(self, block: ReplyBlock, *, begun: bool = False, cut: bool = False) -> dict[str, Any]:
        """A block as an item of the output; `begun`: without what it will hold, `cut`: with a part of it."""
        status = "in_progress" if begun else "incomplete" if cut else "completed"
        item: dict[str, Any] = {"id": self._id(block), "status": status}
        content = [] if begun else [self._part(block)]
        if block.custom:
            text = "" if begun else block.text
            return {**item, "type": "custom_tool_call", "call_id": block.id, "name": block.name, "input": text}
        if block.kind == "call":
            arguments = "" if begun else block.text
            return {**item, "type": "function_call", "call_id": block.id, "name": block.name, "arguments": arguments}
        if block.kind == "thinking":
            return {**item, "type": "reasoning", "summary": [], "content": content}
        return {**item, "type": "message", "role": "assistant", "content": content}

    def _status(self) -> str:
        return "incomplete" if self.handle.choices[0].finish == "length" else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        body, sampling = self.body, self.handle.request.sampling
        ended = status in ("completed", "incomplete")
        blocks = self.blocks.all if ended else []
        items = [self._item(one, cut=status == "incomplete" and one is blocks[-1]) for one in blocks]
        return {
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "model": self.name,
            "output": items, "error": None, "top_logprobs": self.handle.request.logprobs or 0,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": self._usage() if ended else None, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {}, "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id, "store": self.kept,
            "truncation": "disabled", "background": False,
            "reasoning": (body.reasoning.model_dump() if body.reasoning else {"effort": None, "summary": None}),
            "text": {"format": _dumped(body.text.format) if body.text and body.text.format else {"type": "text"}},
            "tool_choice": _dumped(body.tool_choice) or "auto", "tools": [_dumped(tool) for tool in body.tools or ()],
        }

    def _usage(self) -> dict[str, Any]:
        found = self.handle.usage()
        return {
            "input_tokens": found["prompt_tokens"], "input_tokens_details": found["prompt_tokens_details"],
            "output_tokens": found["completion_tokens"],
            "output_tokens_details": found["completion_tokens_details"], "total_tokens": found["total_tokens"],
        }


def _grows(block: ReplyBlock) -> str:
    """The events of a block that grows."""
    return "response.custom_tool_call_input" if block.custom else GROWS[block.kind]


def _part(block: ReplyBlock, text: str, logprobs: Sequence[Any]) -> dict[str, Any]:
    if block.kind == "thinking":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _dumped(value: Any) -> Any:
    """A part of the request as it came."""
    return value if value is None or isinstance(value, str) else value.model_dump(by_alias=True, exclude_none=True)
