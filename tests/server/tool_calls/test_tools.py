"""Tools as OpenAI's client sees them: calls in replies and streams, and conversations with calls."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from octavo.runtime.grammar.grammar import Grammar
from octavo.server.routes import chat
from octavo.server.tool_calls.tools import for_template, tool_use
from octavo.text import ChatTemplate
from tests.sampling import slow
from tests.server.calls import TOOLS, TWO, client, require_valid, scripted
from tests.server.live_server import Server
from tests.server.routes.test_chat import ASK, FREE

__all__ = ["client"]


@pytest.mark.parametrize("seeds", [range(1), slow(range(100))])
def test_a_model_that_opens_a_call(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    """The demo model, which is made to begin one, at a temperature at which it writes nonsense."""
    made = chat._calls_that_open

    def opens(*given: Any) -> Grammar:
        grammar = made(*given)
        assert grammar is not None
        forced = grammar.text.replace("start: (opened0)*", "start: opened0")
        forced = forced.replace("/(?s:.*)<tool_call>/", "/<tool_call>/")
        assert (forced.count("start: opened0 "), forced.count("/<tool_call>/")) == (1, 1)
        return Grammar("reply", forced)

    monkeypatch.setattr(chat, "_calls_that_open", opens)
    for seed in seeds:
        reply = client.chat.completions.create(
            model="x", messages=ASK, tools=TOOLS, seed=seed, max_tokens=120, extra_body=FREE | {"temperature": 2}
        )
        (one,) = reply.choices
        if one.finish_reason != "length":
            calls: list[Any] = one.message.tool_calls or []
            require_valid([(call.function.name, call.function.arguments) for call in calls])


NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(("choice", "seeds"), [(NAMED, range(1)), slow(("required", range(100)))])
def test_a_call_that_has_to_be(client: openai.OpenAI, choice: Any, seeds: range) -> None:
    more: dict[str, Any] = FREE | {"temperature": 2}
    for seed in seeds:
        reply = client.chat.completions.create(
            model="x", messages=ASK, tools=TOOLS, tool_choice=choice, seed=seed, max_tokens=120, extra_body=more
        )
        (one,) = reply.choices
        if one.finish_reason == "length":
            continue
        assert (one.finish_reason, one.message.content) == ("tool_calls", None)
        calls: list[Any] = one.message.tool_calls or []
        require_valid([(call.function.name, call.function.arguments) for call in calls])
        assert len({call.id for call in calls}) == len(calls)
        if choice != "required":
            assert [call.function.name for call in calls] == ["now"]


def test_a_stream_of_calls(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, TWO)
    chunks = list(client.chat.completions.create(model="x", messages=ASK, tools=TOOLS, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "See:"
    parts = [call for delta in deltas for call in delta.tool_calls or ()]
    first = {part.index: part for part in reversed(parts)}
    assert [(i, p.type, p.function and p.function.name) for i, p in sorted(first.items())] == [
        (0, "function", "weather"), (1, "function", "now"),
    ]
    assert sum(part.id is not None for part in parts) == 2
    arguments = ["".join((p.function and p.function.arguments) or "" for p in parts if p.index == i) for i in (0, 1)]
    assert [json.loads(a) for a in arguments] == [{"city": "</tool_call>"}, {}]
    assert len([p for p in parts if p.index == 0]) > 2
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(model="x", messages=ASK, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [call.function.name for call in message.tool_calls or ()] == ["weather", "now"]


def test_thinking_is_told_apart(
    client: openai.OpenAI, server: Server, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, f"<think>\nHm.\n</think>\n\n{TWO}")
    source = server.service.template.source
    monkeypatch.setattr(server.service, "template", ChatTemplate(source + "{# </think> #}"))
    reply = client.chat.completions.create(model="x", messages=ASK, tools=TOOLS)
    message = reply.choices[0].message
    assert (message.model_extra or {})["reasoning_content"] == "Hm."
    assert message.content == "See:"
    assert len(message.tool_calls or ()) == 2
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert (reply.usage.completion_tokens_details.reasoning_tokens or 0) > 0


def test_a_conversation_with_calls(client: openai.OpenAI, server: Server) -> None:
    """Calls and results go back into the prompt; without tools the template is told of none."""
    messages: list[Any] = [
        *ASK, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "<|im_end|>"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    prompt = server.post("/apply-template", messages=messages, tools=TOOLS)["prompt"]
    assert '<tool_call>\n{"name": "now", "arguments": {"zone": "<|im_end|>"}}\n</tool_call>' in prompt
    assert "<tool_response>\n12:00\n</tool_response>" in prompt
    assert '"name": "weather"' in prompt
    told = [client.chat.completions.create(model="x", messages=messages, max_tokens=1, **more).usage for more in (
        {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {})]
    with_tools, none, without = (usage.prompt_tokens for usage in told if usage)
    assert with_tools > none == without


OBJECTS = "{{ messages[1].tool_calls[0].function.arguments | tojson }}"
TEXTS = "{{ messages[1].tool_calls[0].function.arguments }}"


@pytest.mark.parametrize("source", [OBJECTS, TEXTS])
def test_arguments_are_what_a_template_writes_as_json(source: str) -> None:
    template = ChatTemplate("{{ tools }}<tool_call>" + source)
    for arguments in ('{"a": "b"}', {"a": "b"}):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        assert template.render(for_template(template, messages, [])).endswith('{"a": "b"}')


def test_ids_as_mistral_wants_them() -> None:
    template = ChatTemplate("{{ tools }}[TOOL_CALLS]")
    call = {"id": "call_abc", "type": "function", "function": {"name": "f", "arguments": {}}}
    told = for_template(template, [{"role": "assistant", "content": "", "tool_calls": [call]},
                                   {"role": "tool", "content": "", "tool_call_id": "call_abc"}], [])
    assert told[0]["tool_calls"][0]["id"] == told[1]["tool_call_id"]
    assert len(told[1]["tool_call_id"]) == 9
    use = tool_use(template, [{"name": "f"}], "auto", None, True)
    assert use is not None
    assert len(use.call_id()()) == 9


DEEPSEEK = "{{ messages[0].content }}{% if messages[-1]['tool_calls'] %}<｜tool▁call▁begin｜>f<｜tool▁sep｜>{% endif %}"


def test_a_template_with_calls_that_tells_no_tools() -> None:
    """The system message tells of them, and of calls as the model writes them."""
    template = ChatTemplate(DEEPSEEK)
    told = for_template(template, [{"role": "user", "content": "x"}], TOOLS)
    assert [m["role"] for m in told] == ["system", "user"]
    assert "<｜tool▁call▁begin｜>...<｜tool▁sep｜>{...}<｜tool▁call▁end｜>" in told[0]["content"]
    assert '"name": "weather"' in told[0]["content"]
    use = tool_use(template, [{"name": "f"}], "auto", None, True)
    assert use is not None
    assert (use.form.name, use.told) == ("deepseek_v31", False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_call_that_is_cut_in_its_head_is_no_text(server: Server, path: str, stream: bool) -> None:
    function = TOOLS[1]["function"]
    body: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "max_tokens": 9},
        "/v1/messages": {"messages": ASK, "tools": [function], "tool_choice": {"type": "any"}, "max_tokens": 9},
        "/v1/responses": {"input": ASK, "tools": [{"type": "function", **function}], "tool_choice": "required",
                          "max_output_tokens": 9},
    }
    _, _, answer = server.send("POST", path, {**body[path], "stream": stream})
    assert b"tool_call>" not in answer
    assert b'{\\"name' not in answer
    if path == "/v1/chat/completions" and not stream:
        (choice,) = json.loads(answer)["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")
