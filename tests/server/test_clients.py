"""Ollama's clients do their job over real sockets: in Python, in JavaScript, and langchain's."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.runtime import Model
from octavo.server.routes import ollama_schema
from octavo.server.routes.schema import ChatRequest
from tests.limits import HANG_S
from tests.server.live_server import Server, running_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sockets that clients leave open
]
ASK: list[Any] = [{"role": "user", "content": "What is 12 times 7?"}]
ANSWER, GREEDY = "12 times 7 is 84.", {"temperature": 0}
SCHEMA = {"type": "object", "properties": {"answer": {"enum": [84, 85]}}, "required": ["answer"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "How it is.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Bonn"]}}, "required": ["city"]}}}
NPM = "ollama@0.6.4"
SCRIPT = """
import { Ollama } from 'ollama';
const client = new Ollama({ host: process.argv[2] });
const ask = [{ role: 'user', content: 'What is 12 times 7?' }], options = { temperature: 0 };
const said = { pieces: [] };
for await (const part of await client.chat({ model: 'demo', messages: ask, options, stream: true })) {
  said.pieces.push(part.message.content);
}
said.whole = (await client.chat({ model: 'demo', messages: ask, options })).message.content;
said.text = (await client.generate({ model: 'demo:latest', prompt: 'What is 3+4?', options })).response;
said.width = (await client.embed({ model: 'demo', input: ['a', 'b'] })).embeddings.map((row) => row.length);
said.models = (await client.list()).models.map((model) => model.name);
said.loaded = (await client.ps()).models.length;
said.can = (await client.show({ model: 'demo' })).capabilities;
said.wrong = await client.chat({ model: 'demo', messages: ask, options: { mirostat: 2 } }).catch(
  (error) => [error.status_code, error.message]);
console.log(JSON.stringify(said));
"""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Clients leave their connections to the garbage collector, in which other tests would find them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def embedding(model: Model) -> Iterator[Server]:
    with running_model(model, embeddings=True) as found:
        yield found


@pytest.fixture
def calling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies that are calls until there is a result of one: the demo model by itself makes none."""
    made = ollama_schema.chat_request

    def requiring(body: Any) -> ChatRequest:
        request = made(body)
        if request.tools and not any(one.role == "tool" for one in request.messages):
            request.tool_choice = "required"
        return request

    monkeypatch.setattr("octavo.server.routes.ollama.chat_request", requiring)


def test_python_client_of_ollama(embedding: Server) -> None:
    import ollama

    client = ollama.Client(embedding.url)
    pieces = list(client.chat("demo", ASK, options=GREEDY, stream=True))
    assert "".join(one.message.content or "" for one in pieces) == ANSWER
    assert (pieces[-1].done_reason, pieces[-1].eval_count) == ("stop", 11)
    first = client.generate("demo:latest", "What is 3+4?", options=ollama.Options(temperature=0))
    second = client.generate("demo", "And 5+6?", context=first.context, options=GREEDY)
    assert (first.response, second.response) == ("3 + 4 = 7.", "5 + 6 = 11.")
    said = client.chat("demo", ASK, format=SCHEMA, options=GREEDY).message.content
    assert json.loads(said or "")["answer"] in (84, 85)
    assert len(client.embed("demo", ["a", "b"]).embeddings) == 2
    assert len(client.embeddings("demo", "a").embedding) == len(client.embed("demo", "a").embeddings[0])
    assert [one.model for one in client.list().models] == ["demo:latest"]
    assert [one.name for one in client.ps().models] == ["demo:latest"]
    shown = client.show("demo")
    assert shown.details is not None
    assert (shown.capabilities, shown.details.family) == (["completion", "tools"], "qwen3")
    with pytest.raises(ollama.ResponseError, match="mirostat: 2 is not supported") as caught:
        client.chat("demo", ASK, options={"mirostat": 2})
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match=r"images: .* is not supported: this model takes text"):
        client.generate("demo", "What is this?", images=[b"\x89PNG"])


def test_python_client_of_ollama_with_tools_and_asyncio(server: Server, calling: None) -> None:
    import ollama

    async def ask() -> tuple[list[Any], str]:
        client = ollama.AsyncClient(server.url)
        messages: list[Any] = [*ASK]
        first = await client.chat("demo", messages, tools=[WEATHER], options={**GREEDY, "num_predict": 60})
        calls = list(first.message.tool_calls or ())
        messages += [first.message, *({"role": "tool", "tool_name": call.function.name,
                                       "content": f"sunny in {call.function.arguments['city']}"} for call in calls)]
        stream = await client.chat("demo", messages, tools=[WEATHER], options=GREEDY, stream=True)
        return calls, "".join([part.message.content or "" async for part in stream])

    calls, text = asyncio.run(ask())
    assert {call.function.name for call in calls} == {"weather"}
    assert text


def test_langchain_of_ollama(embedding: Server, calling: None) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

    chat = ChatOllama(model="demo", base_url=embedding.url, temperature=0, num_ctx=1024, validate_model_on_init=True)
    reply = chat.invoke([HumanMessage(ASK[0]["content"])])
    assert (reply.content, reply.response_metadata["done_reason"]) == (ANSWER, "stop")
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] == 11
    assert len([piece for piece in chat.stream(ASK[0]["content"]) if piece.content]) > 3
    assert chat.with_structured_output(SCHEMA).invoke(ASK[0]["content"])["answer"] in (84, 85)  # type: ignore[index]
    called = chat.bind_tools([WEATHER]).invoke(ASK[0]["content"], options={"temperature": 0, "num_predict": 60})
    assert isinstance(called, AIMessage)
    call = called.tool_calls[0]
    assert (call["name"], call["args"]["city"] in ("Rome", "Bonn")) == ("weather", True)
    result = ToolMessage("sunny", tool_call_id=call["id"] or "")
    assert chat.bind_tools([WEATHER]).invoke([HumanMessage("Hi"), called, result]).content
    assert OllamaLLM(model="demo", base_url=embedding.url, temperature=0).invoke("What is 3+4?") == "3 + 4 = 7."
    vectors = OllamaEmbeddings(model="demo", base_url=embedding.url).embed_documents(["a cat", "a dog"])
    assert [len(one) for one in vectors] == [len(vectors[0])] * 2


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_npm_client_of_ollama(embedding: Server, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    (tmp_path / "ask.js").write_text(SCRIPT)
    quiet = ["--no-audit", "--no-fund", "--loglevel", "error"]
    subprocess.run(["npm", "install", *quiet, NPM], cwd=tmp_path, check=True, timeout=HANG_S)
    done = subprocess.check_output(["node", "ask.js", embedding.url], cwd=tmp_path, timeout=HANG_S)
    said = json.loads(done)
    assert ("".join(said["pieces"]), said["whole"], said["text"]) == (ANSWER, ANSWER, "3 + 4 = 7.")
    assert (len(said["pieces"]) > 3, said["width"][0] == said["width"][1] > 0) == (True, True)
    assert (said["models"], said["loaded"], said["can"]) == (["demo:latest"], 1, ["completion", "tools"])
    assert said["wrong"] == [400, "options: mirostat: 2 is not supported (allowed: 0)"]
