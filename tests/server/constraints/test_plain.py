"""Numbers of hundreds of digits and half surrogate pairs, in any field of any route: a line that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from octavo.errors import GrammarError
from octavo.runtime import Grammar
from octavo.server.routes.anthropic_schema import CountRequest, MessagesRequest
from octavo.server.routes.llama_server_schema import DetokenizeRequest, NativeRequest, TemplateRequest, TokenizeRequest
from octavo.server.routes.ollama_schema import OllamaChatRequest, OllamaEmbedRequest, OllamaGenerateRequest
from octavo.server.routes.responses_schema import ResponsesRequest
from octavo.server.routes.schema import ChatRequest, CompletionRequest, EmbeddingRequest
from tests.server.live_server import Server

ASK = [{"role": "user", "content": "x"}]
SURROGATE, FLOAT = "a\ud800", "@1e400"
VALUES: dict[str, Any] = {"400 digits": -(10**400), "5000 digits": 1 << 16000, "float": FLOAT, "surrogate": SURROGATE}
ROUTES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": ASK}),
    "/v1/chat/completions/input_tokens": (ChatRequest, {"messages": ASK}),
    "/v1/completions": (CompletionRequest, {"prompt": "x"}),
    "/v1/embeddings": (EmbeddingRequest, {"input": "x"}),
    "/v1/responses": (ResponsesRequest, {"input": "x"}),
    "/v1/responses/input_tokens": (ResponsesRequest, {"input": "x"}),
    "/v1/messages": (MessagesRequest, {"messages": ASK, "max_tokens": 1}),
    "/v1/messages/count_tokens": (CountRequest, {"messages": ASK}),
    "/completion": (NativeRequest, {"prompt": "x"}),
    "/tokenize": (TokenizeRequest, {"content": "x"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
    "/apply-template": (TemplateRequest, {"messages": ASK}),
    "/api/chat": (OllamaChatRequest, {"messages": ASK}),
    "/api/generate": (OllamaGenerateRequest, {"prompt": "x"}),
    "/api/embed": (OllamaEmbedRequest, {"input": "x"}),
}


def written(body: Any) -> bytes:
    return json.dumps(_shortened(body)).replace('"@1e400"', "1e400").replace('"@digits"', "9" * 5000).encode()


def _shortened(value: Any) -> Any:
    """With a mark in the place of a number that Python does not write."""
    if isinstance(value, dict):
        return {key: _shortened(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    return "@digits" if value == VALUES["5000 digits"] else value


def within(value: Any) -> Iterator[Any]:
    """A value, and others with it in them, as a value and as a key."""
    yield from (value, [[1, value]], {"parameters": {"minimum": [value]}})
    if value == SURROGATE:
        yield {"x": {value: 1}}


@pytest.mark.few(8)
@pytest.mark.parametrize("path", ROUTES)
def test_every_field_of_every_route(server: Server, path: str) -> None:
    kind, base = ROUTES[path]
    fields = [one.alias or name for name, one in kind.model_fields.items()]
    for field in [*fields, "unknown", "user"]:
        for name, value in VALUES.items():
            for one in within(value) if field in (*fields[:2], "unknown") else [{"a": [value]}]:
                status, _, answer = server.send("POST", path, written({**base, field: one}))
                error = json.loads(answer)["error"]
                message = error if isinstance(error, str) else error["message"]
                assert (status, message.partition(":")[0].partition(".")[0]) == (400, field), (name, message)
                assert "\n" not in message
                assert len(message) < 200


def test_a_key_of_the_body(server: Server) -> None:
    status, error = server.refused("/tokenize", written({"content": "x", SURROGATE: 1}))
    assert (status, error["message"]) == (400, "a key has a lone surrogate, which is not valid text")


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": [1e400]}', f'{{"a": {"9" * 400}}}'])
def test_arguments_of_earlier_calls(server: Server, arguments: str) -> None:
    """They are JSON in a text, which is taken apart once more."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "1"}]
    items = [*ASK, {"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments}]
    for path, body, param in (
        ("/v1/chat/completions", {"messages": messages}, "messages"),
        ("/apply-template", {"messages": messages}, None),
        ("/v1/responses", {"input": items}, "input"),
    ):
        status, error = server.refused(path, body)
        assert (status, error.get("param")) == (400, param)
        assert "arguments: a" in error["message"]


@pytest.mark.parametrize("arguments", ['{"a": "\\u00e9\\n"}', '{"a": 12345678901234567890}', '{"a\\', "9" * 400])
def test_arguments_that_can_be_written(server: Server, arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    if arguments[0] == "9":
        call["function"]["arguments"] = f'"{arguments}"'  # type: ignore[index]
    server.post("/apply-template", messages=[*ASK, {"role": "assistant", "tool_calls": [call]}])


def test_large_numbers_that_fit(server: Server) -> None:
    text = "1" * 400
    assert server.post("/tokenize", content=text, unknown=[(1 << 64) - 1, -(1 << 63), 1e300])["tokens"]


@pytest.mark.parametrize("schema", [
    '{"minimum": 1e400}', f'{{"minimum": {"9" * 400}}}', f'{{"minLength": {"9" * 5000}}}', '{"enum": ["\\ud800"]}',
    {"maxItems": 10**400}, {"const": "\ud800"}, {"properties": {"\ud800": {}}},
])
def test_schemas_of_texts_and_of_the_library(schema: Any) -> None:
    with pytest.raises(GrammarError, match=r"not valid JSON: (minimum|minLength|maxItems|enum\.0|const|properties): "):
        Grammar.json_schema(schema)


@pytest.mark.parametrize("make", [Grammar.regex, Grammar.lark, Grammar.gbnf, lambda text: Grammar.choice([text])])
def test_grammars_of_the_library(make: Any) -> None:
    with pytest.raises(GrammarError, match="lone surrogate"):
        make("a\ud800")
