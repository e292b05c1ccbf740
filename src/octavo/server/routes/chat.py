"""/v1/chat/completions: messages to a GenerationRequest, and its replies as chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from octavo.errors import GrammarError, UsageError
from octavo.runtime.grammar.grammar import Grammar
from octavo.runtime.output.reply import LogProbs
from octavo.runtime.output.thinking import PROMPT_END, Thinking, thinking_after
from octavo.server.constraints.response_format import effort_of, grammar_of, held, require_grammar
from octavo.server.constraints.tool_choice import or_json
from octavo.server.generation.handle import ChoiceState, CompletionOutput, RequestHandle
from octavo.server.generation.logprobs import chat_logprobs
from octavo.server.generation.output_parser import Delta
from octavo.server.generation.request import (
    GenerationRequest,
    most_tokens,
    named_biases,
    sampling_of,
    seed_of,
    shows_progress,
    stops_of,
    turn_of,
)
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ApiError, bad
from octavo.server.http.background import LONG, in_thread_if_long
from octavo.server.http.sse import to_json
from octavo.server.routes.chunks import ChunkedReply
from octavo.server.routes.llama_server_schema import TemplateRequest
from octavo.server.routes.schema import AllowedTools, ChatRequest, Message, NamedTool, Tool
from octavo.server.routes.template_variables import template_variables
from octavo.server.tool_calls.tools import ToolUse, for_template, knows_tools, tool_use

FIRST = b'{"role":"assistant","content":""}'
"""The first delta of a reply. Clients join what later ones say, so none has a role again."""


async def generation_request(service: Service, body: ChatRequest, key: str) -> GenerationRequest:
    """What a request comes to. Raises ApiError, OctavoError."""
    generation = await in_thread_if_long(effort(body), request_without_grammar, service, body, key)
    return replace(generation, grammar=await held(service, body, _grammar_of, generation.tools, generation.thinking))


def request_without_grammar(service: Service, body: ChatRequest, key: str) -> GenerationRequest:
    """What a request comes to but for its grammar. Raises ApiError, OctavoError."""
    service.require_generation()
    tools = _tools_of(service, body)
    prompt = encode_chat(service, body, tools)
    most = most_tokens(service, body.max_completion_tokens, body.max_tokens, body.n_predict)
    service.require_fitting(prompt, "messages", reply=most != 0)
    thinking = _thinking_of(service, body, prompt)
    return GenerationRequest(
        prompts=[prompt], n=body.n or 1, sampling=sampling_of(service, body, named_biases(body.logit_bias)),
        seed=seed_of(service, body), max_tokens=most, stop=stops_of(body),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None, tools=tools,
        cache_salt=service.cache_salt(key, body.cache_salt), slot=body.id_slot, thinking=thinking,
        progress=shows_progress(body), shows_thinking=body.reasoning_format == "none", **turn_of(body, key),
        goes_on=body.continues and bool(body.messages[-1].text()),
        adapters=service.adapters.of(body.model, body.lora),
    )


def size_of_messages(messages: Sequence[Message]) -> int:
    """Characters of messages; calls among them count as long."""
    texts = (text or "" for m in messages for text in (m.text(), m.reasoning_content, m.name, m.tool_call_id))
    return sum(map(len, texts)) + (LONG + 1) * any(message.tool_calls for message in messages)


def effort(body: ChatRequest) -> int:
    """See `effort_of`."""
    return effort_of(body, size_of_messages(body.messages) + len(to_json(body.chat_template_kwargs)))


def prompt_of(service: Service, body: ChatRequest) -> list[int]:
    """The tokens that a request's prompt has. Raises ApiError, OctavoError."""
    service.require_generation()
    return encode_chat(service, body, _tools_of(service, body))


def _tools_of(service: Service, body: ChatRequest) -> ToolUse | None:
    """The tools that a reply may call. Raises ApiError."""
    choice = body.tool_choice
    named = choice.name if isinstance(choice, NamedTool) else None
    functions = [{**tool.function.model_dump(), "custom": tool.custom is not None} for tool in body.tools or ()]
    allowed = choice.allowed_tools if isinstance(choice, AllowedTools) else None
    plain = choice if isinstance(choice, str) else None if allowed is None else allowed.mode
    try:
        return tool_use(
            service.template_for(body.tools), functions, plain, named, body.parallel_tool_calls is not False,
            None if allowed is None else [tool.name for tool in allowed.tools],
        )
    except ApiError as error:
        if body.functions is not None or body.function_call is not None:
            error.param = {"tools": "functions", "tool_choice": "function_call"}.get(error.param or "", error.param)
            error.message = error.message.replace("tool_choice", "function_call")
        raise


