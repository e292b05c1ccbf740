"""A turn of a conversation: llm's messages as a prompt's tokens, and the reply's tokens as llm's events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import llm
from llm.parts import Message, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart

import octavo
from octavo.errors import GrammarError, UsageError
from octavo.runtime.output.thinking import PROMPT_END, thinking_after
from octavo.server.constraints.tool_choice import or_json
from octavo.server.generation.output_parser import Delta, OutputParser
from octavo.server.routes.template_variables import CHOICES
from octavo.server.tool_calls.tools import ToolUse, for_template, tool_use
from octavo.text.template import TOOL_USE


class Turn:
    """A prompt that is computed; `reply` gives pieces, after each of which `events` has what is new."""

    def __init__(
        self, model: octavo.Model, prompt: llm.Prompt, response: llm.Response | llm.AsyncResponse, think: bool | None,
        options: Mapping[str, Any],
    ) -> None:
        self._model, self._response, self._seen = model, response, 0
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        functions = [_function(tool) for tool in prompt.tools if isinstance(tool, llm.Tool)]
        messages = [one for message in prompt.messages for one in _messages(message)]
        stops = (options["stop"],) if "stop" in options else ()
        use = None
        if model.template is None:
            tokens = _plain(model, messages, functions)
            self._parser = OutputParser(model.tokenizer, stops, after=tokens)
        else:
            template = model.template
            if functions and TOOL_USE in model.tokenizer.template_names:
                template = model.tokenizer.chat_template(TOOL_USE)
            use = tool_use(template, functions, None, None, several=True)
            listed = [{"type": "function", "function": one} for one in functions]
            variables: dict[str, Any] = {CHOICES[0]: True} if think is None else dict.fromkeys(CHOICES, think)
            if use is not None and use.told:
                variables["tools"] = listed
            tokens = model.tokenizer.encode_chat(template, for_template(template, messages, listed), **variables)
            thinking = thinking_after(template.source, model.tokenizer.decode(tokens[-PROMPT_END:]))
            if use is None:
                self._parser = OutputParser(model.tokenizer, stops, thinking)
            else:
                self._parser = OutputParser(model.tokenizer, stops, thinking, use.parser(), use.call_id())
        self.reply = _begun(model, tokens, use, prompt.schema, options)

    def events(self) -> Iterator[StreamEvent]:
        """What the tokens since the last call say."""
        new = [token for token in self.reply.tokens[self._seen :] if token not in self.reply.stop_ids]
        self._seen = len(self.reply.tokens)
        return self._told(self._parser.push(new))

    def finish(self) -> Iterator[StreamEvent]:
        """What is left to say once the reply has ended, and what llm keeps of it."""
        yield from self.events()
        if self._parser.stopped is None:
            yield from self._told(self._parser.finish(cut=self.reply.finish_reason != "stop"))
        for name, call_id, arguments in self._calls.values():
            self._response.add_tool_call(llm.ToolCall(name, _arguments("".join(arguments)), call_id))
        timings = self.reply.timings
        self._response.set_usage(
            input=timings.prompt_tokens, output=len(self.reply.tokens), details={"cached_tokens": timings.cached_tokens}
        )
        self._response.response_json = {"finish_reason": self.reply.finish_reason}

    def _told(self, deltas: list[Delta]) -> Iterator[StreamEvent]:
        for delta in deltas:
            if (tool := delta.tool) is not None:
                name, call_id, arguments = self._calls.setdefault(tool.index, (tool.name or "", tool.id or "", []))
                if tool.name is not None:
                    yield StreamEvent(type="tool_call_name", chunk=name, tool_call_id=call_id)
                if tool.arguments:
                    arguments.append(tool.arguments)
                    yield StreamEvent(type="tool_call_args", chunk=tool.arguments, tool_call_id=call_id)
            elif delta.reasoning:
                yield StreamEvent(type="reasoning", chunk=delta.reasoning)
            else:
                yield StreamEvent(type="text", chunk=delta.content)


def _begun(
    model: octavo.Model, tokens: list[int], use: ToolUse | None, schema: Any, options: Mapping[str, Any]
) -> octavo.Generation:
    """The reply, held to a schema and to the parameters of tools; these are free where no grammar can hold them."""
    if schema:
        answer = octavo.Grammar.json_schema(schema)
        if use is not None:
            answer = or_json(replace(use, choice="required").grammar(model.tokenizer), answer, use.form)
        return model.generate(tokens, grammar=answer, **options)
    if use is None:
        return model.generate(tokens, **options)
    try:
        return model.generate(tokens, grammar=use.grammar(model.tokenizer), **options)
    except (GrammarError, UsageError):
        return model.generate(tokens, **options)


def _plain(model: octavo.Model, messages: list[dict[str, Any]], functions: list[dict[str, Any]]) -> list[int]:
    """The prompt for a model without a chat template, which goes on with a text."""
    if functions or [one["role"] for one in messages] != ["user"]:
        raise llm.ModelError(f"{model.name} has no chat template: it continues a prompt, and takes no system prompt, "
                             "conversation or tools")
    text: str = messages[0]["content"]
    return model.tokenizer.encode(text)


def _function(tool: llm.Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema or None}


def _messages(message: Message) -> Iterator[dict[str, Any]]:
    """A message of llm's as chat templates take it; each result of a tool is one of its own."""
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            text = part.output if part.exception is None else f"Error: {part.exception}"
            yield {"role": "tool", "content": text, "tool_call_id": part.tool_call_id or "", "name": part.name}
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    thoughts = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    calls = [
        {"id": part.tool_call_id or "", "type": "function",
         "function": {"name": part.name, "arguments": part.arguments}}
        for part in message.parts if isinstance(part, ToolCallPart)
    ]
    if message.role != "tool":
        yield {"role": message.role, "content": text, **({"reasoning_content": thoughts} if thoughts else {}),
               **({"tool_calls": calls} if calls else {})}


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments. Raises ModelError for those that were cut off."""
    try:
        found: dict[str, Any] = json.loads(text or "{}")
        return found
    except ValueError:
        raise llm.ModelError(f"the reply ended within a tool call: {text[:60]!r}; more max_tokens or n_ctx") from None
