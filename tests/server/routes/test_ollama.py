"""Ollama's routes: chats, texts, vectors, and what they tell of the model; slow: its clients."""

from __future__ import annotations

import json
import math
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from octavo.runtime import Model
from octavo.server.engine.engine_protocol import EngineOutput
from octavo.server.routes.ollama_schema import OllamaChatRequest, chat_request, seconds
from tests.server.calls import PARAMETERS, TOOLS
from tests.server.live_server import Server, running_model
from tests.server.scripted_engine import Reader, begun, playing, request

ASK = [{"role": "user", "content": "What is 12 times 7?"}]
GREEDY = {"temperature": 0}
NO_SYSTEM = "system: raw prompts, and those with a suffix, have none: write it into the prompt"


def lines(server: Server, path: str, **body: Any) -> list[Any]:
    """What the lines of a stream say."""
    status, headers, data = server.send("POST", path, body)
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def wrong(server: Server, path: str, **body: Any) -> tuple[int, str]:
    """Status and error of a request that is refused."""
    status, _, data = server.send("POST", path, body)
    (error,) = json.loads(data).values()
    assert isinstance(error, str)
    return status, error


def test_a_chat_in_lines_and_whole(server: Server) -> None:
    want = server.chat(ASK[0]["content"], temperature=0)
    *pieces, last = lines(server, "/api/chat", model="demo:latest", messages=ASK, options=GREEDY)
    text = "".join(one["message"]["content"] for one in pieces)
    assert text == want["choices"][0]["message"]["content"]
    assert all(one["done"] is False and one["message"]["role"] == "assistant" for one in pieces)
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert last["prompt_eval_count"] == want["usage"]["prompt_tokens"]
    assert last["eval_count"] == want["usage"]["completion_tokens"]
    assert last["total_duration"] > last["eval_duration"] > 1000, "nanoseconds"
    whole = server.post("/api/chat", messages=ASK, options=GREEDY, stream=False)
    assert whole["message"] == {"role": "assistant", "content": text}
    assert {one["model"] for one in (*pieces, last, whole)} == {"demo"}
    assert whole.keys() == last.keys()


def test_a_text_and_one_that_goes_on(server: Server) -> None:
    first = server.post("/api/generate", prompt="What is 3+4?", options=GREEDY, stream=False)
    assert first["response"] == server.chat("What is 3+4?", temperature=0)["choices"][0]["message"]["content"]
    *pieces, last = lines(server, "/api/generate", prompt="And 5+6?", context=first["context"], options=GREEDY)
    assert last["context"][: len(first["context"])] == first["context"]
    text = server.service.tokenizer.decode(last["context"])
    assert text.index("What is 3+4?") < text.index(first["response"]) < text.index("And 5+6?")
    assert text.count("".join(one["response"] for one in pieces)) == 1
    assert last["prompt_eval_count"] > first["prompt_eval_count"] + first["eval_count"]


def test_a_raw_text_goes_on_as_it_is(server: Server) -> None:
    found = server.post("/api/generate", prompt="12 times 7 is", raw=True, options={**GREEDY, "num_predict": 6},
                        stream=False)
    want = server.post("/v1/completions", prompt="12 times 7 is", temperature=0, max_tokens=6)
    assert found["response"] == want["choices"][0]["text"]
    assert (found["done_reason"], found["eval_count"], "context" in found) == ("length", 6, False)
    assert wrong(server, "/api/generate", prompt="x", raw=True, system="y") == (
        400, NO_SYSTEM)


def test_a_system_message_counts(server: Server) -> None:
    body = {"prompt": "Hello", "options": GREEDY, "stream": False}
    with_it = server.post("/api/generate", system="You are a pirate.", **body)
    assert with_it["prompt_eval_count"] > server.post("/api/generate", **body)["prompt_eval_count"]
    assert "You are a pirate." in server.service.tokenizer.decode(with_it["context"])


def test_options(server: Server) -> None:
    def reply(**options: Any) -> Any:
        return server.post("/api/chat", messages=ASK, options=options, stream=False)

    assert reply(seed=3, temperature=2.0)["message"] == reply(seed=3, temperature=2.0, num_gpu=1)["message"]
    assert reply(temperature=0, stop=["times"])["message"]["content"] == "12 "
    assert reply(top_k=1, repeat_penalty=1.0, min_p=0.0, typical_p=1.0, mirostat=0)["done_reason"] == "stop"
    n = reply(temperature=0, num_predict=1)["prompt_eval_count"]
    assert reply(temperature=0, num_predict=3)["eval_count"] == 3
    assert reply(temperature=0, num_ctx=n + 2)["eval_count"] == 2
    assert reply(temperature=0, num_ctx=1 << 20)["done_reason"] == "stop", "more than the server's context"


