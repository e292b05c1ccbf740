"""Structured replies: schemas, grammars and choices that a request asks for, and what is wrong with them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from octavo.errors import HostMemoryError
from octavo.server import serve
from tests.limits import HANG_S
from tests.server.calls import ENDLESS, TOOLS, client
from tests.server.constraints.test_numbers import text_and_tokens
from tests.server.live_server import Server
from tests.server.routes.test_chat import ASK, FREE

__all__ = ["client"]


class Answer(BaseModel):
    kind: Literal["sum", "product"]
    ok: bool


def test_replies_of_a_schema(client: openai.OpenAI) -> None:
    for seed in range(2):
        reply = client.chat.completions.parse(model="x", messages=ASK, response_format=Answer, seed=seed,
                                              extra_body=FREE | {"temperature": 2})
        assert reply.choices[0].message.parsed is not None
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="x", messages=ASK, response_format=Answer, max_tokens=2)


GRAMMARS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["a", 1]}}}},
        ('"a"', "1"),
    ),
    ({"grammar": 'root ::= "a" | "b"'}, ("a", "b")),
    ({"grammar": 'start: "a" | "b"'}, ("a", "b")),
    ({"structured_outputs": {"choice": ["c", "d"]}}, ("c", "d")),
    ({"structured_outputs": {"json": {"enum": [1, 2]}}}, ("1", "2")),
    ({"guided_regex": "[xy]{2}"}, ("xx", "xy", "yx", "yy")),
    ({"guided_choice": ["c"]}, ("c",)),
]


@pytest.mark.parametrize(("more", "texts"), GRAMMARS)
def test_fields_that_hold_a_reply_to_a_form(server: Server, more: dict[str, Any], texts: tuple[str, ...]) -> None:
    reply = server.chat("x", **FREE, **more)
    assert reply["choices"][0]["message"]["content"] in texts
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert server.post("/v1/completions", prompt="x", **FREE, **more)["choices"][0]["text"] in texts


def test_forms_of_llama_servers_route(server: Server) -> None:
    assert server.post("/completion", prompt="x", json_schema={"enum": [7]})["content"] == "7"
    assert server.post("/completion", prompt="x", grammar='root ::= "no"')["content"] == "no"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ENDLESS}}},
        "response_format",
        "no finite value",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": list(range(10**5))}}}},
        "response_format",
        "characters",
    ),
    (
        {"response_format": {"type": "json_schema", "schema": {"pattern": "(", "type": "string"}}},
        "response_format",
        "unclosed",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format", "no schema"),
    ({"grammar": "root ::= x"}, "grammar", "Rule 'x' not found"),
    ({"guided_regex": "("}, "guided_regex", "unclosed"),
    ({"guided_regex": "a", "grammar": "start: /a/"}, "guided_regex", "can't be used together"),
    ({"structured_outputs": {}}, "structured_outputs", "has 0 of"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice", "'rm'"),
    ({"tool_choice": "required"}, "tool_choice", "nothing to call"),
    ({"tools": TOOLS * 2}, "tools", "same name"),
    ({"tools": TOOLS, "grammar": "start: /a/"}, "grammar", "can't be used with tools"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": ENDLESS}}], "tool_choice": "required"},
        "tools",
        "no finite value",
    ),
]


@pytest.mark.parametrize(("more", "param", "message"), WRONG)
def test_what_is_wrong_with_forms(server: Server, more: dict[str, Any], param: str, message: str) -> None:
    status, error = server.refused("/v1/chat/completions", {"messages": ASK, **more})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert message in error["message"]


def test_there_is_no_process_for_a_grammar(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """For now."""

    def refused(*_: object) -> None:
        raise HostMemoryError("can't start a process for grammars: Too many open files")

    with monkeypatch.context() as full:
        full.setattr(server.service.grammars, "check", refused)
        status, error = server.refused("/v1/chat/completions", {"messages": ASK, "guided_regex": "ab"})
    assert (status, error["type"]) == (503, "unavailable_error")
    assert "Too many open files" in error["message"]
    assert server.service.compiling == 0
    assert server.chat("x", **FREE, guided_regex="ab")["choices"][0]["message"]["content"] == "ab"


def test_a_server_that_is_to_end_waits_for_grammars_that_are_compiled() -> None:
    limits = SimpleNamespace(drain_time=HANG_S)
    service: Any = SimpleNamespace(
        options=SimpleNamespace(limits=limits), metrics=SimpleNamespace(replies=0), compiling=1, draining=False
    )

    async def drain() -> None:
        draining = asyncio.get_running_loop().create_task(serve._drain(service))
        await asyncio.wait([draining], timeout=0.2)
        assert service.draining
        assert not draining.done()
        service.compiling = 0
        await draining

    asyncio.run(drain())


def test_a_grammar_that_is_wrong_is_not_repeated(server: Server) -> None:
    """An error says where the fault is, without the lines around it."""
    _, error = server.refused("/v1/chat/completions", {"messages": ASK, "grammar": "start: a\nb: /x/"})
    assert error["message"] == 'the grammar or schema can\'t be used: at 1(8): unknown name: "a"'


SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
FORMS: list[dict[str, Any]] = [
    {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, {"type": "json_object"}, {"type": "text"},
]
NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_that_is_forced_comes_before_a_form(server: Server, form: dict[str, Any], choice: Any) -> None:
    reply = server.chat("x", tools=TOOLS[1:], tool_choice=choice, response_format=form, **FREE)["choices"][0]
    assert (reply["message"]["content"], reply["finish_reason"]) == (None, "tool_calls")
    assert reply["message"]["tool_calls"][0]["function"]["name"] == "now"


@pytest.mark.few(1)
@pytest.mark.parametrize("form", FORMS[:2])
def test_a_reply_that_may_call_has_the_form_where_it_does_not(server: Server, form: dict[str, Any]) -> None:
    for seed in range(3):
        (reply,) = server.chat("x", tools=TOOLS[1:], response_format=form, seed=seed, temperature=2)["choices"]
        message = reply["message"]
        assert (message["content"] or "{").lstrip().startswith("{")
        assert message["content"] or message.get("tool_calls") or reply["finish_reason"] == "length"


def test_forced_calls_of_other_routes_come_before_a_form(server: Server) -> None:
    form = {"type": "json_schema", "name": "a", "schema": SCHEMA}
    function = {"name": "now", "description": "the time"}
    answer = server.post(
        "/v1/responses", input="x", text={"format": form}, tools=[{"type": "function", **function}],
        tool_choice={"type": "function", "name": "now"},
    )
    assert [item["type"] for item in answer["output"]] == ["function_call"]
    answer = server.post(
        "/v1/messages", messages=ASK, max_tokens=90, tools=[function], tool_choice={"type": "any"},
        output_format={"type": "json_schema", "schema": SCHEMA},
    )
    assert [block["type"] for block in answer["content"]][:1] == ["tool_use"]


def test_a_form_of_responses_is_named_as_it_is_there(server: Server) -> None:
    form = {"type": "json_schema", "name": "a", "schema": ENDLESS}
    status, error = server.refused("/v1/responses", {"input": "x", "text": {"format": form}})
    assert (status, error["param"]) == (400, "text")
    assert "response_format" not in error["message"]


EMPTY = {"type": "object", "properties": {}}
SCHEMA_FORM = {"type": "json_schema", "schema": EMPTY}
CLOSED: dict[str, tuple[str, dict[str, Any]]] = {
    "response_format": ("/v1/chat/completions", {"messages": ASK, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": EMPTY}}}),
    "structured_outputs": ("/v1/chat/completions", {"messages": ASK, "structured_outputs": {"json": EMPTY}}),
    "json_schema": ("/completion", {"prompt": "x", "json_schema": EMPTY}),
    "text.format": ("/v1/responses", {"input": "x", "text": {"format": {**SCHEMA_FORM, "name": "a"}}}),
    "output_config": ("/v1/messages", {"messages": ASK, "max_tokens": 40, "output_config": {"format": SCHEMA_FORM}}),
}


@pytest.mark.parametrize("name", CLOSED)
def test_objects_have_the_keys_that_are_named(server: Server, name: str) -> None:
    path, body = CLOSED[name]
    text, _ = text_and_tokens(server.post(path, **body, temperature=2, seed=1))
    assert json.loads(text) == {}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_calls_have_the_arguments_that_are_named(server: Server, choice: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": EMPTY}}
    reply = server.chat("x", tools=[tool], tool_choice=choice, parallel_tool_calls=False, temperature=2, seed=1)
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {}
