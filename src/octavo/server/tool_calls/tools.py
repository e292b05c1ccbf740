"""Tools of a request: what the template is told of them, how calls are read, and what a reply may be."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from octavo.errors import GrammarError, TemplateError
from octavo.runtime.grammar.grammar import Grammar, Grammars
from octavo.server.constraints.tool_choice import arguments_grammar, text_or_calls, tools_grammar
from octavo.server.constraints.tool_parameters import ANYTHING, NOTHING, Tool
from octavo.server.generation.ids import new_id, random_letters
from octavo.server.http.api_errors import bad
from octavo.server.tool_calls.formats import GENERIC, ToolFormat, format_of, tells_tools
from octavo.server.tool_calls.parser import ToolParser
from octavo.server.tool_calls.readers import MistralReader
from octavo.text import ChatTemplate, Tokenizer

Messages = list[dict[str, Any]]

NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
"""Names of tools that calls can have in all formats; those of OpenAI's and Anthropic's are among them."""
TOLD = """You can call functions. To call one, reply with its name and arguments as JSON between tags:
{example}
The functions:
{tools}"""
"""What a model is told of tools whose template knows none."""
IN_GRAMMAR = re.compile(
    r"the grammar or schema can't be used: (at \d+\(\d+\): failed to compile JSON schema: )?|tool '.*?': "
)
"""What errors say before they say what is wrong with a tool's schema."""
MISTRAL_ID = 9
"""Letters and digits of a call's id that Mistral's templates insist on."""


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, and which of them are to be called: "auto", "required", or the one that is named.

    told     the chat template tells the model of them
    customs  names of those whose argument is a text
    """

    form: ToolFormat
    tools: Sequence[Tool]
    choice: Literal["auto", "required"] | Tool
    several: bool = True
    told: bool = False
    customs: frozenset[str] = frozenset()

    def parser(self) -> ToolParser:
        """What reads the calls of a reply."""
        return ToolParser(self.form, {tool.name: tool.parameters for tool in self.tools})

    def call_id(self) -> Callable[[], str]:
        """What makes ids of calls."""
        return partial(random_letters, MISTRAL_ID) if self.form.reader is MistralReader else partial(new_id, "call_")

    @property
    def strict(self) -> bool:
        """Whether there is a tool whose parameters are to be kept to in every keyword."""
        return any(tool.strict for tool in self.tools)

    def loose(self, some: Sequence[Tool]) -> ToolUse:
        """The same, with any object for the arguments of some of the tools."""
        names = {tool.name for tool in some}
        return replace(self, tools=[replace(t, parameters=ANYTHING) if t.name in names else t for t in self.tools])

    def unheld(self, grammars: Grammars) -> list[Tool]:
        """The tools whose parameters no grammar can hold, found by halves. Raises UsageError."""
        return self._unheld(grammars, self.tools)

    def _unheld(self, grammars: Grammars, tools: Sequence[Tool]) -> list[Tool]:
        try:
            grammars.check(tools_grammar(self.form, tools, grammars.tokenizer, several=False))
        except GrammarError:
            half = len(tools) // 2
            parts = (tools[:half], tools[half:]) if half else ()
            return [one for part in parts for one in self._unheld(grammars, part)] if parts else [*tools]
        return []

    def fault(self, grammars: Grammars) -> str | None:
        """What is wrong with the first tool that a grammar can't hold, in words of its schema; None where it can all.

        Raises UsageError.
        """
        for tool in self.unheld(grammars):
            try:
                grammars.check(arguments_grammar(self.form, tool, grammars.tokenizer))
            except GrammarError as error:
                strict = " is strict" if tool.strict else ""
                return f"tool {tool.name!r}{strict}: {IN_GRAMMAR.sub('', str(error))}"
        return None

    def grammar(self, tokenizer: Tokenizer) -> Grammar:
        """What a reply may be: calls, or with "auto" any text in which what begins as a call is one.

        Raises GrammarError.
        """
        if self.choice == "auto":
            return text_or_calls(self.form, self.tools, tokenizer, several=self.several)
        named = isinstance(self.choice, Tool)
        tools = [self.choice] if isinstance(self.choice, Tool) else self.tools
        return tools_grammar(self.form, tools, tokenizer, several=self.several and not named)


def tool_use(template: ChatTemplate, given: Sequence[Mapping[str, Any]], choice: str | None, named: str | None,
             several: bool, allowed: Sequence[str] | None = None) -> ToolUse | None:
    """The tools of a request, of whose functions `given` has name, parameters and strict; None where there are none.

    `allowed`: names of the ones that may be called, of all that the model is told of; None for all.

    Raises ApiError for a name, of a tool or of its parameters, that calls can't have, for two tools of one name, and
    for a choice of one that there is not.
    """
    if not given or choice == "none":
        if choice == "required" or named is not None:
            raise bad("tool_choice requires a call, but the request has nothing to call", "tool_choice")
        return None
    for one in given:
        if not NAME.fullmatch(one["name"]):
            allowed = "1 to 128 letters of a-z, A-Z, 0-9 and _ . : -"
            raise bad(f"the name of a tool is {one['name']!r} (allowed: {allowed})", "tools")
    form = format_of(template.source)
    _require_carried(form, given)
    tools = {one["name"]: Tool(one["name"], one.get("parameters") or NOTHING, bool(one.get("strict"))) for one in given}
    if len(tools) < len(given):
        raise bad("two tools have the same name", "tools")
    for name in (*(allowed or ()), *(() if named is None else (named,))):
        if name not in tools:
            raise bad(f"tool_choice names {name!r} (allowed: {', '.join(tools)})", "tool_choice")
    wanted: Any = tools[named] if named is not None else choice or "auto"
    callables = [tool for name, tool in tools.items() if allowed is None or name in allowed]
    return ToolUse(form, callables, wanted, several, knows_tools(template),
                   frozenset(one["name"] for one in given if one.get("custom")))


def _require_carried(form: ToolFormat, given: Sequence[Mapping[str, Any]]) -> None:
    """Raises ApiError for a parameter whose name calls can't have, an optional one too: the model is told of it."""
    for one in given:
        for name, required in _keys(one.get("parameters"), deep=bool(form.mark)):
            if form.carries(name):
                continue
            which = "parameter" if required else "optional parameter"
            problem = f"its {which} {name!r} can't be written in calls as this model writes them"
            advice = (
                "" if required else ", and the model is told of it: leave it out of the tool, or give it another name"
            )
            raise bad(f"tool {one['name']!r}: {problem}{advice} (allowed: {form.allowed})", "tools")


