"""What the front alone makes of requests, and how each route tells that the engine has ended: no engine computes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Event
from typing import Any

import numpy as np
import pytest

from octavo.runtime import Model
from octavo.runtime.grammar import host as grammar_host
from octavo.runtime.grammar.grammar import Grammar, Grammars
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.server.engine.engine_protocol import Add, Ready
from octavo.server.engine.fake import FakeClient
from octavo.server.tool_calls.tools import for_template
from octavo.text import ChatTemplate
from tests.server.live_server import Server, events, running
from tests.server.scripted_engine import BODY, CHAT, Reader, begun, playing, request

MESSAGES = BODY["messages"]
ROUTES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    "/v1/completions": {"prompt": "What is"},
    "/completion": {"prompt": "What is"},
    "/v1/responses": {"input": "What is 12 times 7?"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 3}},
    "/api/generate": {"prompt": "What is", "options": {"num_predict": 3}},
}


@contextmanager
def asked(model: Model) -> Iterator[tuple[Server, FakeClient]]:
    fake = FakeClient([16])
    with running(fake, model) as server:
        yield server, fake


def add_of(fake: FakeClient) -> Add:
    """The latest request."""
    return [message for message in fake.sent if isinstance(message, Add)][-1]


def data_of(stream: bytes) -> list[Any]:
    """What events say that may have names."""
    parts = [part.partition(b"data: ")[2] for part in stream.split(b"\n\n") if b"data: " in part]
    return [json.loads(part) for part in parts if part != b"[DONE]"]


def lines_of(stream: bytes) -> list[Any]:
    """What lines of JSON say."""
    return [json.loads(line) for line in stream.splitlines()]


@pytest.mark.parametrize("route", ROUTES)
def test_an_engine_that_ends_in_a_stream_is_told(route: str, model: Model) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**ROUTES[route], "stream": True}, route))
        (one,) = played.asked().ids
        played.say(begun(one, 16))
        with closing(Reader(sock)) as reader:
            assert reader.head().startswith(b"HTTP/1.1 200 ")
            stream = reader.chunk()
            played.die()
            while chunk := reader.chunk():
                stream += chunk
    *_, last = found = lines_of(stream) if route.startswith("/api/") else data_of(stream)
    assert model.tokenizer.decode([16]) in json.dumps(found[:-1])
    if route.startswith("/api/"):
        last = {"error": {"message": last["error"]}}
    elif route == "/v1/responses":
        assert found[-2]["type"] == "error"
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        last = last["response"]
        assert last["error"]["code"] == "engine_ended"
    elif route == "/v1/messages":
        assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
    else:
        assert last["error"]["code"] == (503 if route == "/completion" else "engine_ended")
    assert "killed" in last["error"]["message"]
    assert b"[DONE]" not in stream


@pytest.mark.parametrize(("said", "made"), [
    ({"top_k": -1}, {"top_k": 0}), ({"top_p": 0}, {"top_p": 1.0, "top_k": 1}), ({"top_k": 7}, {"top_k": 7}),
    ({"repetition_penalty": 1.5}, {"repeat_penalty": 1.5}),
    ({"repetition_penalty": 1.5, "repeat_penalty": 1.2}, {"repeat_penalty": 1.2}),
])
def test_names_and_values_that_other_servers_know(said: dict[str, Any], made: dict[str, Any], model: Model) -> None:
    with asked(model) as (server, fake):
        server.post(CHAT, messages=MESSAGES, max_tokens=1, **said)
        sampling = add_of(fake).sampling
    usual = SamplingParams()
    for name in ("top_k", "top_p", "repeat_penalty"):
        assert getattr(sampling, name) == pytest.approx(made.get(name, getattr(usual, name)))


def test_vectors_in_base64_and_of_fewer_dimensions(model: Model) -> None:
    with asked(model) as (server, _):
        one = server.post("/v1/embeddings", input="a cat", encoding_format="base64", dimensions=1)["data"]
        assert np.frombuffer(base64.b64decode(one[0]["embedding"]), "<f4").tolist() == [1.0]
        texts = server.post("/v1/embeddings", input=["a cat", "a kitten"])
        assert [row["embedding"] for row in texts["data"]] == [[1.0], [1.0]]
        assert server.post("/v1/embeddings", input=[5, 6, 7])["usage"]["prompt_tokens"] == 3
        status, error = server.refused("/v1/embeddings", {"input": "a cat", "dimensions": 2})
    assert (status, error["param"]) == (400, "dimensions")
    assert "allowed: 1 to 1" in error["message"]


def test_likelihoods_in_a_stream_are_of_all_tokens(model: Model) -> None:
    tokens = model.tokenizer.encode("🦀 7", add_special=False)  # of several tokens a character, which no piece may cut
    fake = FakeClient(tokens)
    with running(fake, model) as server:
        body = {**BODY, "stream": True, "logprobs": True, "top_logprobs": 1, "max_tokens": len(tokens)}
        found = [e["choices"][0] for e in events(server.send("POST", CHAT, body)[2])[:-1]]
    parts = [c["logprobs"]["content"] for c in found if c["logprobs"]]
    assert len(parts) < len(tokens)
    assert bytes(b for part in parts for row in part for b in row["bytes"]).decode() == "🦀 7"
    assert "".join(c["delta"].get("content", "") for c in found) == "🦀 7"


def test_what_a_request_says_of_thinking_reaches_the_template(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    render = ChatTemplate.render

    def rendered(self: ChatTemplate, *given: Any, **variables: Any) -> str:
        told.append(variables)
        return render(self, *given, **variables)

    with asked(model) as (server, _):
        monkeypatch.setattr(ChatTemplate, "render", rendered)
        for kind, wanted in (("enabled", True), ("adaptive", True), ("disabled", False)):
            told.clear()
            server.post("/v1/messages", messages=MESSAGES, max_tokens=1, thinking={"type": kind, "budget_tokens": 1024})
            assert {one["enable_thinking"] for one in told if "enable_thinking" in one} == {wanted}
        told.clear()
        server.post(CHAT, messages=MESSAGES, max_tokens=1, reasoning_effort="low")
        assert "low" in {one.get("reasoning_effort") for one in told}
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            told.clear()
            server.post(path, messages=MESSAGES, max_tokens=1, output_config={"effort": "high"})
            assert "high" in {one.get("reasoning_effort") for one in told}


def test_a_reply_does_not_go_on_after_calls(model: Model) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with asked(model) as (server, _):
        last = {"role": "assistant", "content": "", "tool_calls": [call]}
        status, error = server.refused(CHAT, {"messages": [*MESSAGES, last]})
    assert (status, error["param"]) == (400, "messages")
    assert "after tool calls" in error["message"]


def test_tools_are_told_in_the_system_message_that_is_there() -> None:
    plain = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    asked = [{"role": "user", "content": "?"}]
    alone = for_template(plain, asked, tools)
    assert [m["role"] for m in alone] == ["system", "user"]
    told = for_template(plain, [{"role": "system", "content": "Be brief."}, *asked], tools)
    assert [m["role"] for m in told] == ["system", "user"]
    assert told[0]["content"] == f"Be brief.\n\n{alone[0]['content']}"
    assert '"name": "weather"' in told[0]["content"]


def test_thinking_before_calls_has_a_name_of_its_own_in_harmony() -> None:
    harmony = ChatTemplate(
        "{% for m in messages %}<|channel|>{{ m.thinking or m.content }}{{ m.tool_calls and '' }}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    before = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    answer = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    told = for_template(harmony, [before, answer], [])
    assert [message.get("thinking") for message in told] == ["Hm.", None]
    assert harmony.render(told, add_generation_prompt=False) == "<|channel|>Hm.<|channel|>Yes."


def test_a_schema_beside_tools_allows_calls_or_data(model: Model) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["a"]}}}
    with asked(model) as (server, fake):
        server.post(CHAT, messages=MESSAGES, max_tokens=1, tools=[tool], response_format=schema)
        grammar = add_of(fake).grammar
        refused = {"messages": MESSAGES, "tools": [tool], "grammar": 'root ::= "x"'}
        status, error = server.refused(CHAT, refused)
    assert (status, error["param"]) == (400, "grammar")
    assert grammar is not None
    constraint = server.service.grammars.constraint(grammar, None)
    tokenizer = model.tokenizer
    mask = np.zeros(-(-tokenizer.n_vocab // 32), np.int32)
    constraint.fill(mask)
    allowed = {i for i in range(tokenizer.n_vocab) if mask[i // 32] >> (i % 32) & 1}
    begins = {tokenizer.token_bytes(i)[:1] for i in allowed} - {b""}
    assert begins == {b'"', b"<"}


class Loading(FakeClient):
    """Has no model before the front has read the vocabulary for grammars, or some seconds are over."""

    def __init__(self, prepared: Event) -> None:
        super().__init__([300])
        self.prepared, self.in_time = prepared, False

    async def start(self) -> None:
        self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        self.in_time = await asyncio.to_thread(self.prepared.wait, 10)
        self.deliver(Ready(self.loaded))


def test_grammars_are_ready_when_the_model_is(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, prepare = Event(), Grammars.prepare

    def noted(grammars: Grammars) -> None:
        prepare(grammars)
        prepared.set()

    monkeypatch.setattr(Grammars, "prepare", noted)
    client = Loading(prepared)
    with running(client, model) as server:
        assert client.in_time
        monkeypatch.setattr(grammar_host, "_started", None)  # it is there, and has read the vocabulary or does so
        assert server.service.grammars.constraint(Grammar.regex("[0-9]+"))
