"""What bodies of Anthropic's /v1/messages may have, and the chat request that they come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from octavo.server.routes import refused_fields as refused
from octavo.server.routes.schema import (
    LIMIT,
    MOST_CONTENTS,
    MOST_MESSAGES,
    MOST_TOOLS,
    STOP,
    Body,
    ChatRequest,
    Sampling,
    chosen_as,
    joined,
    many,
)

BILLING = "x-anthropic-billing-header"
"""How a line begins that Claude Code puts before its system message, and which is another one each time."""


KINDS = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")


class ContentBlock(Body):
    """A part of a message: text, a call, what a tool said, or thoughts."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""
    content: str | Annotated[list[ContentBlock], many(MOST_CONTENTS)] | None = None


class MessageParam(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], many(MOST_CONTENTS)]

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, value: Any) -> Any:
        """Blocks that are not text are refused by their type, also those that a tool said."""
        _require_text(value.get("content") if isinstance(value, dict) else None)
        return value


def _require_text(blocks: Any) -> None:
    """Raises ValueError for a block of a type that is not known."""
    for block in blocks if isinstance(blocks, list) else ():
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in KINDS:
            raise ValueError(f"a content block of type {kind!r}: this model takes text")
        if kind == "tool_result":
            _require_text(block.get("content"))


class ToolParam(Body):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(Body):
    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    refuses: ClassVar[refused.Rules] = {"task_budget": refused.ABSENT}
    format: OutputFormat | None = None
    effort: str | None = Field(None, description="reasoning_effort of /v1/chat/completions")


class CountRequest(Body):
    messages: Annotated[list[MessageParam], many(MOST_MESSAGES, least=1)]
    model: str | None = None
    system: str | Annotated[list[ContentBlock], many(MOST_CONTENTS)] | None = None
    tools: Annotated[list[ToolParam], many(MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="an older name of output_config.format")

    def form(self) -> tuple[str, OutputFormat | None]:
        """What a reply has to be, None for anything, with the name of the field that says so."""
        if self.output_format is not None or self.output_config is None:
            return "output_format", self.output_format
        return "output_config.format", self.output_config.format

    @model_validator(mode="after")
    def _one_form(self) -> CountRequest:
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise ValueError("output_format and output_config.format can't be used together")
        return self


class MessagesRequest(CountRequest, Sampling):
    refuses: ClassVar[refused.Rules] = refused.MESSAGES
    max_tokens: LIMIT
    stop_sequences: Annotated[list[STOP], many(16)] | None = None
    stream: bool | None = None


def chat_request(body: CountRequest) -> ChatRequest:
    """The request of /v1/chat/completions that asks for the same. Raises ValidationError."""
    messages = [{"role": "system", "content": system}] if (system := _system(body.system)) else []
    for message in body.messages:
        messages += _messages(message)
    asked: dict[str, Any] = {"messages": messages, "tools": _tools(body.tools), **_choice(body.tool_choice)}
    if body.thinking is not None:
        asked["chat_template_kwargs"] = {"enable_thinking": body.thinking.type != "disabled"}
    if (form := body.form()[1]) is not None:
        asked["response_format"] = {"type": form.type, "json_schema": {"schema": form.schema_}}
    if body.output_config is not None:
        asked["reasoning_effort"] = body.output_config.effort
    if isinstance(body, MessagesRequest):
        kwargs = {**(body.chat_template_kwargs or {}), **asked.get("chat_template_kwargs", {})}
        asked |= {**chosen_as(body), "max_tokens": body.max_tokens, "chat_template_kwargs": kwargs or None}
        asked["model"] = body.model
        if body.stop_sequences:
            asked["stop"] = body.stop_sequences
    return ChatRequest.model_validate(asked)


def _system(given: str | list[ContentBlock] | None) -> str:
    texts = [given] if isinstance(given, str) else [block.text for block in given or ()]
    return joined(map(_without_billing, texts))


def _without_billing(text: str) -> str:
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING) else text


def _messages(message: MessageParam) -> list[dict[str, Any]]:
    """A message as the chat has it: what tools said comes before the text beside it."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    out: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)}
        for block in message.content if block.type == "tool_result"
    ]
    one: dict[str, Any] = {"role": message.role, "content": _text(message.content)}
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": json.dumps(block.input)}}
        for block in message.content if block.type == "tool_use"
    ]
    thoughts = joined(block.thinking for block in message.content if block.type == "thinking")
    if calls:
        one["tool_calls"] = calls
    if thoughts:
        one["reasoning_content"] = thoughts
    return [*out, one] if one["content"] or calls or thoughts or not out else out


def _text(content: str | Sequence[ContentBlock] | None) -> str:
    if isinstance(content, str):
        return content
    return joined(block.text for block in content or () if block.type == "text")


def _tools(given: Sequence[ToolParam] | None) -> list[dict[str, Any]] | None:
    if not given:
        return None
    for tool in given:
        if tool.type not in (None, "custom"):
            raise ValueError(f"tools of type {tool.type!r} are not supported, only custom ones")
    return [
        {"type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}}
        for tool in given
    ]


def _choice(given: ToolChoice | None) -> dict[str, Any]:
    if given is None:
        return {}
    plain = {"auto": "auto", "any": "required", "none": "none"}.get(given.type)
    named = {"type": "function", "function": {"name": given.name or ""}}
    return {"tool_choice": plain or named, "parallel_tool_calls": not given.disable_parallel_tool_use}
