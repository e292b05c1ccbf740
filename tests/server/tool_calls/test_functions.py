"""Functions, which tools were before, and tools of which some may be called."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from octavo.server.routes.chat import messages_of
from octavo.server.routes.schema import ChatRequest
from tests.server.calls import PARAMETERS, TOOLS, client, scripted
from tests.server.live_server import Server
from tests.server.routes.test_chat import ASK

__all__ = ["client"]
FUNCTIONS: list[Any] = [tool["function"] for tool in TOOLS]
NOW = '<tool_call>{"name":"now"}</tool_call>'


def test_a_reply_that_calls_a_function(client: openai.OpenAI, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    (choice,) = client.chat.completions.create(
        model="x", messages=ASK, functions=FUNCTIONS, function_call={"name": "now"}
    ).choices
    assert choice.finish_reason == "function_call"
    assert (choice.message.content, choice.message.tool_calls) == (None, None)
    assert choice.message.function_call is not None
    assert choice.message.function_call.name == "now"
    assert json.loads(choice.message.function_call.arguments) == {}
    scripted(monkeypatch, NOW)
    for how in ({}, {"function_call": "auto"}):
        chunks = list(client.chat.completions.create(
            model="x", messages=ASK, functions=FUNCTIONS, stream=True, **how,
        ))
        parts = [c.choices[0].delta.function_call for c in chunks if c.choices[0].delta.function_call is not None]
        assert next(part.name for part in parts) == "now"
        assert json.loads("".join(part.arguments or "" for part in parts)) == {}
        assert chunks[-1].choices[0].finish_reason == "function_call"
        assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)


def test_the_model_is_told_of_functions(server: Server) -> None:
    def tokens(**more: Any) -> int:
        answer: int = server.post("/v1/chat/completions/input_tokens", messages=ASK, **more)["input_tokens"]
        return answer

    assert tokens(functions=FUNCTIONS) == tokens(tools=TOOLS) > tokens()
    assert tokens(functions=FUNCTIONS, function_call="none") == tokens()


def test_a_conversation_with_calls_of_functions() -> None:
    request = ChatRequest.model_validate({"messages": [
        *ASK, {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
        {"role": "function", "name": "now", "content": "12:00"},
    ]})
    _, call, result = messages_of(request.messages)
    assert call["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    assert (result["role"], result["content"]) == ("tool", "12:00")
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]


def test_what_is_wrong_with_functions(server: Server) -> None:
    for more, param in (
        ({"functions": FUNCTIONS, "tools": TOOLS}, "functions"),
        ({"functions": FUNCTIONS, "function_call": {"name": "rm"}}, "function_call"),
        ({"functions": [{"parameters": {}}]}, "functions"), ({"function_call": "required"}, "function_call"),
        ({"function_call": {"name": "now"}}, "function_call"),
        ({"function_call": "auto", "tool_choice": "none"}, "function_call"),
        ({"functions": FUNCTIONS, "tool_choice": "auto"}, "functions"),
    ):
        status, error = server.refused("/v1/chat/completions", {"messages": ASK, **more})
        assert (status, error["param"]) == (400, param), error
        assert param in error["message"]
        for name in {"tools", "tool_choice"} - {*more}:
            assert name not in error["message"], error


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_tools_of_which_some_may_be_called(server: Server) -> None:
    """The model is told of all of them, and calls those."""
    tools = [*TOOLS, {"type": "function", "function": {"name": "never", "parameters": PARAMETERS}}]
    for seed in range(3):
        reply = server.chat("x", tools=tools, tool_choice=allowed("required", "now"), seed=seed, temperature=3)
        calls = reply["choices"][0]["message"]["tool_calls"]
        assert {call["function"]["name"] for call in calls} == {"now"}
    told = [server.post("/v1/chat/completions/input_tokens", messages=ASK, tools=tools, **more)["input_tokens"]
            for more in ({}, {"tool_choice": allowed("auto", "now")})]
    assert told[0] == told[1]
    status, error = server.refused(
        "/v1/chat/completions", {"messages": ASK, "tools": TOOLS, "tool_choice": allowed("auto", "rm")}
    )
    assert (status, error["param"]) == (400, "tool_choice")
    assert "'rm'" in error["message"]


def test_a_call_that_is_not_allowed_is_none(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, NOW)
    (choice,) = server.chat("x", tools=TOOLS, tool_choice=allowed("auto", "weather"))["choices"]
    assert "tool_calls" not in choice["message"]


def test_allowed_tools_of_responses(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "strict": False, "parameters": {"type": "object"}, **f} for f in FUNCTIONS]
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    reply = client.responses.create(model="x", input="x", tools=tools, tool_choice=choice)
    assert [item.type for item in reply.output] == ["function_call"]
    assert reply.model_dump()["output"][0]["name"] == "now"
    assert reply.model_dump()["tool_choice"] == choice