@pytest.mark.parametrize(("body", "message"), [
    ({"options": {"temprature": 1}}, "options.temprature is not an option here"),
    ({"options": {"mirostat": 2}}, "options: mirostat: 2 is not supported (allowed: 0)"),
    ({"options": {"penalize_newline": False}}, "options: penalize_newline: false is not supported (allowed: true)"),
    ({"options": {"temperature": "hot"}}, "options.temperature must be a number"),
    ({"options": {"num_predict": 0.5}}, "options.num_predict must be an integer"),
    ({"options": {"num_ctx": 3}}, "This model's maximum context length is 3 tokens, but the request has 17: it exceeds "
                                  "the available context size"),
    ({"keep_alive": "soon"}, "keep_alive: 'soon' is not a duration (allowed: seconds, or a text such as 5m or 1h30m)"),
    ({"think": True}, "think: demo does not support thinking"),
    ({"think": "hard"}, "think must be 'low', 'medium', 'high' or 'max'"),
    ({"format": {"type": "nothing"}}, "format: the grammar or schema can't be used: Invalid type: nothing"),
    ({"messages": [{"role": "user", "content": "What?", "images": ["YWJj"]}]},
     'messages.0: images: ["YWJj"] is not supported: this model takes text'),
    ({"messages": [{"role": "robot", "content": "What?"}]},
     "messages.0.role must be 'system', 'developer', 'user', 'assistant' or 'tool'"),
])
def test_what_is_wrong_with_a_chat(server: Server, body: dict[str, Any], message: str) -> None:
    assert wrong(server, "/api/chat", **{"messages": ASK, **body}) == (400, message)


@pytest.mark.parametrize(("body", "message"), [
    ({"suffix": "x", "system": "y"}, NO_SYSTEM),
    ({"template": "{{ .Prompt }}"}, 'template: "{{ .Prompt }}" is not supported: the model\'s own is used'),
    ({"images": ["YWJj"]}, 'images: ["YWJj"] is not supported: this model takes text'),
    ({"steps": 4}, "steps: 4 is not supported: this model makes text"),
    ({"context": [1 << 20]}, "token 1048576 is not in the vocabulary (allowed: 0 to 1023)"),
])
def test_what_is_wrong_with_a_text(server: Server, body: dict[str, Any], message: str) -> None:
    assert wrong(server, "/api/generate", prompt="x", **body) == (400, message)


def test_requests_that_say_nothing_load(server: Server) -> None:
    found = server.post("/api/chat", model="demo", messages=[], keep_alive="10m")
    assert (found["message"]["content"], found["done"], found["done_reason"]) == ("", True, "load")
    found = server.post("/api/generate", model="demo", keep_alive=0)
    assert (found["response"], found["done_reason"]) == ("", "load"), "the only model stays"


def test_forms(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    found = server.post("/api/chat", messages=ASK, format=schema, options=GREEDY, stream=False)
    assert isinstance(json.loads(found["message"]["content"])["a"], int)
    raw = server.post("/api/generate", prompt="x", raw=True, format=schema, options={"num_predict": 30}, stream=False)
    assert raw["response"].lstrip()[0] == "{"
    plain = server.post("/api/chat", messages=ASK, format="", options=GREEDY, stream=False)
    assert plain["message"]["content"][0] != "{"


def test_calls_come_whole(model: Model) -> None:
    said = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call><tool_call>{"name": "now"}'
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({"messages": ASK, "tools": TOOLS}, "/api/chat"))
        (one,) = played.asked().ids
        first, *rest = model.tokenizer.encode(said, add_special=False)
        played.say(begun(one, first))
        played.say(*(EngineOutput(one, token) for token in rest), EngineOutput(one, model.tokenizer.eos_id, "stop"))
        data = b""
        with closing(Reader(sock)) as reader:
            reader.head()
            while chunk := reader.chunk():
                data += chunk
    *_, last = found = [json.loads(line) for line in data.splitlines()]
    calls = [call for one in found for call in one["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [
        {"index": 0, "name": "weather", "arguments": {"city": "Köln"}}, {"index": 1, "name": "now", "arguments": {}},
    ]
    assert calls[0]["id"] != calls[1]["id"]
    assert (last["done"], last["done_reason"]) == (True, "stop")


def test_a_call_that_is_cut_is_none(model: Model) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({"messages": ASK, "tools": TOOLS}, "/api/chat"))
        (one,) = played.asked().ids
        first, *rest = model.tokenizer.encode('<tool_call>{"name": "weather", "arguments": {"ci', add_special=False)
        played.say(begun(one, first))
        played.say(*(EngineOutput(one, token) for token in rest[:-1]), EngineOutput(one, rest[-1], "length"))
        data = b""
        with closing(Reader(sock)) as reader:
            reader.head()
            while chunk := reader.chunk():
                data += chunk
    (last,) = map(json.loads, data.splitlines())
    assert (last["message"], last["done_reason"]) == ({"role": "assistant", "content": ""}, "length")


