"""Whose turn it is, and for how long: priority, keys and their shares, and the time that a reply may take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from octavo.cli.serve.options import Access, _keys
from octavo.errors import UsageError
from octavo.runtime import Model
from octavo.server.engine.engine_protocol import Add
from octavo.server.engine.fake import INFO, FakeClient
from octavo.server.serve_options import KeyShare, Limits
from tests.server.live_server import Server, events, running
from tests.server.routes.test_metrics import counts
from tests.server.scripted_engine import until

KEYS = ("first-secret", "second-secret")
ASK: list[Any] = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK}, "/v1/completions": {"prompt": "x"}, "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": ASK, "max_tokens": 1000}, "/completion": {"prompt": "x"},
}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def asked(model: Model) -> Iterator[tuple[Server, FakeClient]]:
    """A server with two keys, and an engine that takes one reply at a time and gives none."""
    client = FakeClient(info=replace(INFO, max_sequences=1))
    shares = {KEYS[1]: KeyShare("guest", 0.5)}
    with running(client, model, keys=KEYS, shares=shares, limits=Limits(queue=5, drain_time=0)) as server:
        yield server, client


def send(server: Server, key: str, **more: Any) -> Any:
    """A request whose reply nobody reads."""
    body = json.dumps({"prompt": "x", "stream": True, **more}).encode()
    sock = server.connect()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    sock.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return sock


def test_the_engine_is_told_of_turns(asked: tuple[Server, FakeClient]) -> None:
    server, client = asked
    socks = [send(server, KEYS[0], priority=7), send(server, KEYS[1], priority=-7, max_time=2.5, t_max_predict_ms=1500)]
    until(lambda: len(client.sent) == 2)
    found = {add.key: add for add in client.sent if isinstance(add, Add)}
    first, second = found["key-1"], found["guest"]
    assert (first.priority, first.weight, first.max_time, first.predict_time) == (7, 1.0, None, None)
    assert (second.weight, second.max_time, second.predict_time) == (0.5, 2.5, 1.5)
    assert second.priority == 0, "no key goes before another by a number of its own"
    for sock in socks:
        sock.close()


def test_a_queue_that_one_key_fills_has_room_for_another(asked: tuple[Server, FakeClient]) -> None:
    server, client = asked
    socks = [send(server, KEYS[0]) for _ in range(6)]
    until(lambda: len(client.sent) == 6)
    status, error = server.refused("/v1/completions", {"prompt": "x"}, **bearer(KEYS[0]))
    assert (status, error["code"]) == (429, "queue_full")
    socks += [send(server, KEYS[1]) for _ in range(2)]
    until(lambda: len(client.sent) == 8)
    status, _ = server.refused("/v1/completions", {"prompt": "x"}, **bearer(KEYS[1]))
    assert status == 429, "more than a third of six places, by its weight"
    text = server.send("GET", "/metrics", headers=bearer(KEYS[0]))[2].decode()
    assert 'octavo:key_requests_refused_total{key="key-1"} 1.0' in text
    assert 'octavo:key_requests_refused_total{key="guest"} 1.0' in text
    assert not any(key in text for key in KEYS)
    for sock in socks:
        sock.close()
    until(lambda: server.service.metrics.replies == 0)
    assert not any(server.service._taken.values())
    assert not any(server.service._taken_tokens.values())


def test_what_was_done_for_a_key_is_counted(model: Model) -> None:
    with running(FakeClient([300, 301]), model, keys=KEYS) as server:
        status, _, _ = server.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 5}, bearer(KEYS[1]))
        assert status == 200
        text = server.send("GET", "/metrics", headers=bearer(KEYS[0]))[2].decode()
    for name in ("key_requests_total", "key_time_to_first_token_seconds_count"):
        assert f'octavo:{name}{{key="key-2"}} 1.0' in text
    assert 'octavo:key_generation_tokens_total{key="key-2"} 5.0' in text
    assert 'key="key-1"' not in text


def test_without_several_keys_there_are_no_counts_of_them(server: Server) -> None:
    server.chat("x", max_tokens=1)
    assert not [name for name in counts(server) if "octavo:key_" in name]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("name", "value", "allowed"), [
    ("priority", 0.5, "integer"), ("priority", 1 << 40, "2147483648"), ("max_time", 0, "0"),
    ("max_time", "1", "number"), ("t_max_predict_ms", 1.5, "integer"),
])
def test_wrong_values_are_refused_by_name(server: Server, path: str, name: str, value: Any, allowed: str) -> None:
    status, error = server.refused(path, {**BODIES[path], name: value})
    assert status == 400
    assert name in error["message"]
    assert allowed in error["message"]


@pytest.mark.parametrize("path", BODIES)
def test_a_reply_ends_when_its_time_is_up(server: Server, path: str) -> None:
    body = {**BODIES[path], "ignore_eos": True, "max_time": 0.05, "seed": 1}
    if path == "/v1/completions":
        body["max_tokens"] = -1
    answer = server.post(path, **body)
    first = (answer.get("choices") or [answer])[0]
    how = {"/v1/responses": ("incomplete_details", {"reason": "max_output_tokens"}),
           "/v1/messages": ("stop_reason", "max_tokens"), "/completion": ("stop_type", "limit")}
    name, value = how.get(path, ("finish_reason", "length"))
    assert first[name] == value
    if path in ("/v1/chat/completions", "/v1/completions", "/completion"):
        assert first["stop_reason"] == "time"


def test_a_stream_says_that_time_was_up_in_its_last_piece_alone(server: Server) -> None:
    for path, more in (("/v1/chat/completions", {}), ("/v1/completions", {"max_tokens": -1})):
        body = {**BODIES[path], "ignore_eos": True, "max_time": 0.05, "stream": True, **more}
        *pieces, last, done = events(server.send("POST", path, body)[2])
        assert done == "[DONE]"
        assert last["choices"][0]["finish_reason"] == "length"
        assert last["choices"][0]["stop_reason"] == "time"
        assert not any("stop_reason" in one["choices"][0] for one in pieces)


def test_the_time_of_prediction_counts_once_there_is_a_line_end(server: Server) -> None:
    """As llama-server has it, and from the first token."""
    (newline,) = server.post("/tokenize", content="\n")["tokens"]
    common = {"prompt": "x", "n_predict": 200, "ignore_eos": True, "temperature": 0, "t_max_predict_ms": 1}
    ended = server.post("/completion", **common, logit_bias=[[newline, 100]])
    assert (ended["stop_type"], ended["stop_reason"]) == ("limit", "time")
    assert ended["tokens_predicted"] < 200
    never = server.post("/completion", **common, logit_bias=[[newline, False]])
    assert "\n" not in never["content"]
    assert (never["tokens_predicted"], "stop_reason" in never) == (200, False)


def test_names_and_weights_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# the household\nabc name=anna weight=2.5\n\n  def\nghi weight=3\n")
    keys, shares = _keys(Access(key=["zero"], key_file=str(path)))
    assert keys == ("zero", "abc", "def", "ghi")
    assert shares == {"abc": KeyShare("anna", 2.5), "def": KeyShare("key-3"), "ghi": KeyShare("key-4", 3.0)}


@pytest.mark.parametrize(("text", "wrong"), [
    *((f"s3cret {word}", "behind key 1") for word in ("name=", "weight=0", "weight=nan", "other", "weight=-1")),
    ("a\ns3cret name=a/b", "behind key 2"), ("name=x s3cret", "behind key 1"),
    ("# none\n", "no key"), ("a name=x\nb name=x", "'x'"),
])
def test_lines_that_are_wrong(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        _keys(Access(key_file=str(path)))
    assert wrong in str(error.value)
    assert "s3cret" not in str(error.value)
