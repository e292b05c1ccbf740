"""Texts that come in parts, and what a model is told of them: each on a line of its own."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.server.routes import anthropic_schema, responses_schema
from octavo.server.routes.chat import messages_of
from octavo.server.routes.schema import ChatRequest
from tests.server.live_server import Server

WORDS = ["What is", "the best book"]
TOGETHER = "What is\nthe best book"


def texts(kind: str = "text") -> list[dict[str, str]]:
    return [{"type": kind, "text": word} for word in WORDS]


def contents(request: ChatRequest) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in messages_of(request.messages)]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_parts_of_a_chat(role: str) -> None:
    request = ChatRequest.model_validate({"messages": [{"role": role, "content": texts()}]})
    assert contents(request) == [("system" if role == "developer" else role, TOGETHER)]


def test_a_prompt_has_a_line_for_each_part(server: Server) -> None:
    messages = [{"role": "user", "content": texts()}]
    assert f"{TOGETHER}<" in server.post("/apply-template", messages=messages)["prompt"].replace("\n<", "<")
    one = [{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "What is"}]}]
    assert "What is" in server.post("/apply-template", messages=one)["prompt"]
    assert "\nWhat is" not in server.post("/apply-template", messages=one)["prompt"].partition("user\n")[2]


def test_blocks_of_anthropics_messages() -> None:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": "a", "content": texts()}
    thoughts = [{"type": "thinking", "thinking": word} for word in WORDS]
    request = anthropic_schema.chat_request(anthropic_schema.CountRequest.model_validate({
        "system": texts(),
        "messages": [
            {"role": "user", "content": texts()}, {"role": "assistant", "content": [*thoughts, *texts()]},
            {"role": "user", "content": [result]},
        ],
    }))
    assert contents(request) == [(role, TOGETHER) for role in ("system", "user", "assistant", "tool")]
    assert request.messages[2].reasoning_content == TOGETHER


def test_parts_of_responses() -> None:
    request = responses_schema.chat_request(responses_schema.ResponsesRequest.model_validate({"input": [
        {"role": "user", "content": texts("input_text")},
        {"type": "reasoning", "summary": texts("summary_text")},
        {"role": "assistant", "content": texts("output_text")},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": texts("input_text")},
    ]}))
    assert contents(request) == [(role, TOGETHER) for role in ("user", "assistant", "tool")]
    assert request.messages[1].reasoning_content == TOGETHER
