"""As many tools as clients have: a call is held to its tool's parameters, or the request is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.server.constraints.tool_parameters import Tool
from octavo.server.routes import chat
from octavo.server.tool_calls.formats import FORMATS, GENERIC, ToolFormat
from octavo.server.tool_calls.tools import ToolUse
from tests.runtime.grammar.grammar_walk import allowed_tokens, grammars_of
from tests.server.calls import ENDLESS, PLAIN
from tests.server.live_server import Server

ASK = [{"role": "user", "content": "x"}]
XML = next(form for form in FORMATS if form.name == "xml")


def parameters(i: int, n: int = 4) -> dict[str, Any]:
    properties = {f"argument_{i}_{j}": {"type": "integer", "description": "what it is for " * 4} for j in range(n)}
    return {"type": "object", "properties": properties}


def functions(n: int, more: int = 4) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"tool_{i}", "parameters": parameters(i, more)}}
            for i in range(n)]


def takes(use: ToolUse, text: str) -> bool:
    """Whether a reply of the tools may begin with a text."""
    constraint = grammars_of(PLAIN).constraint(use.grammar(PLAIN))
    for token in PLAIN.encode(text, add_special=False):
        if token not in allowed_tokens(constraint, PLAIN):
            return False
        constraint.accept(token)
    return True


@pytest.mark.parametrize("form", [GENERIC, XML], ids=lambda form: form.name)
@pytest.mark.parametrize("choice", ["auto", pytest.param("required", marks=pytest.mark.slow)])
def test_calls_of_one_of_800_tools(form: ToolFormat, choice: Any) -> None:
    use = ToolUse(form, [Tool(f"tool_{i}", parameters(i)) for i in range(800)], choice, several=False)

    def call(key: str) -> str:
        arguments = form.parameter.replace("KEY", key).replace("VALUE", "1") or json.dumps({key: 1})
        return form.call.replace("NAME", "tool_777").replace("ARGUMENTS", arguments).join(form.around)

    assert takes(use, call("argument_777_2"))
    assert not takes(use, call("argument_776_2"))


def test_what_a_grammar_takes_grows_with_the_tools() -> None:
    sizes = [len(ToolUse(GENERIC, [Tool(f"tool_{i}", parameters(i)) for i in range(n)], "auto").grammar(PLAIN).text)
             for n in (100, 800)]
    assert sizes[1] < 8.5 * sizes[0]


def test_five_hundred_tools_are_held(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, made = list[str](), chat._calls_that_open

    def opened(*args: Any) -> Any:
        grammar = made(*args)
        assert grammar is not None
        texts.append(grammar.text)
        return grammar

    monkeypatch.setattr(chat, "_calls_that_open", opened)
    monkeypatch.setattr(chat, "encode_chat", lambda *_: [1, 2, 3])  # the demo's context holds few tools
    server.chat("x", tools=functions(500), max_tokens=1)
    assert "argument_499_3" in texts[0]
    bad = [{"type": "function", "function": {"name": "bad", "parameters": ENDLESS}}]
    server.chat("x", tools=[*functions(20), *bad], max_tokens=1)
    assert "argument_19_3" in texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_more_than_a_grammar_can_hold(server: Server, monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setattr(chat, "encode_chat", lambda *_: [1, 2, 3])
    body = {"messages": ASK, "tools": functions(300, 100), "tool_choice": choice, "max_tokens": 1}
    status, error = server.refused("/v1/chat/completions", body)
    assert (status, error["param"]) == (400, "tools")
    assert "(allowed: a string of 1 to 1000000 characters)" in error["message"]


def test_more_tools_than_there_may_be(server: Server) -> None:
    status, error = server.refused("/v1/chat/completions", {"messages": ASK, "tools": functions(1025, 0)})
    assert (status, error["param"]) == (400, "tools")
    assert "1024" in error["message"]
