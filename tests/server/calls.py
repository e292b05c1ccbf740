"""Tools that requests of tests have, and calls of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, Literal

import jsonschema
import openai
import pytest

from octavo.runtime.grammar import grammar
from octavo.runtime.grammar.grammar import Grammar
from octavo.runtime.output.thinking import MARKERS
from octavo.server.constraints.tool_parameters import Tool
from octavo.server.generation.output_parser import OutputParser
from octavo.server.routes import chat
from octavo.server.tool_calls.formats import ToolFormat
from octavo.server.tool_calls.tools import ToolUse
from octavo.text import Tokenizer
from tests.runtime.grammar.grammar_walk import allowed_tokens, grammars_of, walk
from tests.server.generation.test_output_parser import Result
from tests.server.live_server import Server
from tests.text.vocabularies import CONTROL, byte_level

PARAMETERS = {
    "type": "object", "required": ["city"], "additionalProperties": False,
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}, "unit": {"enum": ["C"]}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "How it will be.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
KNOWN = [Tool("weather", PARAMETERS), Tool("now", {})]
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
PLAIN = Tokenizer.from_metadata(byte_level([], special={"<|im_end|>": CONTROL}, eos_token_id=256))
TWO = (
    'See:\n<tool_call>{"name":"weather","arguments":{"city":"</tool_call>"}}</tool_call>'
    '<tool_call>{"name":"now"}</tool_call>'
)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def require_valid(calls: list[tuple[str, str]]) -> None:
    assert calls
    for name, arguments in calls:
        assert name in ("weather", "now")
        jsonschema.validate(json.loads(arguments), PARAMETERS if name == "weather" else {"type": "object"})


def called(form: ToolFormat, tool: Tool) -> tuple[str, str]:
    """The call of a reply that has to be one, by a model that knows nothing."""
    use = ToolUse(form, [tool], "required", several=False)
    walked = (walk(grammars_of(PLAIN).constraint(use.grammar(PLAIN)), PLAIN, Random(i), 900) for i in range(20))
    tokens = next(tokens for tokens in walked if tokens is not None)
    thinking = MARKERS[-1] if form.thinks[0] else None
    detail, found = OutputParser(PLAIN, (), thinking, use.parser(), use.call_id()), Result()
    found.take([*detail.push([t for t in tokens if t not in PLAIN.stop_ids]), *detail.finish()])
    assert len(found.calls) == 1
    return found.calls[0]


def read(
    form: ToolFormat,
    schema: dict[str, Any],
    arguments: str,
    choice: Literal["auto", "required"] = "required",
    *,
    strict: bool = False,
) -> Any:
    """Arguments of a call as they are read that a model writes so, under a grammar of their schema."""
    use = ToolUse(form, [Tool("f", schema, strict)], choice, several=False)
    call = form.call.replace("NAME", "f").replace("NUMBER", "0").replace("ARGUMENTS", arguments)
    tokens = PLAIN.encode(call.join(form.around), add_special=False)
    constraint = grammars_of(PLAIN).constraint(use.grammar(PLAIN))
    for i, token in enumerate(tokens):
        assert token in allowed_tokens(constraint, PLAIN), PLAIN.decode(tokens[:i])
        constraint.accept(token)
    thinking = MARKERS[-1] if form.thinks[0] else None
    detail, found = OutputParser(PLAIN, (), thinking, use.parser(), use.call_id()), Result()
    found.take([*detail.push(tokens), *detail.finish()])
    ((_, told),) = found.calls
    return json.loads(told)


def scripted(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let every reply be a text, in which there may be thinking."""
    monkeypatch.setattr(chat, "_grammar_of", lambda *_: Grammar.choice([text]))
    monkeypatch.setattr(grammar, "AfterThinking", lambda answer, *_: answer)
