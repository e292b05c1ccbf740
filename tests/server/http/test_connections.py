"""Connections: clients that leave, or do not read or send, what is taken of them, a full queue and a server's end."""

from __future__ import annotations

import asyncio
import errno
import json
import select
import socket
import time
from collections import Counter
from contextlib import ExitStack, closing
from itertools import pairwise
from threading import Event, Thread
from typing import Any

import openai
import pytest
import uvicorn
from msgspec.structs import replace

from octavo.errors import HostMemoryError
from octavo.runtime import Model
from octavo.server import serve
from octavo.server.engine.engine_protocol import Cancel, EngineOutput
from octavo.server.engine.fake import INFO, FakeClient
from octavo.server.http import connection
from octavo.server.routes import meta
from octavo.server.serve_options import Limits
from tests.limits import HANG_S
from tests.server.live_server import Server, events, running
from tests.server.scripted_engine import BODY, CHAT, Played, Reader, begun, playing, request, until


@pytest.mark.parametrize("more", [{"stream": True}, {}, {"n": 4}, {"n": 4, "stream": True}], ids=str)
@pytest.mark.parametrize("phase", ["queue", "reply"])
def test_a_client_that_leaves_cancels(model: Model, more: dict[str, Any], phase: str) -> None:
    with playing(model) as played:
        sock = played.server.connect()
        sock.sendall(request({**BODY, **more}))
        add = played.asked()
        if phase == "reply":
            played.say(*(begun(one) for one in add.ids))
            until(lambda: played.server.service.metrics.generated_tokens == len(add.ids))
        sock.close()
        until(lambda: played.cancelled() == set(add.ids))
        until(lambda: played.server.service.metrics.replies == 0)
        assert played.fake.under_way == 0


def test_who_leaves_with_a_request_behind_a_stream_cancels_it(model: Model) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, "stream": True}) + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        (one,) = played.asked().ids
        played.say(begun(one))
        with closing(Reader(sock)) as reader:
            reader.head()
        sock.close()
        until(lambda: one in played.cancelled())


def test_a_reader_that_reads_nothing_is_cut_off(model: Model) -> None:
    fake = FakeClient([300] * 3, info=replace(INFO, n_ctx=1 << 40))
    with running(fake, model, limits=Limits(drain_time=0, write_time=0.4), sent_ahead=4096) as server:
        with closing(socket.socket()) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(request({**BODY, "stream": True, "max_tokens": 1_000_000_000}))
            until(lambda: any(isinstance(message, Cancel) for message in fake.sent))
            until(lambda: server.service.metrics.replies == 0)
        assert server.get("/health") == {"status": "ok"}


def test_a_slow_reader_holds_up_nobody(model: Model) -> None:
    """Its pieces are merged and wait in little memory; another stream gets its own, each by itself, as before."""
    most, fake = 1500, FakeClient()
    body = {"prompt": "12", "max_tokens": most, "stream": True}
    limits = Limits(drain_time=0, ping=1000, write_time=1000)
    with running(fake, model, limits=limits, sent_ahead=4096) as server, ExitStack() as stack:
        played = Played(server, fake)
        slow = stack.enter_context(closing(socket.socket()))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(request(body, "/v1/completions"))
        quick = stack.enter_context(closing(server.connect()))
        quick.sendall(request(body, "/v1/completions"))
        both = [*played.asked().ids, *played.asked(2).ids]
        reader, taken = stack.enter_context(closing(Reader(quick))), b""
        for i in range(most):
            finish = "length" if i == most - 1 else None
            played.say(*(begun(one, finish=finish) if i == 0 else EngineOutput(one, 300, finish) for one in both))
            if i == 0:
                reader.head()
            found = [e["choices"][0]["text"] for e in events(reader.chunk())]
            assert "".join(found) == model.tokenizer.decode([300])
            if i % 200 == 199:  # seven bytes of its first line
                taken += slow.recv(1)
        late = stack.enter_context(closing(Reader(slow)))
        assert (taken + late.head()).startswith(b"HTTP/1.1 200 ")
        pieces = list(iter(late.chunk, b""))
    texts = [e["choices"][0]["text"] for e in events(b"".join(pieces))[:-1]]
    assert "".join(texts) == model.tokenizer.decode([300]) * most
    assert len(pieces) < most / 2
    assert len(max(texts)) > most / 2 * len(texts[0]), "what came while its socket was full is one piece"
    assert sum(map(len, pieces[:-3])) < 1 << 18, "no more was written than sockets and uvicorn hold"


