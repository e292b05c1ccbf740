"""What becomes of requests that are wrong: OpenAI's errors, by status, with the field that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from octavo.runtime import Model
from tests.server.live_server import Server, running_model

CHAT = "/v1/chat/completions"
ASK: list[Any] = [{"role": "user", "content": "What is 1 plus 1?"}]


def nested(levels: int) -> Any:
    """A list in a list in a list."""
    return [nested(levels - 1)] if levels else 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages"),
    "messages of another type": ({"messages": "hello"}, "messages"),
    "an unknown role": ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
    "no content": ({"messages": [{"role": "user"}]}, "messages"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    "two assistants": (
        {"messages": [*ASK, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
    "fewer than no tokens": ({"max_tokens": -3}, "max_tokens"),
    "tokens of a text": ({"max_completion_tokens": "5"}, "max_completion_tokens"),
    "a negative temperature": ({"temperature": -1}, "temperature"),
    "a temperature of text": ({"temperature": "1"}, "temperature"),
    "a temperature of truth": ({"temperature": True}, "temperature"),
    "top_p over 1": ({"top_p": 1.5}, "top_p"),
    "an empty stop": ({"stop": ""}, "stop"),
    "an empty stop in a list": ({"stop": ["a", ""]}, "stop"),
    "17 stops": ({"stop": ["a"] * 17}, "stop"),
    "too many replies": ({"n": 1000}, "n"),
    "no replies": ({"n": 0}, "n"),
    "top_logprobs of 21": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "a bias of no token": ({"logit_bias": {"x": 1}}, "logit_bias"),
    "a bias out of the vocabulary": ({"logit_bias": {"999999": 1}}, "logit_bias"),
    "a bias of 101": ({"logit_bias": {"1": 101}}, "logit_bias"),
    "a stop token out of the vocabulary": ({"stop_token_ids": [999999]}, "stop_token_ids"),
    "a huge seed": ({"seed": 1 << 70}, "seed"),
    "messages as a variable": ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs"),
    "tools as a variable": ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    "a list as a truth": ({"chat_template_kwargs": {"enable_thinking": [1]}}, "chat_template_kwargs"),
    "a text as a truth": ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs"),
    "variables as a list": ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    "65 variables": ({"chat_template_kwargs": {f"x{i}": 1 for i in range(65)}}, "chat_template_kwargs"),
    "a long variable": ({"chat_template_kwargs": {"x": "a" * 65537}}, "chat_template_kwargs"),
    "a long name": ({"chat_template_kwargs": {"a" * 65537: 1}}, "chat_template_kwargs"),
    "a wide variable": ({"chat_template_kwargs": {"x": [0] * 4096}}, "chat_template_kwargs"),
    "a deep variable": ({"chat_template_kwargs": {"x": nested(40)}}, "chat_template_kwargs"),
    "a number of 400 digits": ({"chat_template_kwargs": {"x": [10**400]}}, "chat_template_kwargs"),
    "a template": ({"chat_template": "{{ 1 }}"}, "chat_template"),
    "adapters": ({"lora": [{"id": 0, "scale": 0.5}]}, "lora"),
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named(server: Server, name: str) -> None:
    fields, param = WRONG[name]
    status, error = server.refused(CHAT, {"messages": ASK, **fields})
    assert status == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"]


@pytest.mark.parametrize("stop", ["", [""], ["a", ""]], ids=str)
def test_an_empty_stop_is_told_in_plain_words(server: Server, stop: str | list[str]) -> None:
    _, error = server.refused(CHAT, {"messages": ASK, "stop": stop})
    assert error["message"] == "stop: an empty string can't end a reply"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"stop": ["a"] * 17}, "stop has too many values (at most 16)"),
    (CHAT, {"stop": "a" * 1025}, "stop is too long (at most 1024 characters)"),
    (CHAT, {"stop": ["a", 1]}, "stop.1 must be a string"),
    (CHAT, {"stop": 1}, "stop must be a string or a list"),
    (CHAT, {"tool_choice": {"type": "function"}}, "tool_choice.function: function needs a name"),
    (CHAT, {"tool_choice": "any"}, "tool_choice must be 'none', 'auto' or 'required'"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages.0.content.0.text is missing",
    ),
    (CHAT, {"messages": [user(["a"])]}, "messages.0.content.0 must be an object"),
    (CHAT, {"messages": [user(1)]}, "messages.0.content must be a string or a list"),
    (CHAT, {"guided_json": 1}, "guided_json must be an object or a string or true or false"),
    ("/v1/completions", {"prompt": [-5]}, "prompt.0 must be 0 or more"),
    ("/v1/completions", {"prompt": []}, "prompt must not be empty"),
    ("/v1/completions", {"prompt": [1, "a"]}, "prompt.1 must be an integer"),
    ("/v1/completions", {"prompt": ["a", 1]}, "prompt.1 must be a string"),
    ("/v1/completions", {"prompt": [[1], ["a"]]}, "prompt.1.0 must be an integer"),
    ("/v1/completions", {"prompt": [1.5]}, "prompt.0 must be an integer or a string or a list"),
    ("/completion", {"prompt": ["a", [1, -5]]}, "prompt.1.1 must be 0 or more"),
    ("/v1/responses", {"input": ""}, "input must not be empty"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"text": "a"}]}]},
        "input.0.content.0.type is missing",
    ),
]


@pytest.mark.parametrize(("path", "fields", "message"), MESSAGES)
def test_what_is_wrong_is_told_of_the_likeliest_type(
    server: Server, path: str, fields: dict[str, Any], message: str
) -> None:
    """Where a field may have several types."""
    status, error = server.refused(path, {"messages": ASK, **fields} if path == CHAT else fields)
    assert (status, error["message"]) == (400, message)


def test_fields_that_do_not_go_together(server: Server) -> None:
    status, error = server.refused(CHAT, {"messages": ASK, "top_logprobs": 2})
    assert (status, error["param"]) == (400, "top_logprobs")
    assert "top_logprobs" in error["message"]


def test_a_picture_is_refused_by_its_type(server: Server) -> None:
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    _, error = server.refused(CHAT, {"messages": [{"role": "user", "content": content}]})
    assert "image_url" in error["message"]


BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not valid JSON"),
    "cut": (b'{"messages": [', "not valid JSON"),
    "a list": (b"[]", "not a JSON object"),
    "NaN": (b'{"temperature": NaN}', "NaN"),
    "infinity": (b'{"temperature": -Infinity}', "Infinity"),
    "a key twice": (b'{"n": 1, "n": 2}', "twice"),
    "no UTF-8": (b'{"messages": "\xff"}', "UTF-8"),
    "half a surrogate pair": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
    "a key with half a pair": (b'{"\\udc00": 1}', "surrogate"),
    "nested deep": (b'{"x": ' + b"[" * 70 + b"]" * 70 + b"}", "64 levels"),
    "nested very deep": (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "64 levels"),
    "a number of many digits": (b'{"seed": ' + b"9" * 10_000 + b"}", "seed"),
    "1e999": (json.dumps({"messages": ASK}).encode()[:-1] + b', "temperature": 1e999}', "temperature"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_not_plain(server: Server, name: str) -> None:
    body, said = BODIES[name]
    status, error = server.refused(CHAT, body)
    assert status == 400
    assert said in error["message"]
    assert error.keys() >= {"message", "type", "param", "code"}


def test_a_body_of_64_levels_is_fine(server: Server) -> None:
    nested: Any = []
    for _ in range(62):
        nested = [nested]
    assert server.chat("What is 1 plus 1?", max_tokens=1, nothing=nested)
    assert server.refused(CHAT, {"messages": ASK, "nothing": [[nested]]})[0] == 400


def test_another_content_type(server: Server) -> None:
    status, _ = server.refused(CHAT, {"messages": ASK}, **{"Content-Type": "text/plain"})
    assert status == 415


def test_curl_needs_no_header_but_a_page_does(server: Server) -> None:
    """`curl -d` says that any body is a form. A page could send one without asking, and has an Origin."""
    curl = {"Content-Type": "application/x-www-form-urlencoded"}
    assert server.send("POST", CHAT, {"messages": ASK, "max_tokens": 1}, curl)[0] == 200
    assert server.refused(CHAT, {"messages": ASK}, Origin="http://127.0.0.1", **curl)[0] in (403, 415)


def test_unknown_paths_and_methods(server: Server) -> None:
    status, _, body = server.send("GET", "/v1/nothing")
    assert (status, json.loads(body)["error"]["type"]) == (404, "not_found_error")
    status, _, body = server.send("POST", "/api/create")
    assert (status, json.loads(body)) == (404, {"error": "no route /api/create"})
    status, headers, body = server.send("GET", CHAT)
    assert (status, headers["allow"]) == (405, "POST")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert server.send("DELETE", CHAT)[0] == 405


def test_the_classes_of_errors_that_clients_raise(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="x", messages=ASK, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("nothing")
    assert missing.value.code == "model_not_found"


def test_a_prompt_that_fills_the_context(server: Server, client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "What is 1 plus 1? " * 400}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="x", messages=long)  # type: ignore[arg-type]
    error: Any = caught.value.body
    n_ctx = server.get("/props")["default_generation_settings"]["n_ctx"]
    assert (error["code"], error["param"], error["type"]) == (
        "context_length_exceeded", "messages", "invalid_request_error"
    )
    assert error["n_ctx"] == n_ctx < error["n_prompt_tokens"]
    assert f"This model's maximum context length is {n_ctx} tokens" in error["message"]
    assert "exceeds the available context size" in error["message"]
    status, native = server.refused("/completion", {"prompt": "x " * 4000})
    assert (status, native["code"], native["type"]) == (400, 400, "exceed_context_size_error")
    assert native["n_ctx"] == n_ctx


@pytest.mark.slow
def test_litellm_knows_a_prompt_that_is_too_long(server: Server, litellm: Any) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            model="openai/demo", api_base=f"{server.url}/v1", api_key="none",
            messages=[{"role": "user", "content": "What is 1 plus 1? " * 400}],
        )
    reply = litellm.completion(
        model="openai/demo", api_base=f"{server.url}/v1", api_key="none", messages=ASK, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in reply)


def test_other_models(server: Server, model: Model) -> None:
    assert server.chat("What is 1 plus 1?", model="gpt-4", max_tokens=1)["model"] == "demo"
    with running_model(model, strict_model=True) as strict:
        status, error = strict.refused(CHAT, {"messages": ASK, "model": "gpt-4"})
        assert (status, error["code"]) == (404, "model_not_found")
        assert strict.chat("What is 1 plus 1?", model="demo", max_tokens=1)


def test_a_large_body_is_refused_before_it_is_read(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 99999999999\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 413 ")
    with server.connect() as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
        for _ in range(17):
            sock.sendall(piece)
        assert sock.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_large_headers(server: Server) -> None:
    for size, status in ((60_000, b"200"), (70_000, b"431"), (300_000, b"431")):
        with server.connect() as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * size + b"\r\n\r\n")
            assert sock.recv(1000).split(b" ")[1] == status
