"""/v1/messages, as Anthropic's client knows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from octavo.runtime import Model
from octavo.server.engine.engine_protocol import EngineOutput
from octavo.text import ChatTemplate
from tests.server.calls import PARAMETERS, TWO, scripted
from tests.server.live_server import Server, running_model
from tests.server.routes.test_chat import QUESTION
from tests.server.scripted_engine import begun, playing

if TYPE_CHECKING:  # it takes two seconds to import: only where it is used
    import anthropic

ASK: list[Any] = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0}
TOOLS: list[Any] = [
    {"name": "weather", "description": "How it will be.", "input_schema": PARAMETERS},
    {"name": "now", "input_schema": {"type": "object"}},
]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def events(body: bytes) -> list[tuple[str, Any]]:
    """Names and data of a stream's events; each event names itself twice."""
    found = []
    for part in body.decode().split("\n\n")[:-1]:
        if not part.startswith(":"):
            name, data = part.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(data["type"] == name for name, data in found)
    return found


def test_a_message(client: anthropic.Anthropic, model: Model) -> None:
    got = client.messages.create(model="any", max_tokens=50, messages=ASK, extra_body=GREEDY)
    wanted = model.generate(QUESTION, temperature=0)
    (block,) = got.content
    assert block.type == "text"
    assert block.text == wanted.text
    assert (got.type, got.role, got.model, got.stop_reason, got.stop_sequence) == (
        "message",
        "assistant",
        "demo",
        "end_turn",
        None,
    )
    assert got.usage.output_tokens == len(wanted.tokens)
    prompt = len(model.encode_prompt(QUESTION))
    assert got.usage.input_tokens + (got.usage.cache_read_input_tokens or 0) == prompt
    assert client.messages.count_tokens(model="any", messages=ASK).input_tokens == prompt


def test_events_of_a_stream(server: Server, client: anthropic.Anthropic) -> None:
    body = {"model": "x", "max_tokens": 50, "messages": ASK, "temperature": 0}
    _, headers, data = server.send("POST", "/v1/messages", {**body, "stream": True})
    assert headers["content-type"].startswith("text/event-stream")
    names = [name for name, _ in events(data)]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    with client.messages.stream(model="x", max_tokens=50, messages=ASK, extra_body=GREEDY) as stream:
        text, message = "".join(stream.text_stream), stream.get_final_message()
    whole = server.post("/v1/messages", **body)
    assert [{"type": "text", "text": text}] == whole["content"]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", whole["usage"]["output_tokens"])


def test_comments_are_ignored(model: Model) -> None:
    import anthropic

    with playing(model, ping=0.1) as played, anthropic.Anthropic(base_url=played.server.url, api_key="none") as client:
        answer = played.answering(begun(1, 16), EngineOutput(1, 17, "length"))
        with client.messages.stream(model="any", max_tokens=50, messages=ASK) as stream:
            assert stream.get_final_text() == model.tokenizer.decode([16, 17])
        answer.join()


def test_why_a_message_ended(client: anthropic.Anthropic, model: Model) -> None:
    got = client.messages.create(model="x", max_tokens=2, messages=ASK, extra_body=GREEDY)
    assert (got.stop_reason, got.usage.output_tokens) == ("max_tokens", 2)
    text = model.generate(QUESTION, temperature=0).text
    stops = ["no such text", text[3:6]]
    got = client.messages.create(model="x", max_tokens=50, messages=ASK, extra_body=GREEDY, stop_sequences=stops)
    assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", text[3:6])
    assert got.content[0].type == "text"
    assert got.content[0].text == text[: text.index(text[3:6])]


def test_thoughts_text_and_calls(client: anthropic.Anthropic, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, f"<think>\nHm.\n</think>\n\n{TWO}")
    source = server.service.template.source
    monkeypatch.setattr(server.service, "template", ChatTemplate(source + "{# </think> #}"))
    whole = client.messages.create(model="x", max_tokens=400, messages=ASK, tools=TOOLS)
    with client.messages.stream(model="x", max_tokens=400, messages=ASK, tools=TOOLS) as stream:
        indices = [event.index for event in stream if event.type == "content_block_start"]
        streamed = stream.get_final_message()
    assert indices == [0, 1, 2, 3]
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        thoughts, text, first, second = message.content
        assert thoughts.type == "thinking"
        assert thoughts.thinking == "Hm."
        assert text.type == "text"
        assert text.text == "See:"
        assert first.type == second.type == "tool_use"
        assert (first.name, first.input) == ("weather", {"city": "</tool_call>"})
        assert (second.name, second.input) == ("now", {})
        assert first.id != second.id