def test_slow_senders(model: Model) -> None:
    with playing(model, header_time=0.2, body_time=0.2) as played:
        late = []
        for sent in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: local", request(BODY)[:-5]):
            sock = played.server.connect()
            sock.sendall(sent)
            late.append(sock)
        for sock in late:
            with closing(sock):
                assert sock.recv(100).startswith(b"HTTP/1.1 408 ")
                while sock.recv(1000):
                    pass


def test_a_body_that_comes_fast_enough_may_take_long(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "octavo.server.http.body.SLOWEST", 16
    )  # bytes a second that come here however slow this machine is
    data, limits = request({"prompt": [300] * 2000, "max_tokens": 1}, "/v1/completions"), Limits(body_time=0.2)
    with running(FakeClient([300]), model, limits=limits) as server, closing(server.connect()) as sock:
        for start in range(0, len(data), 1500):
            sock.sendall(data[start : start + 1500])
            time.sleep(0.07)
        assert sock.recv(12) == b"HTTP/1.1 200"


def sent(sock: socket.socket, piece: bytes, times: int) -> int:
    """How many of some pieces were taken before the connection ended."""
    for i in range(times):
        try:
            sock.sendall(piece)
        except OSError:
            return i
    return times


def test_headers_behind_a_stream_are_counted(model: Model) -> None:
    """Within a response they can't be refused in words: the connection ends, and with it the reply."""
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, "stream": True}))
        (one,) = played.asked().ids
        played.say(begun(one))
        with closing(Reader(sock)) as reader:
            reader.head()
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
            assert sent(sock, b"x" * (1 << 20), 64) < 32
        until(lambda: one in played.cancelled())
        assert played.server.send("GET", "/health")[0] == 200


@pytest.mark.parametrize("line", [b"X-Long: " + b"x" * 1000 + b"\r\n", b"x" * 1000])
def test_trailers_of_a_body_are_counted(model: Model, line: bytes) -> None:
    head = request({}).partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(head + b"2\r\n{}\r\n" * 50_000 + b"0\r\n" + b"X-Short: ")
        assert sent(sock, line, 50_000) < 10_000
        with closing(Reader(sock)) as reader:
            assert reader.head().startswith(b"HTTP/1.1 431 ")
        assert played.server.send("GET", "/health")[0] == 200


def test_a_full_queue(model: Model) -> None:
    with playing(model, queue=1) as played:
        room = played.fake.loaded.max_sequences
        body = {"prompt": [[1]] * (room + 1), "max_tokens": 1}
        with closing(played.server.connect()) as sock:
            sock.sendall(request(body, "/v1/completions"))
            until(lambda: len(played.adds()) == room + 1)
            status, headers, data = played.server.send("POST", CHAT, BODY)
            error = json.loads(data)["error"]
            assert (status, error["type"]) == (429, "rate_limit_exceeded")
            assert 1 <= int(headers["retry-after"]) <= 120
        until(lambda: played.server.service.metrics.replies == 0)
        client = openai.OpenAI(base_url=f"{played.server.url}/v1", api_key="none", max_retries=0)
        played.server.service.metrics.replies += room + 1
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="x", **BODY)
        played.server.service.metrics.replies -= room + 1


