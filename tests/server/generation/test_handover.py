"""A reply goes on from any of its tokens, in another server's hands, in the very bytes that it would have had."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from octavo.runtime import Model
from octavo.server.generation.handover import COMPLETE, HEADER, LOST
from tests.server.calls import TOOLS
from tests.server.live_server import Server, running_model
from tests.server.scripted_engine import BODY, begun, playing

SECRET = "between-us"
TELLS = re.compile(rb": octavo (\[.*\])\n\n")
CHOICE = re.compile(rb'"choices":\[\{"index":(\d+)')
TIMES = re.compile(rb'"timings":\{[^}]*\}|"(?:total|prompt_eval|eval)_duration":\d+')
ASK = [{"role": "user", "content": "What is 12 times 7?"}]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}, "words": {"type": "string"}},
          "required": ["answer", "words"], "additionalProperties": False}
ANY = {"temperature": 1.5, "max_tokens": 12, "ignore_eos": True}
WILD = {"temperature": 5, "min_p": 0, "top_p": 1, "num_predict": 12}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("/v1/chat/completions", {"messages": ASK, "temperature": 0, "stream_options": {"include_usage": True}}),
    "random": ("/v1/chat/completions", {"messages": ASK, **ANY}),
    "likely": ("/v1/chat/completions", {"messages": ASK, **ANY, "logprobs": True, "top_logprobs": 2, "n": 3}),
    "penalties": ("/v1/chat/completions", {"messages": ASK, **ANY, "presence_penalty": 1.5, "repeat_penalty": 1.3}),
    "stop": ("/v1/chat/completions", {"messages": ASK, "n": 2, "stop": ["8", "4"], **ANY}),
    "schema": ("/v1/chat/completions", {
        "messages": ASK, **ANY, "max_tokens": 30,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
    }),
    "call": ("/v1/chat/completions", {
        "messages": ASK, "tools": TOOLS, "tool_choice": "required", "temperature": 1.5, "max_tokens": 60,
    }),
    "texts": ("/v1/completions", {"prompt": ["a red", "12 times"], "n": 2, "echo": True, "logprobs": 2, **ANY}),
    "native": ("/completion", {"prompt": "12 times 7", "n_predict": 12, "temperature": 1.5, "n_probs": 2}),
    "message": ("/v1/messages", {"messages": ASK, "max_tokens": 40, "tools": [
        {"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}], "tool_choice": {"type": "any"}}),
    "ollama": ("/api/chat", {"messages": ASK, "options": WILD, "logprobs": True}),
    "generate": ("/api/generate", {"prompt": "What is 12 times 7?", "options": WILD}),
    "response": ("/v1/responses", {"input": "What is 12 times 7?", "temperature": 1.5, "max_output_tokens": 12}),
}


@pytest.fixture(scope="module")
def known(model: Model) -> Iterator[Server]:
    with running_model(model, secret=SECRET) as found:
        yield found


def asked(server: Server, path: str, body: dict[str, Any], **handover: Any) -> tuple[int, bytes]:
    """What a front gets."""
    data = json.dumps({"chance": 7, "created": 1_700_000_000, **handover}).encode()
    headers = {HEADER.decode(): f"{SECRET} {len(data)}", "Content-Type": "application/json"}
    status, _, answer = server.send("POST", path, data + json.dumps(body).encode(), headers)
    return status, TIMES.sub(b"", answer)


def by_choice(stream: bytes) -> bytes:
    """The events of each choice after those of the one before: in which order choices take turns depends on time."""
    return b"\n\n".join(sorted(stream.split(b"\n\n"), key=_choice))


def _choice(event: bytes) -> int:
    """The number of an event's choice; events of none come last."""
    found = CHOICE.search(event)
    return int(found[1]) if found else 1 << 20


def pieces(stream: bytes) -> tuple[list[bytes], list[Any]]:
    """Of each piece what a client gets, and what the front is told; the last piece tells that it is the last."""
    assert stream.endswith(COMPLETE)
    *parts, last = TELLS.split(stream.removesuffix(COMPLETE))
    return [*parts[::2], last], [json.loads(one) for one in parts[1::2]]


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", REQUESTS)
def test_a_stream_goes_on_from_any_of_its_pieces(known: Server, kind: str) -> None:
    path, body = REQUESTS[kind]
    body = {**body, "stream": True}
    status, stream = asked(known, path, body)
    assert status == 200
    status, stream = asked(known, path, body)  # now the prompt is in the cache
    shown, told = pieces(stream)
    again = b"".join(pieces(asked(known, path, body)[1])[0])
    assert by_choice(again) == by_choice(b"".join(shown)), "it can be asked for again"
    assert len(told) > 1
    for at in range(1, len(told) + 1, max(1, len(told) // 6)):
        status, rest = asked(known, path, body, begun=True, pieces=told[:at])
        assert status == 200
        assert by_choice(b"".join(pieces(rest)[0])) == by_choice(b"".join(shown[at:])), at
    status, rest = asked(known, path, body, begun=True, pieces=told)
    assert pieces(rest)[0] == [shown[-1]], "all was there but for the end"


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_answer_that_is_not_a_stream_is_the_same_when_it_is_asked_for_again(known: Server, kind: str) -> None:
    path, body = REQUESTS[kind]
    body = {name: value for name, value in body.items() if name != "stream_options"} | {"stream": False}
    asked(known, path, body)  # now the prompt is in the cache
    status, answer = asked(known, path, body)
    assert (status, answer) == asked(known, path, body)
    assert status == 200
    if (body.get("options") or body).get("temperature"):
        assert asked(known, path, body, chance=8) != (status, answer)


def test_who_sends_no_handover_is_told_nothing(known: Server, server: Server) -> None:
    body = {**BODY, "stream": True}
    for one, secret in ((known, SECRET), (server, SECRET), (server, "a guess"), (server, "")):
        status, _, answer = one.send("POST", "/v1/chat/completions", body, {HEADER.decode(): f"{secret} 0"})
        assert status == 200
        assert b"octavo " not in answer


@pytest.mark.parametrize("header", ["a guess 0", " 0", "", SECRET, f"{SECRET} -1"])
def test_a_replica_answers_its_front_only(known: Server, header: str) -> None:
    sent = {HEADER.decode(): header}
    for path in ("/health", "/metrics", "/v1/models", "/"):
        status, _, answer = known.send("GET", path, headers=sent)
        assert (status, b"answers its front only" in answer) == (403, True), path
    assert known.refused("/v1/chat/completions", BODY, **sent)[0] == 403
    assert known.get("/health") == {"status": "ok"}, "with the secret"


def test_an_engine_that_dies_is_told_to_the_front_alone(model: Model) -> None:
    with playing(model, secret=SECRET) as played:
        body = {**BODY, "stream": True}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(asked, played.server, "/v1/chat/completions", body)
            played.say(begun(played.asked().ids[0]))
            played.die()
            status, stream = answer.result()
        assert status == 200
        assert stream.endswith(LOST)
        assert b"error" not in stream