def _keys(schema: object, *, deep: bool) -> Iterator[tuple[str, bool]]:
    """Names of the parameters of a schema, and whether they are required; `deep`: also of values within them."""
    if not isinstance(schema, Mapping):
        return
    properties, required = schema.get("properties"), schema.get("required")
    found = properties if isinstance(properties, Mapping) else {}
    yield from ((name, isinstance(required, list) and name in required) for name in found)
    for one in (*found.values(), schema.get("items")) if deep else ():
        yield from _keys(one, deep=True)


def for_template(template: ChatTemplate, messages: Messages, tools: Sequence[Mapping[str, Any]]) -> Messages:
    """Messages with calls and their results as a template takes them.

    Arguments are objects where the template writes those as JSON, else texts. For a template that knows no tools they,
    calls and results are told as text.
    """
    form = format_of(template.source)
    if tools and not knows_tools(template):
        messages = _with_tools(messages, tools, form)
    if form is GENERIC:
        return [_as_text(message) for message in messages]
    if form.thinks[0]:
        messages = [_with_thinking(message) for message in messages]
    if not any(message.get("tool_calls") for message in messages):
        return messages
    as_objects = _takes_objects(template)
    told = [_with_arguments(message, as_objects) for message in messages]
    return [_with_short_ids(message) for message in told] if "[TOOL_CALLS]" in template.source else told


def knows_tools(template: ChatTemplate) -> bool:
    """Whether a template tells the model of tools and has calls; else they are told in the system message."""
    return format_of(template.source) is not GENERIC and tells_tools(template.source)


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    """A message as gpt-oss's template takes it, which has a name of its own for thinking."""
    thought = message.get("reasoning_content")
    return {**message, "thinking": thought} if thought and not message["content"] else message


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose ids of calls are as Mistral's templates want them."""
    out = dict(message)
    if "tool_call_id" in out:
        out["tool_call_id"] = _short(out["tool_call_id"])
    if out.get("tool_calls"):
        out["tool_calls"] = [{**call, "id": _short(call.get("id") or "")} for call in out["tool_calls"]]
    return out


def _short(name: str) -> str:
    if len(name) == MISTRAL_ID and name.isascii() and name.isalnum():
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:MISTRAL_ID]


def _takes_objects(template: ChatTemplate) -> bool:
    """Whether a template writes arguments that are an object as JSON, and not as Python would."""
    call = {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {"needle": "x"}}}
    messages: Messages = [
        {"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    try:
        return "'needle'" not in template.render(messages, add_generation_prompt=False)
    except TemplateError:
        return False


def _with_arguments(message: dict[str, Any], as_objects: bool) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        arguments = function["arguments"]
        if as_objects and isinstance(arguments, str):
            function["arguments"] = _object_of(arguments)
        elif not as_objects and not isinstance(arguments, str):
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def _object_of(text: str) -> Any:
    """Arguments as data; as they are where they are not JSON."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message for a template that knows no calls and no results."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        told = {"name": call["function"]["name"],
                "arguments": _object_of(arguments) if isinstance(arguments, str) else arguments}
        calls.append(f"<tool_call>\n{json.dumps(told, ensure_ascii=False)}\n</tool_call>")
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join([*([message["content"]] if message["content"] else []), *calls])}


def _with_tools(messages: Messages, tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> Messages:
    """Messages whose system message tells of the tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    told = TOLD.format(example=form.example, tools=listed)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{told}"}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]