def test_a_call_that_has_to_be(client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "tool", "name": "now"}
    got = client.messages.create(model="x", max_tokens=200, messages=ASK, tools=[{**TOOLS[1], "input_schema": {
        "type": "object", "additionalProperties": False}}], tool_choice=choice)
    assert (got.stop_reason, [b.type for b in got.content]) == ("tool_use", ["tool_use"])


class Answer(BaseModel):
    ok: bool


ENDLESS = {"type": "json_schema", "schema": {
    "type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}}
SCHEMA = {"type": "json_schema", "schema": {"enum": ["x"]}}


def test_a_message_of_a_schema(client: anthropic.Anthropic, server: Server) -> None:
    hot: Any = {"temperature": 2}
    for _ in range(3):
        got = client.messages.parse(model="x", max_tokens=400, messages=ASK, output_format=Answer, extra_body=hot)
        assert got.parsed_output is not None
    with client.messages.stream(
        model="x", max_tokens=400, messages=ASK, output_format=Answer, extra_body=GREEDY
    ) as stream:
        assert stream.get_final_message().parsed_output is not None
    older = client.beta.messages.parse(model="x", max_tokens=400, messages=ASK, output_format=Answer, extra_body=GREEDY)
    assert older.parsed_output is not None
    for form in ({"output_config": {"format": SCHEMA}}, {"output_format": SCHEMA}):
        reply = server.post(
            "/v1/messages", max_tokens=9, messages=ASK, tools=TOOLS, tool_choice={"type": "none"}, **form
        )
        assert reply["content"] == [{"type": "text", "text": '"x"'}]


def test_a_conversation_with_results(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    encode = server.service.encode
    monkeypatch.setattr(
        server.service,
        "encode",
        lambda wrote, messages, **more: seen.append(messages) or encode(wrote, messages, **more),
    )
    server.post("/v1/messages", max_tokens=1, system=[
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], messages=[
            *ASK, {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "t1", "name": "now", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "12:00"}]},
                {"type": "text", "text": "And?"}]}])
    assert [(m["role"], m["content"]) for m in seen[0]] == [
        ("system", "Be brief."), ("user", QUESTION),
        ("assistant", 'Look:\n<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'),
        ("user", "<tool_response>\n12:00\n</tool_response>"), ("user", "And?"),
    ]
    one = server.post("/v1/messages/count_tokens", messages=ASK, system="x-anthropic-billing-header: cch=1;\nBe brief.")
    assert one == server.post("/v1/messages/count_tokens", messages=ASK, system="Be brief.")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": ASK}, "max_tokens"),
    ({"max_tokens": -3, "messages": ASK}, "max_tokens"),
    ({"max_tokens": 5, "messages": []}, "messages"),
    ({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
    ({"max_tokens": 5, "messages": ASK, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
    ({"max_tokens": 5, "messages": ASK, "tool_choice": {"type": "tool", "name": "rm"}, "tools": TOOLS}, "'rm'"),
    ({"max_tokens": 5, "messages": ASK, "output_format": {"type": "json"}}, "output_format.type must be 'json_schema'"),
    ({"max_tokens": 5, "messages": ASK, "output_config": {"format": {"type": "json_schema"}}},
     "output_config.format.schema is missing"),
    ({"max_tokens": 5, "messages": ASK, "output_config": {"format": ENDLESS}}, "output_config.format: "),
    ({"max_tokens": 5, "messages": ASK, "output_config": {"format": SCHEMA}, "output_format": SCHEMA}, "used together"),
]


@pytest.mark.parametrize(("body", "message"), WRONG)
def test_errors(server: Server, body: dict[str, Any], message: str) -> None:
    status, _, data = server.send("POST", "/v1/messages", body)
    answer = json.loads(data)
    assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    assert answer["request_id"].startswith("req_")
    assert message in answer["error"]["message"]


def test_a_prompt_that_is_too_long(client: anthropic.Anthropic, server: Server) -> None:
    import anthropic

    long: list[Any] = [{"role": "user", "content": "1 " * 9000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        client.messages.create(model="x", max_tokens=5, messages=long)


def test_keys_and_a_server_that_is_about_to_end(model: Model) -> None:
    import anthropic

    with running_model(model, keys=("secret",)) as server:
        known, unknown = (
            anthropic.Anthropic(base_url=server.url, api_key=k, max_retries=0) for k in ("secret", "guess")
        )
        with pytest.raises(anthropic.AuthenticationError):
            unknown.messages.create(model="x", max_tokens=1, messages=ASK)
        assert known.messages.create(model="x", max_tokens=1, messages=ASK).usage.output_tokens == 1
        server.service.draining = True
        with pytest.raises(anthropic.APIStatusError) as info:
            known.messages.create(model="x", max_tokens=1, messages=ASK)
        assert info.value.status_code == 529
        assert info.value.response.json()["error"]["type"] == "overloaded_error"
        server.service.draining = False
        known.close()
        unknown.close()
