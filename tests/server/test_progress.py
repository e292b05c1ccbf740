"""How far a long prompt is read, as streams of llama-server tell it, and how likely tokens are after sampling."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import octavo
from octavo.runtime import Model
from octavo.server.engine.engine_protocol import EngineOutput, Prefill
from tests.server.live_server import Server, events, running_model
from tests.server.scripted_engine import playing, request

LONG = "the quick brown fox jumps over the lazy dog " * 30
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 3},
    "/v1/completions": {"prompt": LONG, "max_tokens": 3}, "/completion": {"prompt": LONG, "n_predict": 3},
    "/v1/responses": {"input": LONG, "max_output_tokens": 3},
}


@pytest.fixture(scope="module")
def slow() -> Any:
    """A server whose steps read few tokens of a prompt."""
    with octavo.load("demo", max_sequences=2, device="cpu") as model:
        model.engine.config = replace(model.engine.config, n_batch=64)
        with running_model(model) as server:
            yield server


def chunks(server: Server, path: str, **more: Any) -> list[Any]:
    body = {**BODIES[path], "stream": True, "temperature": 0, "cache_salt": path, **more}
    _, _, answer = server.send("POST", path, body)
    lines = [line for line in answer.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.few(2)
@pytest.mark.parametrize("path", BODIES)
def test_a_prompt_that_is_read_in_pieces(slow: Server, path: str) -> None:
    assert all("prompt_progress" not in one and "timings" not in one for one in chunks(slow, path, cache_salt="a")[:-1])
    found = chunks(slow, path, return_progress=True, timings_per_token=True)
    told = [one for one in found if "prompt_progress" in one]
    progress = [one["prompt_progress"] for one in told]
    assert len(progress) > 3
    assert all(one.keys() == {"total", "cache", "processed", "time_ms"} for one in progress)
    assert len({(one["total"], one["cache"]) for one in progress}) == 1
    assert progress[0]["processed"] == progress[0]["cache"] == 0
    assert progress[-1]["processed"] == progress[-1]["total"] > 250
    assert all(a["processed"] < b["processed"] and a["time_ms"] <= b["time_ms"] for a, b in pairwise(progress))
    first, last = told[0]["timings"], told[-1]["timings"]
    assert (first["prompt_n"], first["prompt_ms"], first["predicted_n"]) == (0, 0, 0)
    assert last["prompt_n"] == progress[-1]["total"]
    assert last["prompt_ms"] > 0
    assert found.index(told[-1]) == found.index(told[0]) + len(told) - 1, "before all else"
    assert sum("timings" in one for one in found) > len(told), "of tokens, which may come together"
    again = [one["prompt_progress"] for one in chunks(slow, path, return_progress=True) if "prompt_progress" in one]
    assert [one["processed"] for one in again] == [progress[-1]["total"] - 1, progress[-1]["total"]]
    assert {one["cache"] for one in again} == {progress[-1]["total"] - 1}


def test_no_progress_without_a_stream(slow: Server) -> None:
    body = BODIES["/v1/completions"]
    assert "prompt_progress" not in slow.post("/v1/completions", **body, return_progress=True)


def test_progress_is_told_at_once(model: Model) -> None:
    """Before a token is there."""
    with playing(model) as played:
        body = {"prompt": [16] * 90, "stream": True, "return_progress": True}
        with played.server.connect() as sock:
            sock.sendall(request(body, "/completion"))
            (one,) = played.asked().ids
            played.say(EngineOutput(one, None, prefill=Prefill(10, 50, 0.25)))
            data = b""
            while b"prompt_progress" not in data:
                data += sock.recv(1 << 16)
            assert b'"prompt_progress":{"total":90,"cache":10,"processed":50,"time_ms":250}' in data
            played.say(EngineOutput(one, 300, "length", prefill=Prefill(10, 100, 0.5)))


def test_probabilities_after_sampling(server: Server) -> None:
    body = {"prompt": "12 times 7 is", "n_predict": 4, "n_probs": 5, "seed": 3, "post_sampling_probs": True}
    settings: dict[str, Any] = {"temperature": 2.0, "top_k": 3, "top_p": 1.0, "min_p": 0.0}
    tokens = server.post("/completion", **body, **settings)["completion_probabilities"]
    assert len(tokens) == 4
    for token in tokens:
        likely = [one["prob"] for one in token["top_probs"]]
        assert len(likely) == 3, "no more than top_k leaves"
        assert sum(likely) == pytest.approx(1)
        assert likely == sorted(likely, reverse=True)
        assert "logprob" not in token
        assert token["prob"] == pytest.approx({one["id"]: one["prob"] for one in token["top_probs"]}[token["id"]])
    plain = {**body, "post_sampling_probs": False, **settings}
    before = server.post("/completion", **plain)["completion_probabilities"]
    assert [one["id"] for one in before] == [one["id"] for one in tokens], "it changes no token"
    for a, b in zip(before, tokens, strict=True):  # at twice the temperature logits are half as far apart
        told = {one["id"]: one["logprob"] for one in a["top_logprobs"]}
        first, second = (one["id"] for one in b["top_probs"][:2])
        ratio = b["top_probs"][0]["prob"] / b["top_probs"][1]["prob"]
        assert ratio**2 == pytest.approx(math.exp(told[first] - told[second]), rel=1e-3)


def test_probabilities_of_one_token_that_is_left(server: Server) -> None:
    body = {"prompt": "12 times 7 is", "n_predict": 3, "n_probs": 5, "temperature": 0, "post_sampling_probs": True}
    for token in server.post("/completion", **body)["completion_probabilities"]:
        assert (token["prob"], [one["prob"] for one in token["top_probs"]]) == (1, [1])
    streamed = events(server.send("POST", "/completion", {**body, "stream": True})[2])
    assert [token["prob"] for one in streamed for token in one.get("completion_probabilities", ())] == [1, 1, 1]
