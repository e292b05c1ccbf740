"""What bodies of OpenAI's /v1/responses may have, and the chat request that they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from octavo.server.routes import refused_fields as refused
from octavo.server.routes.schema import (
    ARGUMENTS,
    LIMIT,
    MOST_CONTENTS,
    MOST_MESSAGES,
    MOST_TOOLS,
    Body,
    ChatRequest,
    Sampling,
    chosen_as,
    few,
    joined,
    many,
)

TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    LOGPROBS, "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""What responses may be asked to have. They have nothing of all but the first: thoughts come as text."""
ITEMS = ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning")


class ContentPart(Body):
    """A part of an item's content."""

    type: str
    text: str = ""
    refusal: str = ""


class Item(Body):
    """A part of a conversation: a message, a call, what it came to, or thoughts."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Annotated[list[ContentPart], many(MOST_CONTENTS)] | None = None
    summary: Annotated[list[ContentPart], many(MOST_CONTENTS)] | None = None
    call_id: str = ""
    name: str = ""
    arguments: ARGUMENTS = ""
    input: str = ""
    output: str | Annotated[list[ContentPart], many(MOST_CONTENTS)] = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Item:
        if self.type == "message" and (self.role is None or self.content is None):
            raise ValueError("a message needs a role and content")
        return self


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    refuses: ClassVar[refused.Rules] = {"verbosity": refused.CHAT["verbosity"]}
    format: TextFormat | None = None


class InputFormat(Body):
    """What the text of a custom tool's call may be."""

    type: Literal["text", "grammar"]
    definition: str | None = None
    syntax: Literal["regex", "lark"] | None = None


class FunctionTool(Body):
    type: str
    name: Annotated[str, Field(max_length=256)] = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: InputFormat | None = None

    def as_chat(self) -> dict[str, Any]:
        """The tool as /v1/chat/completions has it."""
        if self.type == "function":
            return {"type": "function", "function": self.model_dump(exclude={"type", "format"})}
        custom: dict[str, Any] = {"name": self.name, "description": self.description}
        if self.format is not None:
            grammar = {"definition": self.format.definition, "syntax": self.format.syntax}
            custom["format"] = {"type": self.format.type} | ({"grammar": grammar} if self.format.definition else {})
        return {"type": "custom", "custom": custom}


class NamedChoice(Body):
    type: Literal["function", "custom"]
    name: str


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], many(MOST_TOOLS, least=1)]


class ReasoningOptions(Body):
    refuses: ClassVar[refused.Rules] = {"mode": refused.only("standard"), "context": refused.only("auto", "all_turns")}
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(Sampling):
    """`store`, `previous_response_id` and `background` are done before, see `KeptResponses`: here they are repeated."""

    refuses: ClassVar[refused.Rules] = refused.RESPONSES

    input: Annotated[str, Field(min_length=1)] | Annotated[list[Item], many(MOST_MESSAGES, least=1)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: LIMIT | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], many(MOST_TOOLS)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"] | Annotated[NamedChoice | AllowedChoice, Field(discriminator="type")] | None
    ) = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    metadata: Annotated[dict[str, str], few(16)] | None = None
    include: Annotated[list[str], many(len(INCLUDABLE))] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    store: bool | None = None
    previous_response_id: Annotated[str, Field(max_length=512)] | None = None
    background: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, value: Any) -> Any:
        """Items and parts of them that are not text are refused by their type."""
        items = value.get("input") if isinstance(value, dict) else None
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict):
                _require_text(item)
        return value

    @model_validator(mode="after")
    def _known_parts(self) -> ResponsesRequest:
        for one in self.include or ():
            if one not in INCLUDABLE:
                raise ValueError(f"include: has {one!r} (allowed: {', '.join(INCLUDABLE)})")
        return self

    @model_validator(mode="after")
    def _known_tools(self) -> ResponsesRequest:
        for tool in self.tools or ():
            if tool.type not in ("function", "custom") or not tool.name:
                raise ValueError(f"tools: one of type {tool.type!r} (allowed: function and custom, with a name)")
        return self


def _require_text(item: dict[str, Any]) -> None:
    """Raises ValueError for an item, or a part of it, of a type that is not known."""
    if (kind := item.get("type", "message")) not in ITEMS:
        raise ValueError(f"an item of type {kind!r} (allowed: {', '.join(ITEMS)})")
    for parts in (item.get("content"), item.get("output")):
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind is not None and kind not in TEXTS:
                raise ValueError(f"a content part of type {kind!r}: this model takes text")


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """The request of /v1/chat/completions that asks for the same. Raises ValidationError."""
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        messages += _messages(body.input)
    choice: Any = body.tool_choice
    if isinstance(choice, NamedChoice):
        choice = _named(choice)
    elif isinstance(choice, AllowedChoice):
        tools = [_named(tool) for tool in choice.tools]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}
    functions = [tool.as_chat() for tool in body.tools or ()]
    asked: dict[str, Any] = {
        "messages": messages, "max_tokens": body.max_output_tokens, **chosen_as(body), "stream": body.stream,
        "model": body.model,
        "tools": functions or None, "tool_choice": choice,
        "parallel_tool_calls": body.parallel_tool_calls, "response_format": _format(body.text),
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "logprobs": LOGPROBS in (body.include or ()) or body.top_logprobs is not None,
        "top_logprobs": body.top_logprobs,
    }
    return ChatRequest.model_validate(asked)


def _named(choice: NamedChoice) -> dict[str, Any]:
    return {"type": choice.type, choice.type: {"name": choice.name}}


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as messages: an assistant's thoughts, text and calls that follow each other are one."""
    out: list[dict[str, Any]] = []
    for item in items:
        if item.type in ("function_call_output", "custom_tool_call_output"):
            out.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
        elif item.type == "message" and item.role != "assistant":
            out.append({"role": item.role, "content": _text(item.content)})
        else:
            if not out or out[-1]["role"] != "assistant" or (item.type == "message" and out[-1]["content"]):
                out.append({"role": "assistant", "content": ""})
            _add(out[-1], item)
    return out


def _add(message: dict[str, Any], item: Item) -> None:
    """Add an item of the assistant's to its message."""
    if item.type == "message":
        message["content"] += _text(item.content)
    elif item.type == "reasoning":
        thoughts = _text(item.content) or _text(item.summary)
        message["reasoning_content"] = joined((message.get("reasoning_content", ""), thoughts))
    else:
        call: dict[str, Any] = {"id": item.call_id, "type": "custom" if item.type == "custom_tool_call" else "function"}
        told = {"input": item.input} if item.type == "custom_tool_call" else {"arguments": item.arguments}
        call[call["type"]] = {"name": item.name, **told}
        message.setdefault("tool_calls", []).append(call)


def _text(content: str | Sequence[ContentPart] | None) -> str:
    return content if isinstance(content, str) else joined(part.text or part.refusal for part in content or ())


def _format(text: TextOptions | None) -> dict[str, Any] | None:
    form = text.format if text is not None else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": form.name or "schema", "schema": form.schema_}}
