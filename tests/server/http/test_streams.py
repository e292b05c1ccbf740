"""Streams on the wire: pieces as they come, comments, and errors."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import closing
from threading import Barrier, get_ident
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from octavo.runtime import Model
from octavo.server.engine.client import NO_STATS
from octavo.server.engine.engine_protocol import EngineOutput, StepOutputs
from octavo.server.engine.fake import INFO, FakeClient
from tests.limits import HANG_S
from tests.server.live_server import events, running
from tests.server.scripted_engine import BODY, CHAT, Reader, begun, playing, request, until


def test_each_step_is_a_chunk_that_comes_at_once(model: Model) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, "stream": True, "n": 2}))
        first, second = played.asked().ids
        reader = Reader(sock)
        played.say(begun(first, 16), begun(second, 17))
        assert reader.head().startswith(b"HTTP/1.1 200 ")
        found = events(reader.chunk())
        assert [e["choices"][0]["delta"] for e in found] == [
            {"role": "assistant", "content": ""}, {"role": "assistant", "content": ""},
            {"content": model.tokenizer.decode([16])}, {"content": model.tokenizer.decode([17])},
        ]
        played.say(EngineOutput(first, 18), EngineOutput(second, 19, "length"))
        found = events(reader.chunk())
        assert [e["choices"][0]["index"] for e in found] == [0, 1, 1]
        played.say(EngineOutput(first, 18, "length"))
        assert [e["choices"][0]["finish_reason"] for e in events(reader.chunk())] == [None, "length"]
        assert reader.chunk() == b"data: [DONE]\n\n"
        assert reader.chunk() == b""


def test_characters_are_never_cut(model: Model) -> None:
    tokens = model.tokenizer.encode("🦀 漢字", add_special=False)
    assert len(tokens) > len("🦀 漢字")
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, "stream": True}))
        (one,) = played.asked().ids
        reader, last = Reader(sock), tokens.pop()
        more = [EngineOutput(one, token) for token in tokens[1:]]
        played.say(begun(one, tokens[0]), *more, EngineOutput(one, last, "length"))
        reader.head()
        data = b""
        while chunk := reader.chunk():
            data += chunk
        pieces = [e["choices"][0]["delta"].get("content", "") for e in events(data)[:-1]]
        assert "".join(pieces) == "🦀 漢字"
        assert "🦀".encode() in data  # as it is, not as an escape


def test_comments_while_nothing_comes(model: Model) -> None:
    with playing(model, ping=0.1) as played:
        client = openai.OpenAI(base_url=f"{played.server.url}/v1", api_key="none", max_retries=0)
        with closing(played.server.connect()) as sock:
            sock.sendall(request({**BODY, "stream": True}))
            played.asked()
            reader = Reader(sock)
            assert reader.head().startswith(b"HTTP/1.1 200 ")
            assert events(reader.chunk())[0]["choices"][0]["delta"]["role"] == "assistant"
            assert reader.chunk() == reader.chunk() == b": ping\n\n"
        stream = client.chat.completions.create(model="x", stream=True, **BODY)
        (one,) = played.asked(2).ids
        time.sleep(0.3)
        played.say(begun(one, 16))
        time.sleep(0.3)
        played.say(EngineOutput(one, 17, "length"))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == model.tokenizer.decode([16, 17])


def test_errors_before_and_after_the_first_token(model: Model) -> None:
    with playing(model) as played:
        with closing(played.server.connect()) as sock:
            sock.sendall(request({**BODY, "stream": True}))
            (one,) = played.asked().ids
            played.say(EngineOutput(one, None, "error", error=("NonFiniteError", "NaN among the logits")))
            head = Reader(sock).head().lower()
        assert head.startswith(b"http/1.1 500 ")
        assert b"x-should-retry: false" in head
        with closing(played.server.connect()) as sock:
            sock.sendall(request({**BODY, "stream": True}))
            (one,) = played.asked(2).ids
            played.say(begun(one))
            reader = Reader(sock)
            reader.head()
            reader.chunk()
            played.say(EngineOutput(one, None, "error", error=("NonFiniteError", "NaN among the logits")))
            (error,) = events(reader.chunk())
            assert error["error"]["message"] == "NaN among the logits"
            assert reader.chunk() == b""


def test_openais_client_raises_what_a_stream_says(model: Model) -> None:
    with playing(model) as played:
        client = openai.OpenAI(base_url=f"{played.server.url}/v1", api_key="none", max_retries=0)
        answer = played.answering(begun(1), EngineOutput(1, None, "error", error=("UsageError", "no such thing")))
        with pytest.raises(openai.APIError, match="no such thing"):
            list(client.chat.completions.create(model="x", stream=True, **BODY))
        answer.join()


def test_an_engine_that_dies_ends_streams_and_requests(model: Model) -> None:
    with playing(model) as played, closing(played.server.connect()) as one, closing(played.server.connect()) as two:
        one.sendall(request({**BODY, "stream": True}))
        played.say(begun(played.asked().ids[0]))
        reader = Reader(one)
        reader.head()
        reader.chunk()
        two.sendall(request(BODY))
        played.asked(2)
        played.die()
        (error,) = events(reader.chunk())
        assert (error["error"]["type"], error["error"]["code"]) == ("unavailable_error", "engine_ended")
        head = Reader(two).head().lower()
        assert head.startswith(b"http/1.1 503 ")
        assert b"retry-after: 1" in head
        assert played.server.send("GET", "/health")[0] == 503
        assert played.server.send("POST", CHAT, BODY)[0] == 503


def test_a_stop_string_cancels_its_reply_alone(model: Model) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, "n": 2, "stop": "4"}))
        first, second = played.asked().ids
        (four,) = model.tokenizer.encode("4", add_special=False)
        played.say(begun(first, four), begun(second, 16))
        until(lambda: played.cancelled() == {first})
        played.say(EngineOutput(second, 17, "stop"))
        reader = Reader(sock)
        size = int(reader.head().lower().partition(b"content-length: ")[2].split(b"\r")[0])
        choices = json.loads(reader.file.read(size))["choices"]
        assert [choice["message"]["content"] for choice in choices] == ["", model.tokenizer.decode([16, 17])]
        assert [choice["finish_reason"] for choice in choices] == ["stop", "stop"]


def test_long_texts_have_two_threads(model: Model) -> None:
    async def threads() -> set[int]:
        two = Barrier(2)

        def ident() -> int:
            two.wait(HANG_S)  # nobody goes on alone
            return get_ident()

        return set(await asyncio.gather(*(asyncio.to_thread(ident) for _ in range(8))))

    with running(FakeClient(), model) as server:
        assert len(asyncio.run_coroutine_threadsafe(threads(), server.loop).result(HANG_S)) == 2


def test_steps_that_come_together_are_one_chunk(model: Model) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, "stream": True}))
        (one,) = played.asked().ids

        def three() -> None:
            for row in (begun(one, 16), EngineOutput(one, 17), EngineOutput(one, 18, "length")):
                played.fake.deliver(StepOutputs([row], NO_STATS, 0.01))

        played.server.loop.call_soon_threadsafe(three)
        reader = Reader(sock)
        reader.head()
        found = [e["choices"][0] for e in events(reader.chunk())]
        assert "".join(c["delta"].get("content", "") for c in found) == model.tokenizer.decode([16, 17, 18])
        assert found[-1]["finish_reason"] == "length"


@pytest.mark.slow
def test_litellm_ignores_comments(model: Model, litellm: Any) -> None:
    with playing(model, ping=0.1) as played:
        answer = played.answering(begun(1, 16), EngineOutput(1, 17, "length"))
        stream = litellm.completion(
            model="openai/demo", api_base=f"{played.server.url}/v1", api_key="none", stream=True, **BODY
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == model.tokenizer.decode([16, 17])
        answer.join()


def test_a_fake_reply_ends_with_the_context(model: Model) -> None:
    with running(FakeClient([300], info=replace(INFO, n_ctx=16)), model) as server:
        said = server.post("/v1/completions", prompt=[5, 6, 7], max_tokens=1_000_000_000)
    assert (said["usage"]["completion_tokens"], said["choices"][0]["finish_reason"]) == (13, "length")
