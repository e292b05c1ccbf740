"""/v1/responses, as OpenAI's client knows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from octavo.runtime import Model
from octavo.text import ChatTemplate
from tests.server.calls import PARAMETERS, TWO, scripted
from tests.server.live_server import Server
from tests.server.routes.test_anthropic import events
from tests.server.routes.test_chat import QUESTION

TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "description": "How it will be.", "parameters": PARAMETERS},
    {"type": "function", "name": "now", "parameters": {"type": "object", "additionalProperties": False}},
]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_response(client: openai.OpenAI, model: Model) -> None:
    got = client.responses.create(model="any", input=QUESTION, temperature=0, store=True, metadata={"a": "b"})
    wanted = model.generate(QUESTION, temperature=0)
    assert got.output_text == wanted.text
    assert (got.object, got.status, got.model, got.error, got.metadata) == (
        "response",
        "completed",
        "demo",
        None,
        {"a": "b"},
    )
    assert got.usage is not None
    assert got.usage.output_tokens == len(wanted.tokens)
    assert got.usage.input_tokens + got.usage.output_tokens == got.usage.total_tokens
    cut = client.responses.create(model="x", input=[{"role": "user", "content": QUESTION}], temperature=0,
                                  max_output_tokens=2)
    assert (cut.status, cut.output_text) == ("incomplete", model.generate(QUESTION, temperature=0, max_tokens=2).text)
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_events_of_a_stream(server: Server, client: openai.OpenAI) -> None:
    body = {"input": QUESTION, "temperature": 0, "stream": True}
    _, headers, data = server.send("POST", "/v1/responses", body)
    assert headers["content-type"].startswith("text/event-stream")
    found = events(data)
    names = [name.removeprefix("response.") for name, _ in found]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [one["sequence_number"] for _, one in found] == list(range(len(found)))
    said = found[-1][1]["response"]["output"][0]["content"][0]["text"]
    with client.responses.stream(model="x", input=QUESTION, temperature=0) as stream:
        shown = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert shown == said == stream.get_final_response().output_text


def test_thoughts_text_and_calls(client: openai.OpenAI, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, f"<think>\nHm.\n</think>\n\n{TWO}")
    source = server.service.template.source
    monkeypatch.setattr(server.service, "template", ChatTemplate(source + "{# </think> #}"))
    whole = client.responses.create(model="x", input=QUESTION, tools=TOOLS)
    with client.responses.stream(model="x", input=QUESTION, tools=TOOLS) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    for response in (whole, streamed):
        thoughts, text, first, second = response.output
        assert thoughts.type == "reasoning"
        assert thoughts.content is not None
        assert thoughts.content[0].text == "Hm."
        assert text.type == "message"
        assert response.output_text == "See:"
        assert first.type == second.type == "function_call"
        assert (first.name, json.loads(first.arguments)) == ("weather", {"city": "</tool_call>"})
        assert (second.name, json.loads(second.arguments)) == ("now", {})
        assert first.call_id != second.call_id


@pytest.mark.parametrize(("most", "kinds"), [(8, ["reasoning"]), (25, ["reasoning", "message"])])
def test_what_is_cut_is_incomplete(
    server: Server, monkeypatch: pytest.MonkeyPatch, most: int, kinds: list[str]
) -> None:
    """The item that was being written, and no other one."""
    scripted(monkeypatch, f"<think>\nHm.\n</think>\n\n{TWO}")
    source = server.service.template.source
    monkeypatch.setattr(server.service, "template", ChatTemplate(source + "{# </think> #}"))
    body = {"input": QUESTION, "tools": TOOLS, "max_output_tokens": most}
    whole = server.post("/v1/responses", **body)
    streamed = events(server.send("POST", "/v1/responses", {**body, "stream": True})[2])
    done = [event["item"] for name, event in streamed if name == "response.output_item.done"]
    last = streamed[-1][1]["response"]
    assert whole["status"] == last["status"] == "incomplete"
    for items in (whole["output"], last["output"], done):
        assert [item["type"] for item in items] == kinds
        assert [item["status"] for item in items] == ["completed"] * (len(items) - 1) + ["incomplete"]


LOGPROBS: list[Any] = ["message.output_text.logprobs", "reasoning.encrypted_content"]


def test_logprobs(client: openai.OpenAI, server: Server) -> None:
    asked: dict[str, Any] = {"model": "x", "input": QUESTION, "temperature": 0, "include": LOGPROBS, "top_logprobs": 2}
    (item,) = client.responses.create(**asked).output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    tokens = part.logprobs or []
    assert "".join(one.token for one in tokens) == part.text
    assert all(len(one.top_logprobs) == 2 and one.top_logprobs[0].logprob >= one.logprob for one in tokens)
    told = server.chat(QUESTION, temperature=0, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [one.model_dump() for one in tokens] == told
    with client.responses.stream(**asked) as stream:
        found = [one for event in stream if event.type == "response.output_text.delta" for one in event.logprobs]
        (last,) = stream.get_final_response().output
    assert [(one.token, one.logprob) for one in found] == [(one.token, one.logprob) for one in tokens]
    assert last.type == "message"
    assert last.content[0].type == "output_text"
    assert last.content[0].logprobs == part.logprobs
    plain = client.responses.create(model="x", input=QUESTION, temperature=0).output[0]
    assert plain.type == "message"
    assert plain.content[0].type == "output_text"
    assert plain.content[0].logprobs == []


def test_a_call_that_has_to_be(client: openai.OpenAI) -> None:
    got = client.responses.create(
        model="x", input=QUESTION, tools=TOOLS, tool_choice={"type": "function", "name": "now"}
    )
    assert [(item.type, item.name) for item in got.output if item.type == "function_call"] == [("function_call", "now")]
    assert len(got.output) == 1


class Answer(BaseModel):
    ok: bool


def test_a_response_of_a_schema(client: openai.OpenAI) -> None:
    got = client.responses.parse(model="x", input=QUESTION, text_format=Answer, temperature=2)
    assert got.output_parsed is not None


def text(kind: str, what: str) -> dict[str, Any]:
    return {"type": kind, "text": what}


def test_a_conversation_with_results(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    encode = server.service.encode

    def seeing(template: Any, messages: Any, **more: Any) -> list[int]:
        seen.append(messages)
        return encode(template, messages, **more)

    monkeypatch.setattr(server.service, "encode", seeing)
    server.post("/v1/responses", max_output_tokens=1, instructions="Be brief.", input=[
        {"type": "message", "role": "user", "content": [text("input_text", QUESTION)]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [text("reasoning_text", "Hm.")]},
        {"type": "message", "role": "assistant", "content": [text("output_text", "Look:")]},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
        {"role": "user", "content": "And?"}])
    assert [(m["role"], m["content"]) for m in seen[0]] == [
        ("system", "Be brief."), ("user", QUESTION),
        ("assistant", 'Look:\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'),
        ("user", "<tool_response>\n12:00\n</tool_response>"), ("user", "And?"),
    ]
    assert seen[0][2]["reasoning_content"] == "Hm."


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": ""}, "input"),
    ({"input": "x", "previous_response_id": "resp_1"}, "Previous response with id 'resp_1' not found."),
    ({"input": "x", "previous_response_id": 5}, "previous_response_id"),
    ({"input": "x", "include": ["everything"]}, "include: has 'everything' (allowed: "),
    ({"input": "x", "top_logprobs": 21}, "top_logprobs"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "'input_image'"),
    ({"input": [{"type": "computer_call"}]}, "'computer_call'"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "'web_search'"),
    (
        {"input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}},
        "Invalid type: x",
    ),
]


@pytest.mark.parametrize(("body", "message"), WRONG)
def test_errors(server: Server, body: dict[str, Any], message: str) -> None:
    status, error = server.refused("/v1/responses", body)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert message in error["message"]
    assert error["param"] in ("input", None, *body)


def test_a_prompt_that_is_too_long(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as info:
        client.responses.create(model="x", input="1 " * 9000)
    assert (info.value.code, info.value.param) == ("context_length_exceeded", "input")
