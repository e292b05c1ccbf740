"""What a prompt has of tokens, and the model, as OpenAI's and Anthropic's clients ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.server.calls import TOOLS, client
from tests.server.live_server import Server
from tests.server.routes.test_chat import ASK

__all__ = ["client"]


@pytest.fixture(scope="module")
def messages_client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def test_input_tokens_of_responses(server: Server, client: openai.OpenAI) -> None:
    for more in ({}, {"instructions": "Be short."}):
        counted = client.responses.input_tokens.count(model="x", input=ASK, **more)
        reply = client.responses.create(model="x", input=ASK, max_output_tokens=1, **more)
        assert reply.usage is not None
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", reply.usage.input_tokens)
    status, error = server.refused("/v1/responses/input_tokens", {"input": "x" * 90_000})
    assert (status, error["param"], error["code"]) == (400, "input", "context_length_exceeded")


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_input_tokens_of_chats(server: Server, prefix: str) -> None:
    for more in ({}, {"tools": TOOLS}):
        counted = server.post(f"{prefix}/chat/completions/input_tokens", messages=ASK, **more)
        usage = server.post("/v1/chat/completions", messages=ASK, max_tokens=1, **more)["usage"]
        assert counted == {"object": "response.input_tokens", "input_tokens": usage["prompt_tokens"]}


def test_models_as_anthropics_client_reads_them(server: Server, messages_client: anthropic.Anthropic) -> None:
    page = messages_client.models.list()
    assert [one.id for one in page] == ["demo"]
    assert (page.has_more, page.first_id, page.last_id) == (False, "demo", "demo")
    one = messages_client.models.retrieve("demo")
    assert (one.type, one.id, one.display_name, one.lifecycle) == ("model", "demo", "demo", "active")
    assert int(one.created_at.timestamp()) == server.service.created
    assert one.created_at.tzinfo is not None
    assert server.get("/v1/models")["object"] == "list"


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/v1/messages/batches"), ("POST", "/v1/assistants"), ("GET", "/v1/models/other"), ("DELETE", "/v1/models"),
])
def test_what_there_is_not_as_each_client_reads_it(server: Server, method: str, path: str) -> None:
    version = {"anthropic-version": "2023-06-01"}
    status, _, answer = server.send(method, path, headers=version)
    error: Any = json.loads(answer)
    assert status in (404, 405)
    assert error["type"] == "error"
    assert error["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    _, _, answer = server.send(method, path)
    assert "param" in json.loads(answer)["error"]


def test_anthropics_client_raises_what_there_is_not(messages_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        messages_client.messages.batches.list()


def test_tokens_of_prompts_as_routers_ask_for_them(server: Server) -> None:
    """Those that are computed: of chats by the template, of texts by the tokenizer, of tokens themselves."""
    rendered = server.post("/v1/chat/completions/render", model="x", messages=ASK, add_generation_prompt=True)
    reply = server.chat(ASK[0]["content"], max_tokens=8, temperature=0)
    assert len(rendered["token_ids"]) == reply["usage"]["prompt_tokens"]
    same = server.post("/v1/completions", prompt=rendered["token_ids"], max_tokens=8, temperature=0)
    assert same["choices"][0]["text"].strip() == reply["choices"][0]["message"]["content"]
    texts = ["What is 1 plus 1?", "a cat"]
    assert server.post("/v1/completions/render", model="x", prompt=texts) == [
        {"token_ids": server.post("/tokenize", content=text, add_special=True)["tokens"]} for text in texts
    ]
    assert server.post("/v1/completions/render", prompt=[5, 6, 7]) == [{"token_ids": [5, 6, 7]}]
    assert server.refused("/v1/completions/render", {"prompt": [1 << 30]})[0] == 400
    assert server.refused("/v1/chat/completions/render", {"messages": []})[0] == 400
