"""Tools whose argument is a text, in chats and responses."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from octavo.server.routes.chat import messages_of
from octavo.server.routes.responses_schema import ResponsesRequest, chat_request
from octavo.server.routes.schema import ChatRequest
from octavo.server.tool_calls.custom_tools import InputReader, arguments
from tests.server.calls import client, scripted
from tests.server.live_server import Server
from tests.server.routes.test_chat import ASK

__all__ = ["client"]
TEXT = 'print("{ü}")\n\\ </tool_call> 😀'
CODE: Any = {"type": "custom", "custom": {"name": "code", "description": "Runs Python."}}
FORM: Any = {"type": "grammar", "grammar": {"definition": "[xy]{3}", "syntax": "regex"}}
HELD: Any = {"type": "custom", "custom": {"name": "held", "format": FORM}}
CALL = '<tool_call>{"name": "code", "arguments": %s}</tool_call>'


@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_text_in_any_pieces(ascii_only: bool) -> None:
    whole = json.dumps({"input": TEXT}, ensure_ascii=ascii_only)
    for size in range(1, len(whole)):
        reader = InputReader()
        pieces = [reader.push(whole[i : i + size]) for i in range(0, len(whole), size)]
        assert "".join(pieces) == TEXT
    assert json.loads(arguments(TEXT)) == {"input": TEXT}
    assert InputReader().push('{"input": "a\\ud83db') == "a\N{REPLACEMENT CHARACTER}b"


def test_a_call_of_a_text(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, CALL % json.dumps({"input": TEXT}))
    (choice,) = client.chat.completions.create(model="x", messages=ASK, tools=[CODE]).choices
    (call,) = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("code", TEXT)
    assert call.id.startswith("call_")
    chunks = list(client.chat.completions.create(model="x", messages=ASK, tools=[CODE], stream=True))
    parts: list[Any] = [p.model_dump() for c in chunks for p in c.choices[0].delta.tool_calls or ()]
    assert (parts[0]["type"], parts[0]["custom"]["name"]) == ("custom", "code")
    assert "".join(part["custom"]["input"] for part in parts) == TEXT
    assert len(parts) > 3


def test_a_text_of_a_regular_expression(server: Server) -> None:
    choice = {"type": "custom", "custom": {"name": "held"}}
    for seed in range(3):
        reply = server.chat("x", tools=[CODE, HELD], tool_choice=choice, seed=seed, temperature=3)
        (call,) = reply["choices"][0]["message"]["tool_calls"]
        assert call["custom"]["name"] == "held"
        assert re.fullmatch("[xy]{3}", call["custom"]["input"])


def test_what_is_refused_of_custom_tools(server: Server) -> None:
    lark = {"type": "grammar", "grammar": {"definition": "start: /a/", "syntax": "lark"}}
    for more, param, word in (
        ({"tools": [{"type": "custom", "custom": {"name": "a", "format": lark}}]}, "tools", "Lark"),
        ({"tools": [{"type": "custom"}]}, "tools", "custom"), ({"tools": [{"type": "function"}]}, "tools", "function"),
        ({"tools": [CODE], "tool_choice": {"type": "custom", "custom": {"name": "b"}}}, "tool_choice", "'b'"),
        ({"tools": [CODE], "tool_choice": {"type": "custom"}}, "tool_choice", "tool_choice"),
    ):
        status, error = server.refused("/v1/chat/completions", {"messages": ASK, **more})
        assert (status, error["param"]) == (400, param)
        assert word in error["message"]


def test_a_conversation_with_texts() -> None:
    call = {"id": "a", "type": "custom", "custom": {"name": "code", "input": TEXT}}
    chat = ChatRequest.model_validate({"messages": [
        *ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "84"},
    ]})
    responses = chat_request(ResponsesRequest.model_validate({"input": [
        *ASK, {"type": "custom_tool_call", "call_id": "a", "name": "code", "input": TEXT},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "84"},
    ]}))
    for request in (chat, responses):
        _, told, result = messages_of(request.messages)
        (one,) = told["tool_calls"]
        assert (one["type"], one["id"], one["function"]["name"]) == ("function", "a", "code")
        assert json.loads(one["function"]["arguments"]) == {"input": TEXT}
        assert "custom" not in one
        assert (result["tool_call_id"], result["content"]) == ("a", "84")


def test_the_model_is_told_of_a_function(server: Server) -> None:
    prompt = server.post("/apply-template", messages=ASK, tools=[CODE])["prompt"]
    assert '"name": "code"' in prompt
    assert '"input"' in prompt
    assert '"custom"' not in prompt


def test_texts_of_responses(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, CALL % json.dumps({"input": TEXT}))
    tools: Any = [{"type": "custom", "name": "code"}]
    (item,) = client.responses.create(model="x", input="x", tools=tools).output
    assert item.type == "custom_tool_call"
    assert (item.name, item.input) == ("code", TEXT)
    assert item.call_id.startswith("call_")
    with client.responses.stream(model="x", input="x", tools=tools) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == TEXT
    assert [event.input for event in events if event.type == "response.custom_tool_call_input.done"] == [TEXT]
    assert not any("function_call_arguments" in event.type for event in events)


def test_a_text_of_responses_that_is_held(client: openai.OpenAI) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "[xy]{3}"}
    tools: Any = [{"type": "custom", "name": "held", "format": form}]
    choice: Any = {"type": "custom", "name": "held"}
    (item,) = client.responses.create(model="x", input="x", tools=tools, tool_choice=choice).output
    assert item.type == "custom_tool_call"
    assert re.fullmatch("[xy]{3}", item.input)
