"""Anthropic's routes: /v1/messages and /v1/messages/count_tokens, their events, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.generation.content_blocks import Blocks, Change, ReplyBlock
from octavo.server.generation.handle import CompletionOutput, RequestHandle
from octavo.server.generation.ids import new_id
from octavo.server.http.api_errors import ApiError, anthropic_error, bad
from octavo.server.http.background import in_thread_if_long
from octavo.server.http.sse import named_event, to_json
from octavo.server.routes import chat
from octavo.server.routes.answer import answered, body_of, json_response, key_of, service_of
from octavo.server.routes.anthropic_schema import CountRequest, MessagesRequest, chat_request
from octavo.server.routes.schema import ChatRequest

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def messages(request: Request) -> Response:
    """Reply to messages, as Anthropic does."""
    body, service = await body_of(request, MessagesRequest), service_of(request)
    name, asked = service.require_model(body.model), _asked(body)
    try:
        generation = await chat.generation_request(service, asked, key_of(request))
    except ApiError as error:
        if error.param == "response_format":  # an error of Anthropic's names a field in its message only
            raise bad(f"{body.form()[0]}: {error.message}") from None
        raise
    handle = RequestHandle(service, generation)
    return await answered(request, handle, MessageReply(name, handle), stream=body.stream)


async def count_tokens(request: Request) -> Response:
    """The number of tokens that a request's prompt has."""
    body, service = await body_of(request, CountRequest), service_of(request)
    asked = _asked(body)
    prompt = await in_thread_if_long(chat.effort(asked), chat.prompt_of, service, asked)
    return json_response({"input_tokens": len(prompt)})


def _asked(body: CountRequest) -> ChatRequest:
    try:
        return chat_request(body)
    except ValueError as error:
        if type(error) is ValueError:
            raise bad(str(error)) from None
        raise


class MessageReply:
    """Writes a reply as a message, whole or in events."""

    def __init__(self, name: str, handle: RequestHandle) -> None:
        self.id, self.name, self.handle, self.blocks = new_id("msg_"), name, handle, Blocks()
        self._pinged = False

    def begin(self) -> bytes:
        return _event("message_start", message=self._message([], None) | {"stop_sequence": None})

    def events(self, outputs: list[CompletionOutput]) -> bytes:
        return b"".join(map(self._written, self.blocks.take(outputs)))

    def end(self) -> bytes:
        closing = b"".join(map(self._written, self.blocks.end()))
        delta = {"stop_reason": self._reason(), "stop_sequence": self.handle.choices[0].stopped}
        return closing + _event("message_delta", delta=delta, usage=self._usage()) + _event("message_stop")

    def error(self, error: ApiError) -> bytes:
        return named_event("error", to_json(anthropic_error(error)))

    def _written(self, change: Change) -> bytes:
        what, block, piece = change
        if what == "begins":
            ping = b"" if self._pinged else _event("ping")
            self._pinged = True
            return _event("content_block_start", index=block.index, content_block=_block(block, empty=True)) + ping
        if what == "ends":
            return _event("content_block_stop", index=block.index)
        kind, key = {"thinking": ("thinking_delta", "thinking"), "text": ("text_delta", "text"),
                     "call": ("input_json_delta", "partial_json")}[block.kind]
        return _event("content_block_delta", index=block.index, delta={"type": kind, key: piece})

    def whole(self, found: Sequence[Sequence[CompletionOutput]]) -> dict[str, Any]:
        """The message of a request that is finished."""
        for _ in self.blocks.take(found[0]):
            pass
        content = [_block(block) for block in self.blocks.all]
        return self._message(content, self._reason()) | {"stop_sequence": self.handle.choices[0].stopped}

    def _message(self, content: list[Any], reason: str | None) -> dict[str, Any]:
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.name, "content": content,
            "stop_reason": reason, "usage": self._usage(),
        }

    def _reason(self) -> str:
        choice = self.handle.choices[0]
        return "stop_sequence" if choice.stopped is not None else REASONS.get(choice.finish or "", "end_turn")

    def _usage(self) -> dict[str, int]:
        """Tokens; those of the prompt that were in the cache count apart."""
        found = self.handle.usage()
        cached = found["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": found["prompt_tokens"] - cached, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0, "output_tokens": found["completion_tokens"],
        }


def _block(block: ReplyBlock, *, empty: bool = False) -> dict[str, Any]:
    """A block as a part of a message; `empty` as it begins."""
    text = "" if empty else block.text
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": {} if empty else block.data() or {}}
    return {"type": "thinking", "thinking": text, "signature": ""} if block.kind == "thinking" else {
        "type": "text", "text": text}


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, to_json({"type": kind, **fields}))