def _thinking_of(service: Service, body: ChatRequest, prompt: Sequence[int]) -> Thinking | None:
    """What the model writes around its thinking in this reply."""
    end = service.tokenizer.decode(prompt[-PROMPT_END:])
    thinking = thinking_after(service.template_for(body.tools).source, end)
    return thinking if thinking is None or thinking.begun or not body.continues else None


def _grammar_of(
    service: Service, body: ChatRequest, tools: ToolUse | None, thinking: Thinking | None
) -> Grammar | None:
    """What a reply may be. Raises ApiError."""
    grammar, param = grammar_of(body)
    if tools is not None and tools.choice == "auto" and grammar is None:
        return _calls_that_open(service, tools, thinking)
    if tools is not None:
        try:
            if grammar is None or (param == "response_format" and tools.choice != "auto"):
                grammar, param = tools.grammar(service.tokenizer), "tools"
            elif grammar.kind == "json_schema" and tools.choice == "auto":
                calls = replace(tools, choice="required").grammar(service.tokenizer)
                grammar = or_json(calls, grammar, tools.form)
            else:
                raise bad(f"{param} can't be used with tools, unless it is a JSON schema with tool_choice auto", param)
        except GrammarError as error:
            raise bad(str(error), "tools") from None
    if grammar is not None:
        try:
            require_grammar(service, grammar, thinking, param)
        except ApiError:
            if tools is not None and (fault := tools.fault(service.grammars)) is not None:
                raise bad(fault, "tools") from None
            raise
    return grammar


def _calls_that_open(service: Service, tools: ToolUse, thinking: Thinking | None) -> Grammar | None:
    """What holds the calls that a reply may open; None where the model can follow no grammar.

    Of tools that can't be kept to arguments are any object. Raises ApiError for a strict one, and for too many tools.
    """
    grammars = service.grammars

    def usable(use: ToolUse) -> Grammar:
        grammar = use.grammar(service.tokenizer)
        grammars.check(grammar, thinking)
        return grammar

    try:
        with suppress(GrammarError):
            return usable(tools)
        unheld = tools.unheld(grammars)
        if any(tool.strict for tool in unheld):
            raise bad(replace(tools, tools=[tool for tool in unheld if tool.strict]).fault(grammars) or "", "tools")
        try:
            return usable(tools.loose(unheld))
        except GrammarError as error:
            if len(unheld) < len(tools.tools):
                raise bad(f"the tools are too complex together: {error}", "tools") from None
    except UsageError as error:
        if tools.strict:
            raise bad(str(error), "tools") from None
    return None


def encode_chat(service: Service, body: ChatRequest, tools: ToolUse | None = None) -> list[int]:
    """The tokens of the messages, open for a reply where the request does not say otherwise.

    Raises ApiError for messages whose length tells that they can't fit the context, before their tokens are known.
    """
    extra, template = template_variables(service.variables, body), service.template_for(body.tools)
    told = _dumped(body.tools) if tools is not None else []
    messages = for_template(template, messages_of(body.messages), told)
    if tools is not None and tools.told:
        extra["tools"] = told
    if not body.continues:
        return service.encode(
            template, messages, add_generation_prompt=body.add_generation_prompt is not False, **extra
        )
    if len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise bad("the last two messages are both the assistant's", "messages")
    if body.messages[-1].tool_calls:
        raise bad("a reply can't go on after tool calls", "messages")
    last = messages[-1]["content"]
    service.require_short(last, "messages")
    prompt = service.encode(template, messages[:-1], **extra)
    begun = service.tokenizer.encode(last, add_special=False, parse_special=False, continued=True)
    return prompt + begun


def _dumped(tools: Sequence[Tool] | None) -> list[dict[str, Any]]:
    return [tool.model_dump(exclude_none=True) for tool in tools or ()]


def encode_chat_text(service: Service, body: TemplateRequest) -> str:
    """Messages as the model's template writes them."""
    tools, open_end = _dumped(body.tools), body.add_generation_prompt is not False
    template, variables = service.template_for(tools), template_variables(service.variables, body)
    messages = for_template(template, messages_of(body.messages), tools)
    if tools and knows_tools(template):
        variables["tools"] = tools
    return template.render(messages, open_end, **variables)


def messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates take them."""
    found = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": message.text() or ""}
        for name in ("reasoning_content", "tool_call_id", "name"):
            if (value := getattr(message, name)) is not None:
                one[name] = value
        if message.tool_calls:
            one["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
        found.append(one)
    return found


class ChatReply(ChunkedReply):
    """Writes a reply as chat completions, whole or in chunks."""

    def __init__(self, service: Service, body: ChatRequest, name: str, handle: RequestHandle) -> None:
        super().__init__(service, body, name, handle, "chatcmpl-", "chat.completion.chunk")
        self.logprobs = bool(body.logprobs)
        self.old = body.functions is not None
        self._held: dict[int, tuple[list[int], list[LogProbs]]] = {}

    def begin(self) -> bytes:
        return b"".join(self._chunk(i, FIRST) for i in range(len(self.handle.choices)))

    def _chunk(
        self, i: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null", more: bytes = b""
    ) -> bytes:
        why = b"" if finish == b"null" else self.why(i)
        choice = b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}' % (i, delta, logprobs, finish, why)
        return self.chunk(choice, more)

    def events(self, outputs: list[CompletionOutput]) -> bytes:
        return b"".join(chunk for one in outputs for chunk in self._chunks(one))

    def _chunks(self, one: CompletionOutput) -> list[bytes]:
        if self.logprobs:
            held = self._held.setdefault(one.choice, ([], []))
            shown = self.handle.shown_tokens(one)
            held[0].extend(one.tokens[:shown])
            held[1].extend(one.logprobs[:shown])
        choice, i = self.handle.choices[one.choice], one.choice
        chunks = [self._chunk(i, b"{}", more=self.more(choice, at)) for at in one.progress]
        more = self.more(choice)
        deltas = (delta_json(delta, old=self.old) for delta in one.deltas)
        chunks += [self._chunk(i, delta, self._logprobs(i), more=more) for delta in deltas]
        if one.finish is not None:
            if self._held.get(one.choice, ([],))[0]:
                chunks.append(self._chunk(one.choice, b'{"content":""}', self._logprobs(one.choice)))
            chunks.append(self._chunk(one.choice, b"{}", finish=to_json(self._finish(one.finish))))
        return chunks

    def _finish(self, finish: str | None) -> str | None:
        return "function_call" if self.old and finish == "tool_calls" else finish

    def _logprobs(self, i: int) -> bytes:
        """How likely the tokens are that no chunk has told of."""
        tokens, likely = self._held.pop(i, ([], []))
        return to_json(chat_logprobs(self.service.tokenizer, tokens, likely)) if tokens else b"null"

    def whole(self, found: Sequence[Sequence[CompletionOutput]]) -> dict[str, Any]:
        """The completion of a request that is finished."""
        choices = [self._choice(i, choice, found[i]) for i, choice in enumerate(self.handle.choices)]
        end = {"choices": choices, "usage": self.handle.usage(), "timings": self.handle.choices[0].timings()}
        return self.common | {"object": "chat.completion"} | end

    def _choice(self, i: int, choice: ChoiceState, outputs: Sequence[CompletionOutput]) -> dict[str, Any]:
        logprobs = None
        if self.logprobs:
            tokens = [token for one in outputs for token in one.tokens[: self.handle.shown_tokens(one)]]
            logprobs = chat_logprobs(
                self.service.tokenizer, tokens, [x for one in outputs for x in one.logprobs][: len(tokens)]
            )
        message = whole_message([delta for one in outputs for delta in one.deltas])
        if self.old and "tool_calls" in message:
            message["function_call"] = message.pop("tool_calls")[0]["function"]
        if self.handle.request.tools is not None and choice.finish == "length":  # cut where a call begins: no text
            message["content"] = message["content"] or None
        end = {"finish_reason": self._finish(choice.finish), **choice.why()}
        return {"index": i, "message": message, "logprobs": logprobs, **end}


def delta_json(delta: Delta, *, old: bool = False) -> bytes:
    """A piece of a reply as a chunk's delta; `old`: calls are those of functions, not of tools."""
    if delta.tool is not None:
        tool = delta.tool
        function = {"arguments": tool.arguments} | ({} if tool.name is None else {"name": tool.name})
        if old:
            return to_json({"function_call": function})
        call: dict[str, Any] = {"index": tool.index}
        if tool.id is not None:
            call |= {"id": tool.id, "type": "function"}
        if tool.custom:
            call |= {} if tool.id is None else {"type": "custom"}
            call["custom"] = {"input": tool.arguments} | ({} if tool.name is None else {"name": tool.name})
        else:
            call["function"] = function
        return to_json({"tool_calls": [call]})
    if delta.reasoning:
        return b'{"reasoning_content":%b}' % to_json(delta.reasoning)
    return b'{"content":%b}' % to_json(delta.content)


def whole_message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """A reply as a message."""
    content = "".join(delta.content for delta in deltas)
    reasoning = "".join(delta.reasoning for delta in deltas)
    calls: dict[int, dict[str, Any]] = {}
    for tool in (delta.tool for delta in deltas if delta.tool is not None):
        kind, text = ("custom", "input") if tool.custom else ("function", "arguments")
        call = calls.setdefault(tool.index, {"id": tool.id, "type": kind, kind: {text: ""}})
        if tool.name is not None:
            call[kind]["name"] = tool.name
        call[kind][text] += tool.arguments
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls.values())
    return message
