"""Requests on their way through the front: to another replica where one refuses, ends or lies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from octavo.bench.serving.http import Address
from octavo.replicas import pool, relay
from octavo.replicas.front import Front
from octavo.replicas.relay import MOST_ENDS
from octavo.runtime import Model
from octavo.server.generation.handover import COMPLETE, LOST
from octavo.server.serve_options import ServerOptions
from tests.limits import HANG_S
from tests.replicas.live_front import OPTIONS, SECRET, fronting
from tests.replicas.requests import Asked, answer, chance_and_time, requests
from tests.replicas.scripted_replicas import Scripted, ScriptedLauncher, json_answer, scripted
from tests.server.live_server import Server, running_model
from tests.server.scripted_engine import Reader, request, until

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
def two() -> Iterator[tuple[Server, Front, list[Scripted]]]:
    """A front of two replicas that do what they are told."""
    with scripted(2) as replicas, fronting(ScriptedLauncher(replicas), 2) as (server, front):
        yield server, front, replicas


@pytest.fixture(scope="module")
def cutting(model: Model) -> Iterator[tuple[Server, list[Scripted]]]:
    """One of two replicas that pass requests on to a real server, whose responses may be cut."""
    with pytest.MonkeyPatch.context() as patch, running_model(model, secret=SECRET) as real, scripted(2) as replicas:
        patch.setattr(relay, "chance_and_time", chance_and_time)
        for one in replicas:
            one.server = real.port
        with fronting(ScriptedLauncher(replicas), 2) as (server, _):
            yield server, replicas


def told(server: Server, asked: Asked) -> tuple[int, bytes]:
    return asyncio.run(answer(Address("127.0.0.1", server.port), asked))


@pytest.mark.few(4)
@pytest.mark.parametrize("step", [7, pytest.param(61, marks=pytest.mark.slow)], ids=["seven", "sixty"])
@pytest.mark.parametrize("kind", range(11))
def test_a_response_that_is_cut_at_any_byte_is_whole(
    cutting: tuple[Server, list[Scripted]], kind: int, step: int
) -> None:
    server, replicas = cutting
    asked = requests(22, 16)[kind]
    told(server, asked)  # now the prompt is in the cache
    status, wanted = told(server, asked)
    assert status == 200
    size = int(1.5 * len(wanted)) + 400  # with what is for the front
    for at in range(1, size, max(1, size // step)):
        for one in replicas:
            one.cut, one.asked = at, []
        assert told(server, asked) == (200, wanted), at
        assert sum(len(one.asked) for one in replicas) in (1, 2, 3)


def test_a_client_sees_nothing_of_what_the_front_is_told(cutting: tuple[Server, list[Scripted]]) -> None:
    server, _ = cutting
    for asked in requests(11, 16):
        assert b"octavo " not in told(server, asked)[1]


def test_others_are_asked_where_a_replica_refuses(two: tuple[Server, Front, list[Scripted]]) -> None:
    server, _, replicas = two
    replicas[0].script = lambda data: json_answer(429, b'{"error":"full"}')
    replicas[1].script = lambda data: json_answer(200, b'{"whole":1}')
    assert all(server.send("POST", CHAT, BODY)[::2] == (200, b'{"whole":1}') for _ in range(3))
    replicas[1].script = replicas[0].script
    assert server.send("POST", CHAT, BODY)[::2] == (429, b'{"error":"full"}'), "once all refuse"


def test_what_is_about_to_be_there_again_is_waited_for(two: tuple[Server, Front, list[Scripted]]) -> None:
    server, _, replicas = two
    until_then = time.monotonic() + 0.5
    for one in replicas:
        one.script = lambda data: json_answer(503 if time.monotonic() < until_then else 200)
    assert server.send("POST", CHAT, BODY)[0] == 200


def test_a_request_that_ends_every_replica_ends_itself(two: tuple[Server, Front, list[Scripted]]) -> None:
    server, front, replicas = two
    for one in replicas:
        one.script = lambda data: None
    status, error = server.refused(CHAT, BODY)
    assert (status, error["code"]) == (503, "replicas_ended")
    assert sum(len(one.asked) for one in replicas) == MOST_ENDS
    assert front.metrics.moved == MOST_ENDS


def test_a_request_that_ends_every_replica_takes_no_other_along(two: tuple[Server, Front, list[Scripted]]) -> None:
    """Those that were under way beside it, and moved with it, are asked without it."""
    server, _, replicas = two
    for one in replicas:
        one.poison = b"poison"
    found = dict[int, tuple[int, bytes]]()

    def ask(number: int) -> None:
        said = {"messages": [{"role": "user", "content": "poison" if number == 3 else f"hello {number}"}]}
        found[number] = server.send("POST", CHAT, said)[::2]

    threads = [Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    status, body = found.pop(3)
    assert (status, json.loads(body)["error"]["code"]) == (503, "replicas_ended")
    assert json.loads(body)["error"]["message"].startswith("16 replicas ended while they computed this reply (")
    assert [*found.values()] == [(200, b"{}")] * 7
    assert sum(b"poison" in data for one in replicas for data in one.asked) == MOST_ENDS


ERRORS = {
    CHAT: b'data: {"error":{"message":"16 replicas ended', "/v1/completions": b'data: {"error":{"message":"16 replicas',
    "/completion": b'data: {"error":{"code":503,"message":"16 replicas',
    "/v1/messages": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"16 replicas',
    "/v1/responses": b'event: error\ndata: {"type":"error","code":"replicas_ended","message":"16 replicas',
}


@pytest.mark.parametrize("path", ERRORS)
def test_within_a_stream_its_clients_know_the_error(two: tuple[Server, Front, list[Scripted]], path: str) -> None:
    server, _, replicas = two
    for one in replicas:
        one.script = lambda data: STREAM + (
            chunk(b"data: 1\n\n: octavo [[0,5]]\n\n") if b'"begun":false' in data else b""
        ) + chunk(LOST) + b"0\r\n\r\n"
    status, _, body = server.send("POST", path, {**BODY, "stream": True})
    assert status == 200
    assert body.startswith(b"data: 1\n\n" + ERRORS[path])
    assert all(b"[[0,5]]" in data for one in replicas for data in one.asked if b'"begun":true' in data)


def test_a_stream_that_is_refused_where_it_goes_on_says_why(two: tuple[Server, Front, list[Scripted]]) -> None:
    server, _, replicas = two
    for one in replicas:
        one.script = lambda data: json_answer(500, b"the prompt is quarantined") if b'"begun":true' in data else (
            STREAM + chunk(b"data: 1\n\n: octavo [[0,5]]\n\n") + chunk(LOST) + b"0\r\n\r\n"
        )
    body = server.send("POST", CHAT, {**BODY, "stream": True})[2]
    assert body.startswith(b'data: 1\n\ndata: {"error":{"message":"it can\'t go on: 500, the prompt is quarantined"')
    assert sum(len(one.asked) for one in replicas) == 2


def test_a_reply_that_gets_on_may_be_moved_again_and_again(two: tuple[Server, Front, list[Scripted]]) -> None:
    server, _, replicas = two

    def next_token(data: bytes) -> bytes:
        n = data.count(b"[[0,")
        if n == 3 * MOST_ENDS:
            return STREAM + chunk(b"data: end\n\n" + COMPLETE)  # without the end of HTTP's own
        return STREAM + chunk(b"data: %d\n\n: octavo [[0,%d]]\n\n" % (n, n)) + chunk(LOST) + b"0\r\n\r\n"

    for one in replicas:
        one.script = next_token
    body = server.send("POST", CHAT, {**BODY, "stream": True})[2]
    assert body == b"".join(b"data: %d\n\n" % n for n in range(3 * MOST_ENDS)) + b"data: end\n\n"


def test_a_replica_that_ends_is_forgotten_and_comes_back(
    two: tuple[Server, Front, list[Scripted]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, front, replicas = two
    for one in replicas:
        one.script = lambda data: json_answer(200)
    text = "a long conversation " * 20
    for _ in range(3):
        server.chat(text)
    (holder,) = (one for one in replicas if one.asked)
    running = front.pool.replicas[holder.number].running
    assert running is not None
    server.loop.call_soon_threadsafe(running.stop)
    until(lambda: front.pool.replicas[holder.number].restarts == 1 and len(front.pool.up) == 2)
    assert front.pool.replicas[holder.number].state == "up"
    assert not any(bits >> holder.number & 1 for bits in front.pool.router._holders.values())


@pytest.mark.parametrize("ending", [False, True])
def test_one_that_is_not_well_is_a_warning_until_the_end(
    two: tuple[Server, Front, list[Scripted]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    ending: bool,
) -> None:
    monkeypatch.setattr(pool, "LOOK_S", 0.02)
    _, front, replicas = two
    front.pool.ending = ending
    replicas[0].health = json_answer(503)
    until(lambda: front.pool.replicas[0].state == "unwell")
    assert ("replica 0 is not well: its /health says 503" in caplog.text) is not ending


def test_one_that_is_not_well_gets_no_requests(
    two: tuple[Server, Front, list[Scripted]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LOOK_S", 0.02)
    server, front, replicas = two
    for one in replicas:
        one.script = lambda data: json_answer(200)
    replicas[0].health = json_answer(503)
    until(lambda: front.pool.replicas[0].state == "unwell")
    for i in range(4):
        server.chat(f"hello {i}")
    assert (len(replicas[0].asked), len(replicas[1].asked)) == (0, 4)
    assert server.get("/health") == {"status": "ok"}
    replicas[1].health = json_answer(503)
    until(lambda: not front.pool.up)
    status, _, body = server.send("GET", "/health")
    assert (status, json.loads(body)["error"]["reason"]) == (503, "no_replica")
    replicas[0].health = replicas[1].health = json_answer(200)
    until(lambda: len(front.pool.up) == 2)
    said = server.get("/replicas")
    assert [(one["state"], one["answered"]) for one in said] == [("up", 0), ("up", 4)]
    assert [one["address"] for one in said] == [f"127.0.0.1:{one.port}" for one in replicas]


def test_one_that_does_not_answer_is_started_again(
    two: tuple[Server, Front, list[Scripted]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LOOK_S", 0.02)
    monkeypatch.setattr(pool, "ANSWER_S", 0.1)
    _, front, replicas = two
    replicas[1].health = b""
    until(lambda: front.pool.replicas[1].restarts > 0)
    replicas[1].health = json_answer(200)
    until(lambda: len(front.pool.up) == 2)
    assert front.pool.replicas[0].restarts == 0


def test_a_rolling_update(two: tuple[Server, Front, list[Scripted]]) -> None:
    server, front, replicas = two
    assert server.send("POST", "/replicas/restart", {})[0] == 202
    until(lambda: [one.rolled for one in front.pool.replicas] == [1, 1] and not front.pool.rolling)
    assert [(one.restarts, one.why) for one in front.pool.replicas] == [(0, "")] * 2, "not a crash"
    assert [one.stopped for one in replicas] == [1, 1]
    assert len(front.pool.up) == 2


def test_a_client_that_leaves_ends_its_request(two: tuple[Server, Front, list[Scripted]]) -> None:
    server, front, replicas = two
    for one in replicas:
        one.script = lambda data: STREAM + chunk(b"data: 1\n\n: octavo [[0,5]]\n\n")
    with server.connect() as sock:
        sock.sendall(request({**BODY, "stream": True}))
        reader = Reader(sock)
        reader.head()
        assert reader.chunk() == b"data: 1\n\n"
        assert front.under_way == 1
        reader.close()
    until(lambda: front.under_way == 0 and all(one.load == 0 for one in front.pool.replicas))


def test_every_route_wants_a_key_and_no_header_goes_on_that_is_not_the_clients() -> None:
    options = ServerOptions(name="demo", secret=SECRET, keys=("key",), limits=OPTIONS.limits)
    with scripted(1) as (replica,), fronting(ScriptedLauncher([replica]), 1, options) as (server, _):
        replica.script = lambda data: json_answer(200)
        for method, path in (("POST", CHAT), ("GET", "/metrics"), ("GET", "/replicas"), ("POST", "/replicas/restart")):
            assert server.send(method, path, {} if method == "POST" else None)[0] == 401
        assert server.send("GET", "/health")[0] == 200
        assert replica.asked == []
        headers = {"Authorization": "Bearer key", "X-Octavo-Handover": f"{SECRET} 0", "X-Own": "yes"}
        assert server.send("POST", f"{CHAT}?a=b", BODY, headers)[0] == 200
        (data,) = replica.asked
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/chat/completions?a=b HTTP/1.1\r\n")
        assert head.count(b"x-octavo-handover") == 1
        assert b"\r\nx-own: yes\r\n" in head
        assert b"\r\nauthorization: Bearer key\r\n" in head
        assert body.endswith(json.dumps(BODY).encode())


def test_what_can_not_be_loaded_is_told_at_the_start() -> None:
    from octavo.errors import UsageError

    launcher = ScriptedLauncher([])
    launcher.fails = UsageError("n_ctx is 7", argument="n_ctx")
    with pytest.raises(AssertionError, match="n_ctx is 7"), fronting(launcher, 2):
        pass


@pytest.mark.parametrize("times", [2, 3])
def test_replicas_that_end_while_they_load_are_started_again_twice(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "FIRST_PAUSE_S", 0.01)
    with scripted(1) as replicas:
        launcher = ScriptedLauncher(replicas)
        launcher.ends = times
        if times == 2:
            with fronting(launcher, 1) as (_, front):
                assert front.pool.replicas[0].restarts == 2
        else:
            with pytest.raises(AssertionError, match="it was killed"), fronting(launcher, 1):
                pass