def test_results_of_calls_are_theirs() -> None:
    """Clients leave out ids, or have those of the server."""
    call = {"function": {"name": "weather", "arguments": {"city": "a"}}}
    now = {"function": {"name": "now", "arguments": {}}}
    body = OllamaChatRequest.model_validate({"messages": [
        *ASK, {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call, now, {**call, "id": "mine"}]},
        {"role": "tool", "content": "noon", "tool_name": "now"}, {"role": "tool", "content": "sun"},
        {"role": "tool", "content": "rain", "tool_call_id": "mine"},
        {"role": "assistant", "tool_calls": [now]}, {"role": "tool", "content": "one"},
    ], "tools": [{"function": {"name": "weather", "parameters": PARAMETERS}}]})
    made = chat_request(body).messages
    assert made[1].reasoning_content == "hm"
    assert [call.id for message in made for call in message.tool_calls or ()] == ["call_1", "call_2", "mine", "call_4"]
    assert [(one.tool_call_id, one.name) for one in made if one.role == "tool"] == [
        ("call_2", "now"), ("call_1", "weather"), ("mine", "weather"), ("call_4", "now"),
    ]


def test_thinking_comes_apart(model: Model) -> None:
    template = "{{ messages[0].content }}{% if enable_thinking %}<think>{% else %}</think>{% endif %}"
    with running_model(model, template_text=template) as server:
        body = {"messages": ASK, "options": {**GREEDY, "num_predict": 4}, "stream": False}
        thinks = server.post("/api/chat", think=True, **body)["message"]
        assert thinks["thinking"]
        assert thinks["content"] == ""
        assert server.post("/api/chat", think="low", **body)["message"] == thinks
        assert server.post("/api/chat", **body)["message"] == thinks, "as models do that can"
        plain = server.post("/api/chat", think=False, **body)["message"]
        assert plain["content"]
        assert "thinking" not in plain
        pieces = lines(server, "/api/generate", prompt=ASK[0]["content"], options=body["options"])
        assert "".join(one.get("thinking", "") for one in pieces).strip() == thinks["thinking"]
        assert "thinking" in server.post("/api/show", model="demo")["capabilities"]


def test_how_likely_tokens_are(server: Server) -> None:
    body: dict[str, Any] = {"options": {**GREEDY, "num_predict": 5}, "logprobs": True, "top_logprobs": 2}
    pieces = lines(server, "/api/chat", messages=ASK, **body)
    told = [row for one in pieces for row in one.get("logprobs", ())]
    want = server.chat(ASK[0]["content"], temperature=0, max_tokens=5, logprobs=True, top_logprobs=2)
    assert told == want["choices"][0]["logprobs"]["content"]
    assert server.post("/api/chat", messages=ASK, stream=False, **body)["logprobs"] == told
    raw = server.post("/api/generate", prompt="12", raw=True, stream=False, **body)["logprobs"]
    assert len(raw) == 5
    assert len(raw[0]["top_logprobs"]) == 2