@pytest.mark.parametrize(("prompts", "n"), [(11, 1), (1, 11), (3, 4)])
def test_more_replies_than_there_is_ever_room_for(model: Model, prompts: int, n: int) -> None:
    fake = FakeClient([300], info=replace(INFO, max_sequences=4))
    with running(fake, model, limits=Limits(drain_time=0, queue=6)) as server:
        status, error = server.refused("/v1/completions", {"prompt": ["a"] * prompts, "n": n})
        assert (status, error["type"]) == (400, "invalid_request_error")
        assert error["message"].endswith(f"{prompts * n} replies, n to each prompt (allowed: up to 10)")
        assert len(server.post("/v1/completions", prompt=["a"] * 5, n=2, max_tokens=1)["choices"]) == 10


def test_draining(model: Model) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, "stream": True}))
        (one,) = played.asked().ids
        played.server.service.draining = True
        status, headers, _ = played.server.send("POST", CHAT, BODY)
        assert (status, int(headers["retry-after"]) > 0) == (503, True)
        assert played.server.send("GET", "/health")[0] == 503
        played.say(begun(one, 16, finish="length"))
        reader = Reader(sock)
        reader.head()
        assert events(reader.chunk())[-1]["choices"][0]["finish_reason"] == "length"


def test_what_is_under_way_at_the_end_is_told(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Streams with a status and without, and a whole reply."""
    monkeypatch.setattr(serve, "FLUSH_S", HANG_S)
    with ExitStack() as open_until_the_end:
        with playing(model) as played:
            socks = [open_until_the_end.enter_context(closing(played.server.connect())) for _ in range(3)]
            for i, sock in enumerate(socks):
                sock.sendall(request({**BODY, "stream": i != 2}))
                played.asked(i + 1)
            played.say(begun(played.adds()[0].ids[0], 16))
            readers = [open_until_the_end.enter_context(closing(Reader(sock))) for sock in socks]
            readers[0].head()
            readers[0].chunk()
        assert events(readers[0].chunk())[-1]["error"]["code"] == "server_ending"
        for reader in readers[1:3]:
            assert reader.head().startswith(b"HTTP/1.1 503 ")
            assert json.loads(reader.file.read())["error"]["message"] == "The server is shutting down"
    assert not caplog.records


@pytest.mark.slow
def test_at_the_end_who_reads_nothing_is_not_waited_for(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve, "FLUSH_S", 0.1)
    with ExitStack() as open_until_the_end, playing(model) as played:
        sock = open_until_the_end.enter_context(closing(played.server.connect()))
        sock.sendall(request({**BODY, "stream": True}))
        (one,) = played.asked().ids
        played.say(begun(one, 16))
        for _ in range(2000):
            played.say(*[EngineOutput(one, 17)] * 200)
    assert not caplog.records


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def require_health(reader: Reader) -> None:
    """The next answer is that of /health."""
    assert reader.head().startswith(b"HTTP/1.1 200 ")
    assert reader.file.read(15) == b'{"status":"ok"}'


def test_requests_behind_a_stream_are_read_as_they_are_answered(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    n, first, parse = 4000, request({**BODY, "stream": True}), connection.Connection._parse
    parsed = Counter[int]()

    def counting(self: connection.Connection, data: bytes) -> None:
        parsed[id(self)] += len(data)
        parse(self, data)

    monkeypatch.setattr(connection.Connection, "_parse", counting)
    with playing(model) as played, closing(played.server.connect()) as sock:
        sending = Thread(target=sock.sendall, args=(first + HEALTH * n,))
        sending.start()
        (one,) = played.asked().ids
        played.say(begun(one))
        with closing(Reader(sock)) as reader:
            reader.head()
            reader.chunk()
            assert played.server.send("GET", "/health")[0] == 200
            assert max(parsed.values()) <= len(first) + connection.SLICE
            played.say(EngineOutput(one, 16, finish="length"))
            while reader.chunk():
                pass
            for _ in range(n):
                require_health(reader)
        sending.join()


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("more", [{"stream": True}, {}], ids=str)
def test_a_client_that_sends_no_more_is_answered(model: Model, more: dict[str, Any], version: bytes) -> None:
    """As `nc -N` does, also behind a first request."""
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, **more}).replace(b"HTTP/1.1", b"HTTP/" + version) + HEALTH * (version == b"1.1"))
        sock.shutdown(socket.SHUT_WR)
        (one,) = played.asked().ids
        time.sleep(0.4)
        played.say(begun(one))
        played.say(EngineOutput(one, 16, finish="length"))
        data = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        assert not played.cancelled()
    assert b'"finish_reason":"length"' in data
    assert data.count(b"HTTP/1.1 200 ") == (2 if version == b"1.1" else 1)
    if version == b"1.0":
        assert b" 100 Continue" not in data  # which it does not know


@pytest.mark.parametrize("more", [{"stream": True}, {}], ids=str)
@pytest.mark.parametrize("phase", ["queue", "reply"])
def test_who_sends_no_more_and_leaves_cancels(model: Model, more: dict[str, Any], phase: str) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(request({**BODY, **more}))
        (one,) = played.asked().ids
        if phase == "reply":
            played.say(begun(one))
            if more:
                select.select([sock], [], [], HANG_S)
                sock.recv(1 << 16)
        sock.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        assert not played.cancelled()
        sock.close()
        until(lambda: played.cancelled() == {one})
        until(lambda: played.server.service.metrics.replies == 0)


def ended(sock: socket.socket) -> bool:
    """Whether a connection is closed behind what was sent."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def unread(server: Server) -> socket.socket:
    """A connection whose system takes little of what it is sent."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(HANG_S)
    sock.connect(("127.0.0.1", server.port))
    return sock


LARGE = {"messages": [{"role": "user", "content": "x" * (1 << 19)}]}


@pytest.mark.parametrize("kind", ["large", "small", "with an end"])
def test_whole_answers_that_nobody_reads_are_cut_off(model: Model, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(drain_time=0, write_time=0.4)
    with running(FakeClient(), model, limits=limits, sent_ahead=4096) as server, closing(unread(server)) as sock:
        if kind == "small":
            sent(sock, HEALTH * 10, 20)
        else:
            sock.sendall(request(LARGE, "/apply-template"))
        if kind == "with an end":
            sock.shutdown(socket.SHUT_WR)
        until(lambda: "disconnecting a client that reads nothing: the response to req_" in caplog.text)
        assert ended(sock)
        assert server.get("/health") == {"status": "ok"}


def test_whole_answers_that_are_read_slowly_are_not_cut_off(model: Model) -> None:
    limits = Limits(drain_time=0, write_time=0.6)
    with running(FakeClient(), model, limits=limits, sent_ahead=4096) as server, closing(unread(server)) as sock:
        sock.sendall(request(LARGE, "/apply-template"))
        data, end = b"", time.monotonic() + 1.5
        while time.monotonic() < end:
            data += sock.recv(4096)
            time.sleep(0.02)
        while data.count(b"x") < 1 << 19:
            piece = sock.recv(1 << 16)
            assert piece
            data += piece


def test_a_body_that_stops_is_cut_however_much_came(model: Model) -> None:
    with playing(model, body_time=0.3) as played, closing(played.server.connect()) as sock:
        head = request({}).partition(b"Content-Length")[0]
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % (2 << 20) + b" " * (1 << 20))
        assert sock.recv(1000).startswith(b"HTTP/1.1 408 ")
    with playing(model, body_time=0.3) as played, closing(played.server.connect()) as sock:
        sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n100000\r\n" + b" " * (1 << 19))
        assert sock.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_bodies_have_a_limit_together(model: Model) -> None:
    """One alone is taken whatever it has, small ones beside any number."""
    head = request({}).partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % (3 << 20)
    with playing(model, bodies=2 << 20) as played, closing(played.server.connect()) as first:
        first.sendall(head + b" " * (5 << 19))
        bodies = played.server.service.bodies
        until(lambda: bodies.held == 5 << 19)
        ids = {"prompt": [300] * (1 << 15), "max_tokens": 1}  # of 160 KiB, which are 1.7 MiB taken apart
        assert played.server.send("POST", "/v1/completions", ids)[0] == 503
        with closing(played.server.connect()) as second:
            second.sendall(head + b" " * (3 << 20))  # all of it, and the answer is there
            assert second.recv(1000).startswith(b"HTTP/1.1 503 ")
        thread = played.answering(begun(1, finish="length"))
        assert played.server.chat("What is 12 times 7?")["choices"]
        thread.join()
        first.close()
        until(lambda: bodies.held == 0)
        assert played.server.send("POST", "/v1/completions", ids)[0] == 400  # as the context is shorter
        with closing(played.server.connect()) as third:
            third.sendall(head + b" " * (3 << 20))
            assert third.recv(1000).startswith(b"HTTP/1.1 400 ")  # it was read, and is not JSON
        until(lambda: bodies.held == 0)


def test_connections_with_requests_under_way_have_a_limit(model: Model) -> None:
    with playing(model, connections=2) as played, ExitStack() as stack:
        socks = [stack.enter_context(closing(played.server.connect())) for _ in range(2)]
        for i, sock in enumerate(socks):
            sock.sendall(request({**BODY, "stream": True}))
            played.asked(i + 1)
        status, headers, body = played.server.send("POST", CHAT, BODY)
        assert (status, int(headers["retry-after"]) > 0, headers["connection"]) == (503, True, "close")
        assert "2 connections" in json.loads(body)["error"]["message"]
        assert played.server.send("POST", "/v1/messages", BODY)[0] == 529
        assert played.server.send("GET", "/health")[0] == 200
        socks[0].close()
        until(lambda: len(played.cancelled()) == 1)
        thread = played.answering(begun(3, finish="length"))
        assert played.server.chat("What is 12 times 7?")["choices"]
        thread.join()


def test_connections_that_ask_nothing_make_room(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that waits longest is closed: one that never asked, or asked long ago."""
    monkeypatch.setattr(connection, "SPARE", 4)
    made, taken = list[object](), connection.Connection.connection_made
    monkeypatch.setattr(connection.Connection, "connection_made", lambda one, to: (taken(one, to), made.append(one)))
    with playing(model, connections=2, header_time=1000) as played, ExitStack() as stack:
        socks = [stack.enter_context(closing(played.server.connect())) for _ in range(6)]
        until(lambda: len(made) == 6)  # before one of them asks, and is the last to wait
        socks[1].sendall(HEALTH)
        with closing(Reader(socks[1])) as reader:
            require_health(reader)
        socks[2].sendall(b"GET /health HTTP/1.1\r\n")
        socks += [stack.enter_context(closing(played.server.connect())) for _ in range(3)]
        for i in (0, 2, 3):
            assert ended(socks[i])
        for i in (1, 4, 5, 6, 7, 8):
            socks[i].sendall(HEALTH)
            with closing(Reader(socks[i])) as reader:
                require_health(reader)


@pytest.mark.parametrize("asked", [b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                   HEALTH[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
                                   HEALTH[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"])
def test_other_protocols_are_not_spoken(model: Model, asked: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with playing(model) as played, closing(played.server.connect()) as sock:
        sock.sendall(asked + HEALTH)
        with closing(Reader(sock)) as reader:
            head = reader.head()
            if asked.startswith(b"CONNECT"):
                assert head.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 ", b"HTTP/1.1 400 ")), head
            else:
                assert head.startswith(b"HTTP/1.1 200 ")
                assert reader.file.read(15) == b'{"status":"ok"}'
                require_health(reader)
    assert "WebSocket" not in caplog.text


def test_a_body_that_nobody_wants_is_no_head(model: Model) -> None:
    """It is passed over, and the connection is used again; where it does not come, the connection ends."""
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    with ExitStack() as stack:
        played = stack.enter_context(playing(model, header_time=0.3))
        sock = stack.enter_context(closing(played.server.connect()))
        reader = stack.enter_context(closing(Reader(sock)))
        for _ in range(2):
            sock.sendall(head)
            require_health(reader)
            sock.sendall(b"\r\n\r\n" * 250)
            time.sleep(0.5)
        sock.sendall(head)
        require_health(reader)
        sock.sendall(b"x")
        assert sock.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_connections_wait_where_there_is_no_descriptor(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One try in each pause, one line, and they are answered later."""
    asked, accept, full = list[float](), socket.socket.accept, Event()

    def accepting(self: socket.socket) -> Any:
        if not full.is_set():
            return accept(self)
        asked.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(serve, "ACCEPT_PAUSE_S", 0.2)
    monkeypatch.setattr(socket.socket, "accept", accepting)
    with playing(model) as played, closing(played.server.connect()) as first:
        first.sendall(HEALTH)
        with closing(Reader(first)) as reader:
            require_health(reader)
        full.set()
        with closing(played.server.connect()) as second, closing(Reader(second)) as late:
            second.sendall(HEALTH)
            until(lambda: len(asked) >= 3)
            assert all(b - a > 0.1 for a, b in pairwise(asked))
            first.sendall(HEALTH)
            with closing(Reader(first)) as reader:
                require_health(reader)
            full.clear()
            require_health(late)
    assert [record.message for record in caplog.records] == [
        "connections have to wait, as none can be accepted: Too many open files"
    ]


def test_handshakes_that_do_not_come_make_room(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TLS: those that take longest are given up, before they are connections."""

    async def connect(self: serve.Server, sock: socket.socket) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            sock.close()

    with playing(model, connections=2) as played, ExitStack() as stack:
        monkeypatch.setattr(serve.Server, "_connect", connect)
        monkeypatch.setattr(uvicorn.Config, "is_ssl", True)
        room = 2 + connection.SPARE
        socks = [stack.enter_context(closing(played.server.connect())) for _ in range(room + 30)]
        assert all(ended(sock) for sock in socks[:30])
        assert not select.select(socks[30:], [], [], 0.1)[0]
        monkeypatch.undo()


@pytest.mark.parametrize(("soft", "hard", "room", "raised"), [
    (1024, 4096, 1000, 1192), (4096, 4096, 1000, None), (256, 512, 320, 512), (100, 100, 1, 100), (-1, -1, 1000, None),
    (1024, -1, 1000, 1192),
])
def test_connections_that_the_systems_limit_leaves(
    soft: int, hard: int, room: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    given = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert serve.room_for(1000) == room
    assert given == ([] if raised is None else [(raised, hard)])


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()], ids=repr)
def test_what_the_system_has_no_room_for_is_asked_again(
    model: Model, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> Any:
        raise error

    monkeypatch.setattr(meta, "page", fails)
    with playing(model) as played:
        status, headers, _ = played.server.send("GET", "/")
        assert (status, int(headers["retry-after"]) > 0) == (503, True)
    assert [record.exc_info for record in caplog.records] == [None]


def test_a_server_without_threads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", none)
    with pytest.raises(HostMemoryError, match="can't start a thread"):
        serve._threads()


@pytest.mark.slow
def test_a_thousand_connections_that_say_nothing(model: Model) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        fake = FakeClient([16], 0.01)
        with running(fake, model, limits=Limits(drain_time=0, header_time=20)) as server, ExitStack() as stack:
            idle = [stack.enter_context(closing(server.connect())) for _ in range(1000)]
            assert server.post(CHAT, **BODY, max_tokens=20)["usage"]["completion_tokens"] == 20
            said = select.poll()  # select() takes no numbers of files above 1023
            said.register(idle[-1], select.POLLIN)
            assert not said.poll(0), "it is answered while they are there"
            assert all(sock.recv(100).startswith(b"HTTP/1.1 408 ") for sock in idle)
            assert server.get("/health") == {"status": "ok"}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