def test_vectors(model: Model) -> None:
    with running_model(model, embeddings=True) as server:
        openais = server.post("/v1/embeddings", input=["a cat", "a dog"])
        want = [one["embedding"] for one in openais["data"]]
        found = server.post("/api/embed", model="demo", input=["a cat", "a dog"])
        np.testing.assert_allclose(found["embeddings"], want, atol=1e-6)
        assert found["prompt_eval_count"] == openais["usage"]["prompt_tokens"]
        (short,) = server.post("/api/embed", input="a cat", dimensions=8, options={"num_ctx": 99})["embeddings"]
        np.testing.assert_allclose(short, np.array(want[0][:8]) / np.linalg.norm(want[0][:8]), atol=1e-6)
        assert server.post("/api/embed", input=[])["embeddings"] == []
        older = np.array(server.post("/api/embeddings", prompt="a cat")["embedding"])
        np.testing.assert_allclose(older / np.linalg.norm(older), want[0], atol=1e-6)
        assert not math.isclose(np.linalg.norm(older), 1)
        long = "a cat " * 2000
        cut = server.post("/api/embed", input=long)
        assert cut["prompt_eval_count"] == server.service.info.n_ctx
        status, error = wrong(server, "/api/embed", input=long, truncate=False)
        assert (status, "maximum context length" in error) == (400, True)


def test_what_is_told_of_the_model(server: Server) -> None:
    (row,) = server.get("/api/tags")["models"]
    assert (row["name"], row["model"], row["size"]) == ("demo:latest", "demo:latest", server.service.info.nbytes)
    assert row["details"] == {
        "parent_model": "", "format": "gguf", "family": "qwen3", "families": ["qwen3"], "parameter_size": "7.5M",
        "quantization_level": "F16",
    }
    assert len(bytes.fromhex(row["digest"])) == 32
    (loaded,) = server.get("/api/ps")["models"]
    assert (loaded["digest"], loaded["context_length"], loaded["size_vram"]) == (
        row["digest"], server.service.info.n_ctx, 0)
    shown = server.post("/api/show", model="demo")
    assert (shown["capabilities"], shown["details"]) == (["completion", "tools"], row["details"])
    assert shown["template"] == server.service.template.source
    info = shown["model_info"]
    assert (info["general.architecture"], info["qwen3.block_count"] > 0) == ("qwen3", True)
    assert (info["tokenizer.ggml.tokens"], info["general.parameter_count"]) == ([], server.service.info.n_params)
    everything = server.post("/api/show", name="demo", verbose=True)["model_info"]
    assert len(everything["tokenizer.ggml.tokens"]) == server.service.info.n_vocab
    assert "num_ctx" in shown["parameters"]
    assert server.get("/api/version")["version"].count(".") == 2
    assert wrong(server, "/api/pull", model="org/model")[0] == 400


def test_names_of_a_strict_server(model: Model) -> None:
    with running_model(model, strict_model=True) as server:
        for name in ("demo", "demo:latest"):
            assert server.post("/api/chat", model=name)["done_reason"] == "load"
        assert wrong(server, "/api/chat", model="llama3.2", messages=ASK) == (
            404, "model not found: unknown model 'llama3.2': this server has demo")


def test_the_root_is_a_page_for_browsers_alone(server: Server) -> None:
    assert server.send("GET", "/", headers={"Accept": "text/html,*/*"})[1]["content-type"].startswith("text/html")
    status, _, body = server.send("GET", "/", headers={"Accept": "*/*"})
    assert (status, body) == (200, b"Ollama is running")
    for path in ("/", "/api/version", "/api/tags"):
        assert (server.send("HEAD", path)[0], server.send("HEAD", path)[2]) == (200, b"")


def test_spaces_while_nothing_comes(model: Model) -> None:
    with playing(model, ping=0.1) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({"messages": ASK}, "/api/chat"))
        (one,) = played.asked().ids
        with closing(Reader(sock)) as reader:
            assert b"application/x-ndjson" in reader.head()
            assert reader.chunk() == reader.chunk() == b" "
            played.say(begun(one, 16))
            data = b" "
            while data.isspace():
                data = reader.chunk()
            assert json.loads(data)["message"]["content"] == model.tokenizer.decode([16])
            played.die()
            while not data.strip().endswith(b"}") or b"error" not in data:
                data = reader.chunk()
            assert "killed" in json.loads(data)["error"]


@pytest.mark.parametrize(("text", "want"), [
    ("5m", 300), ("1h30m", 5400), ("300ms", 0.3), ("1.5h", 5400), ("-1", math.inf), ("-1m", math.inf), ("0", 0), (0, 0),
    (-1, math.inf), (2.5, 2.5), ("90", 90), (1e300, math.inf),
])
def test_durations(text: float | str, want: float) -> None:
    assert seconds(text) == pytest.approx(want)


@pytest.mark.parametrize("text", ["", "m", "5 m", "5x", "1h-30m", "soon"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)
