"""The engine in a process of its own: its end, the next one, and the end of the server."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http.client import HTTPSConnection
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.errors import ModelError, RankError
from octavo.runtime import Model
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.server.engine import process as supervise
from octavo.server.engine.channel import Channel, ChannelError, frame
from octavo.server.engine.client import EngineDiedError
from octavo.server.engine.engine_protocol import Add, Broken, Ping, Pong, Quit, Ready, StepOutputs, encode, to_engine
from octavo.server.engine.fake import INFO
from octavo.server.engine.launch import ENDING, STDIN, launch
from octavo.server.engine.process import LOST, ProcessClient
from octavo.server.serve import _ending, run
from octavo.server.serve_options import EngineOptions
from tests.limits import HANG_S
from tests.server.http.test_tls import CERT, KEY
from tests.server.live_server import Server, events, running
from tests.server.scripted_engine import Reader, request, until
from tests.server.thread_client import ThreadClient

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 12 times 7?"}], "temperature": 0}
LONG = {**ASK, "stream": True, "ignore_eos": True}


WITHOUT_FRONT = """
import io, multiprocessing, socket, sys
multiprocessing.set_start_method("forkserver")  # as Python 3.14 has it
ours, theirs = socket.socketpair()
ours.close()
place = str(theirs.detach())
if sys.argv[1] == "shared":  # as on Windows
    socket.fromshare = lambda data: socket.socket(fileno=int(data))
    sys.stdin, place = io.TextIOWrapper(io.BytesIO(place.encode())), "-"
sys.argv[1:] = [place, "30"]
from octavo.server.worker import main
main()
print(multiprocessing.get_start_method())
"""


def engine(path: str = "demo") -> ProcessClient:
    return ProcessClient(EngineOptions(path, device="cpu", max_sequences=8, threads=1))


@pytest.fixture(scope="module")
def served(model: Model) -> Iterator[tuple[Server, ProcessClient]]:
    client = engine()
    with running(client, model) as server:
        yield server, client


@contextmanager
def talking(server: Server, body: dict[str, Any]) -> Iterator[Reader]:
    """A stream whose head is read."""
    with closing(server.connect()) as sock:
        sock.sendall(request(body))
        with closing(Reader(sock)) as reader:
            reader.head()
            yield reader


def answer(server: Server) -> str:
    text: str = server.post("/v1/chat/completions", **ASK)["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("way", ["inherited", "shared"])
def test_an_engine_makes_no_semaphore_that_has_a_name(way: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRONT, way], check=True, stdout=subprocess.PIPE, text=True, timeout=HANG_S
    )
    assert run.stdout == "fork\n"


def test_windows_hands_a_socket_over_by_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Process:
        pid = 4321

        def __init__(self, command: list[str], **options: Any) -> None:
            assert "pass_fds" not in options  # Windows refuses it
            self.stdin = given["pipe"] = Pipe()
            given["command"] = command

    class Pipe(BytesIO):
        def close(self) -> None:
            given["sent"] = self.getvalue()
            super().close()

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(socket.socket, "share", lambda self, pid: b"share for %d" % pid, raising=False)
    with launch().socket:
        assert given["command"][1:4] == ["-m", "octavo.server.worker", STDIN]
        assert given["sent"] == b"share for 4321"


def test_an_engine_that_is_killed_is_started_again(served: tuple[Server, ProcessClient]) -> None:
    server, client = served
    before, info = answer(server), client.info
    with talking(server, LONG) as reader:
        last = reader.chunk()
        assert client.process is not None
        os.kill(client.process.pid, signal.SIGKILL)
        while chunk := reader.chunk():
            last = chunk
    error = events(last)[-1]["error"]
    assert (error["type"], error["code"]) == ("unavailable_error", "engine_ended")
    status, headers, body = server.send("GET", "/health")
    assert (status, json.loads(body)["error"]["type"]) == (503, "unavailable_error")
    assert int(headers["retry-after"]) >= 1
    until(lambda: server.send("GET", "/health")[0] == 200)
    assert answer(server) == before
    assert client.restarts == 1
    assert info is not None
    assert client.stats.empty + client.stats.cached == info.n_pages
    assert server.service.metrics.replies == 0


def test_nothing_is_sent_while_an_ended_engine_is_put_away() -> None:
    ours, theirs = socket.socketpair()
    killed, gone = Event(), Event()
    process = SimpleNamespace(kill=killed.set, poll=lambda: -9 if gone.is_set() or not killed.is_set() else None)
    client = ProcessClient(EngineOptions("demo"), SimpleNamespace(socket=ours, process=process, told=False))  # type: ignore[arg-type]
    one = Add([1], [5, 6], SamplingParams(), 0)

    async def scenario() -> None:
        await client.start()
        theirs.sendall(frame(encode(Ready(INFO))))
        await client.ready()
        stream = client.submit([one])
        theirs.close()
        await asyncio.to_thread(killed.wait, HANG_S)
        stream.close()
        with pytest.raises(EngineDiedError, match="was killed by SIGKILL"):
            client.submit([one])
        assert client.under_way == 0
        gone.set()
        await client.close()

    asyncio.run(scenario())


def test_an_engine_that_was_told_to_end_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """With --cache-disk it has the time to end by itself; its front hears of that before `close` does."""
    ours, theirs = socket.socketpair()
    closing: list[asyncio.Task[None]] = []

    def poll() -> int | None:
        return None if asyncio.current_task() in closing and not watched() else 0

    def watched() -> bool:
        return client._watching is None or client._watching.done() or bool(caplog.records)

    process = SimpleNamespace(kill=lambda: None, poll=poll)
    options = EngineOptions("demo", cache_disk=1 << 30)
    client = ProcessClient(options, SimpleNamespace(socket=ours, process=process, told=False))  # type: ignore[arg-type]

    def answer() -> None:
        channel = Channel(theirs)
        messages = channel.received()
        next(messages)
        channel.send(encode(Ready(INFO)))
        while not isinstance(to_engine.decode(next(messages)), Quit):
            pass
        theirs.close()

    async def scenario() -> None:
        Thread(target=answer, daemon=True).start()
        await client.start()
        await client.ready()
        closing.append(asyncio.ensure_future(client.close()))
        await closing[0]

    with caplog.at_level(logging.INFO, "octavo"):
        asyncio.run(scenario())
    assert not caplog.records
    assert client.process is None


class Puppet:
    """A process at the other end of a socket that says what a test tells it to, and a `Pong` to each `Ping`."""

    def __init__(self, pong: Pong | None) -> None:
        self.pong, self.pings, self.told = pong, 0, False
        self.socket, self._theirs = socket.socketpair()
        self.killed = Event()
        self.process: Any = SimpleNamespace(kill=self.killed.set, poll=lambda: -9 if self.killed.is_set() else None)
        Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        channel = Channel(self._theirs)
        messages = channel.received()
        next(messages)
        channel.send(encode(Ready(INFO)))
        with suppress(OSError, ChannelError):
            for message in messages:
                self.pings += isinstance(to_engine.decode(message), Ping)
                if self.pong is not None:
                    channel.send(encode(self.pong))
        self._theirs.close()


def puppets(monkeypatch: pytest.MonkeyPatch, *those: Puppet | OSError) -> ProcessClient:
    """A client of engines that come one after the other, or can't be started."""
    left = iter(those)

    def launched(*, grouped: bool) -> Any:
        one = next(left)
        if isinstance(one, OSError):
            raise one
        return one

    monkeypatch.setattr(supervise, "launch", launched)
    for name, seconds in (("PING_S", 0.02), ("FIRST_PAUSE_S", 0.02), ("LONGEST_PAUSE_S", 0.1)):
        monkeypatch.setattr(supervise, name, seconds)
    return ProcessClient(EngineOptions("demo"))


async def up_again(client: ProcessClient) -> None:
    while not client.up:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("pong", "why"), [(None, "did not answer for"), (Pong(700), "did not end a step for 700 s")], ids=["silent", "busy"]
)
def test_an_engine_without_a_sign_of_life_is_started_again(
    monkeypatch: pytest.MonkeyPatch, pong: Pong | None, why: str
) -> None:
    first, second = Puppet(pong), Puppet(Pong(599.0))
    client = puppets(monkeypatch, first, second)

    async def scenario() -> None:
        await client.start()
        await client.ready()
        stream = client.submit([Add([1], [5, 6], SamplingParams(), 0)])
        if pong is None:
            while client.answers:
                await asyncio.sleep(0.002)
            assert (client.state, client.up, first.killed.is_set()) == ("ready", False, False)
        with pytest.raises(EngineDiedError, match=why):
            await anext(stream)
        assert first.killed.is_set()
        await up_again(client)
        while second.pings < 2 * LOST:  # a step of 599 s is long, and no sign that it has no end
            await asyncio.sleep(0.02)
        assert (client.up, client.restarts, second.killed.is_set()) == (True, 1, False)
        await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("pong", [Pong(0.0), Pong(150.0)], ids=["waits", "computes"])
def test_an_engine_that_ends_no_step_is_told_and_started_again(
    monkeypatch: pytest.MonkeyPatch, model: Model, pong: Pong
) -> None:
    """It answers pings, and nothing comes of a reply: /health says so long before the engine is ended for it."""
    first, second = Puppet(pong), Puppet(Pong(0.0))
    client = puppets(monkeypatch, first, second)
    client.step_timeout = 200.0 if pong.seconds else 3.0
    monkeypatch.setattr(supervise, "STALLED", 0.1 / client.step_timeout)
    with running(client, model) as server:
        assert server.send("GET", "/health")[0] == 200
        with closing(server.connect()) as sock:
            sock.sendall(request(LONG))
            until(lambda: client.stalled)
            status, _, body = server.send("GET", "/health")
            assert (status, json.loads(body)["error"]["reason"]) == (503, "engine_stalled")
            assert "octavo:engine_up 0" in server.send("GET", "/metrics")[2].decode()
            refused, error = server.refused("/v1/chat/completions", ASK)
            assert (refused, error["code"]) == (503, "engine_stalled")
            if not pong.seconds:
                until(first.killed.is_set)
        until(lambda: server.send("GET", "/health")[0] == 200)  # the reply is cancelled, or the engine another one
    assert client.restarts == (0 if pong.seconds else 1)


def test_an_engine_whose_steps_end_is_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Puppet(Pong(0.0))
    client = puppets(monkeypatch, one)
    monkeypatch.setattr(supervise, "STALLED", 0.0)

    async def scenario() -> None:
        await client.start()
        await client.ready()
        while one.pings < 5:  # nothing is under way
            await asyncio.sleep(0.005)
            assert not client.stalled
        client.submit([Add([1], [5, 6], SamplingParams(), 0)])
        while not client.stalled:
            await asyncio.sleep(0.005)
        client.deliver(StepOutputs([], replace(client.stats, steps=1), 0.0))
        while client.stalled:
            await asyncio.sleep(0.001)
        await client.close()

    asyncio.run(scenario())


def test_how_long_a_step_takes_is_seen_from_outside(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    client, seen = ThreadClient(model), list[float]()
    compute = client.loop._step

    def slow(*arguments: Any, **more: Any) -> None:
        time.sleep(0.05)
        seen.append(client.loop.turn_seconds)
        compute(*arguments, **more)

    monkeypatch.setattr(client.loop, "_step", slow)
    with running(client, model) as server:
        assert answer(server)
        assert len(seen) > 1
        assert min(seen) >= 0.05
        until(lambda: client.loop.turn_seconds == 0.0)


def test_a_front_that_was_stopped_finds_its_engine_well(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Puppet(Pong(0.0))
    client = puppets(monkeypatch, one)

    async def scenario() -> None:
        await client.start()
        await client.ready()
        for _ in range(2):
            time.sleep(1.5 * LOST * supervise.PING_S)
            await asyncio.sleep(0.05)
        assert (client.up, client.restarts, one.killed.is_set()) == (True, 0, False)
        await client.close()

    asyncio.run(scenario())


def test_an_engine_is_started_once_there_is_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    none = OSError(errno.EMFILE, "Too many open files")
    first, last = Puppet(Pong(0.0)), Puppet(Pong(0.0))
    client = puppets(monkeypatch, first, none, none, OSError(errno.EAGAIN, "no process"), last)

    async def scenario() -> None:
        await client.start()
        await client.ready()
        first.process.kill()
        first._theirs.shutdown(socket.SHUT_RDWR)
        while client.state == "ready":
            await asyncio.sleep(0.002)
        await up_again(client)
        assert client.restarts == 1
        await client.close()

    asyncio.run(scenario())


def test_a_first_engine_that_can_not_be_started_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    client = puppets(monkeypatch, *[OSError(errno.ENOMEM, "Cannot allocate memory")] * 3)

    async def scenario() -> None:
        await client.start()
        with pytest.raises(EngineDiedError, match="Cannot allocate memory"):
            await asyncio.wait_for(client.ready(), 30)

    asyncio.run(scenario())


def killed(*, told: bool = False) -> Any:
    """An engine that is gone."""
    ours, theirs = socket.socketpair()
    theirs.close()
    process = SimpleNamespace(kill=lambda: None, poll=lambda: -9)
    return SimpleNamespace(socket=ours, process=process, told=told)


def broken(error: Exception) -> Any:
    """An engine that can't load its model, and is about to end."""
    ours, theirs = socket.socketpair()
    theirs.sendall(frame(encode(Broken.of(error))))
    process = SimpleNamespace(kill=theirs.close, poll=lambda: 0)
    return SimpleNamespace(socket=ours, process=process, told=False)


@pytest.mark.parametrize("told", [False, True])
def test_an_engine_that_is_killed_three_times_while_it_loads_is_named(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop refuses to write to what is closed, as the socket of an engine is that has ended."""
    client = puppets(monkeypatch, *(killed(told=told) for _ in range(3)))

    async def scenario() -> None:
        await client.start()
        with pytest.raises(EngineDiedError, match=r"^its process was killed by SIGKILL$"):
            await client.ready()
        await client.close()

    run(scenario())


@pytest.mark.parametrize(
    "first", [killed, lambda: broken(RankError("rank 1 was killed by SIGKILL"))], ids=["alone", "rank"]
)
def test_an_engine_that_ends_while_it_loads_is_started_again(
    first: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = puppets(monkeypatch, first(), OSError(errno.EAGAIN, "no process"), Puppet(Pong(0.0)))

    async def scenario() -> None:
        await client.start()
        await client.ready()
        assert (client.restarts, client.failure) == (1, None)
        await client.close()

    run(scenario())


def test_an_engine_that_refuses_its_model_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = puppets(monkeypatch, broken(ModelError("it has no layers")))

    async def scenario() -> None:
        await client.start()
        with pytest.raises(EngineDiedError, match=r"^it has no layers$"):
            await client.ready()
        await client.close()

    run(scenario())


def test_nothing_of_a_process_that_can_not_be_started_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", none)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="temporarily"):
        launch()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_a_stopped_engine_is_told_and_started_again(
    served: tuple[Server, ProcessClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = served
    before, restarts = answer(server), client.restarts
    monkeypatch.setattr(supervise, "PING_S", 0.25)  # from the next ping on
    assert client.process is not None
    os.kill(client.process.pid, signal.SIGSTOP)
    until(lambda: not client.answers)
    status, _, body = server.send("GET", "/health")
    assert status == 503
    assert "octavo:engine_up 0" in server.send("GET", "/metrics")[2].decode(), body
    until(lambda: client.restarts > restarts)
    monkeypatch.undo()
    until(lambda: server.send("GET", "/health")[0] == 200)
    assert answer(server) == before


@pytest.mark.slow
def test_what_is_under_way_at_two_ends_is_refused(served: tuple[Server, ProcessClient]) -> None:
    server, client = served
    body = {**LONG, "messages": [{"role": "user", "content": "What is 99 times 99?"}]}
    for _ in range(2):
        with talking(server, body) as reader:
            reader.chunk()
            assert client.process is not None
            os.kill(client.process.pid, signal.SIGKILL)
            while reader.chunk():
                pass
        until(lambda: server.send("GET", "/health")[0] == 503)
        until(lambda: server.send("GET", "/health")[0] == 200)
    status, headers, data = server.send("POST", "/v1/chat/completions", body)
    assert status == 500
    assert headers["x-should-retry"] == "false"
    assert "twice" in json.loads(data)["error"]["message"]
    assert answer(server)


@pytest.mark.slow
def test_a_model_that_can_not_be_loaded(model: Model, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(model.file.path).read_bytes()[:100_000])
    with pytest.raises(AssertionError) as caught, running(engine(str(broken)), model):
        pass
    assert EngineDiedError.__name__ in str(caught.value)
    assert str(broken) in str(caught.value)


COMMAND = [sys.executable, "-m", "octavo", "serve", "demo", "--port", "0", "--threads", "1", "-np", "4"]

ENDED = "octavo: demo stopped\n"


class Command:
    """`octavo serve demo`, from its start until it answers."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen([*COMMAND, *options], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        assert re.fullmatch(r"octavo: loading \S+demo\.gguf\n", first), first
        under_way = "octavo: reading and packing weights\n", "octavo: compiling kernels for this CPU (once)\n"
        line = next(line for line in self.process.stderr if line not in under_way)
        found = re.fullmatch(r"octavo: demo is served at (https?)://127\.0\.0\.1:(\d+), with a chat page\n", line)
        assert found is not None, line
        self.scheme = found[1]
        self.server = Server(int(found[2]), None, None)  # type: ignore[arg-type]

    def end(self) -> int:
        """Its status; `said` has what it has written."""
        self.said = self.process.communicate(timeout=HANG_S)[1]
        return self.process.returncode


def metrics(server: Server) -> str:
    return server.send("GET", "/metrics")[2].decode()


def engines(pid: int) -> list[int]:
    """The processes that compute for a server, not those that compile grammars."""
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [one for one in found if b"octavo.server.worker" in Path(f"/proc/{one}/cmdline").read_bytes()]


def test_signals_that_end_a_server_but_for_one_that_is_ignored() -> None:
    before = {n: signal.signal(n, signal.SIG_DFL) for name in ENDING if (n := getattr(signal, name, None))}
    try:
        found = set(_ending())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
        ignoring = set(_ending())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert found - ignoring == {signal.SIGHUP}
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1} <= ignoring


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1], ids=str)
def test_a_signal_lets_replies_end(number: signal.Signals) -> None:
    command = Command()
    with talking(command.server, {**LONG, "n": 2}) as reader:
        data = reader.chunk()
        (child,) = engines(command.process.pid)
        os.kill(child, number)
        command.process.send_signal(number)
        until(lambda: command.server.send("GET", "/health")[0] == 503)
        assert command.server.send("POST", "/v1/chat/completions", ASK)[0] == 503
        while chunk := reader.chunk():
            data += chunk
    assert data.endswith(b"[DONE]\n\n")
    assert command.end() == 0
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("second", [True, False])
def test_an_end_that_does_not_wait(second: bool) -> None:
    """Replies that run, wait in the queue or are not streamed: each is told why it ends, and the log has no fault."""
    command = Command("--drain-timeout", "60" if second else "0.5")
    vectors = {"prompt": "1 2 3 " * 100, "echo": True, "max_tokens": 0, "logprobs": 1, "n": 8}
    asked = [("/v1/chat/completions", {**LONG, "stream": i % 2 == 0, "n": 2}) for i in range(8)]
    asked += [("/v1/completions", vectors), ("/v1/messages", {**ASK, "max_tokens": 900, "temperature": 1.0})]
    with ThreadPoolExecutor(len(asked)) as pool, talking(command.server, {**LONG, "n": 2}) as reader:
        answers = [pool.submit(command.server.send, "POST", path, body) for path, body in asked]
        until(lambda: "octavo:num_requests_waiting 0" not in metrics(command.server))
        command.process.send_signal(signal.SIGTERM)
        if second:
            until(lambda: command.server.send("GET", "/health")[0] == 503)
            command.process.send_signal(signal.SIGTERM)
        last = b"".join(iter(reader.chunk, b""))
        assert command.end() == 0
    assert events(last)[-1]["error"]["code"] == "server_ending"
    for (path, _), (status, headers, body) in zip(asked, (answer.result() for answer in answers), strict=True):
        if status == 200:
            assert events(body)[-1]["error"]["message"] == "The server is shutting down"
        else:
            assert (status, headers["retry-after"]) == (529 if path == "/v1/messages" else 503, "30")
            assert json.loads(body)["error"]["message"] == "The server is shutting down"
    assert re.fullmatch(rf"octavo: WARNING: cutting off \d+ replies\n{ENDED}", command.said)


@pytest.mark.slow
def test_an_engine_whose_front_is_killed_ends() -> None:
    command = Command()
    (child,) = engines(command.process.pid)
    command.process.kill()
    command.end()
    until(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.slow
def test_what_is_said_of_tls_and_of_requests() -> None:
    command = Command("--ssl-cert-file", CERT, "--ssl-key-file", KEY, "--log-requests", "--seed", "7", "-n", "3")
    assert command.scheme == "https"
    trusted = ssl.create_default_context(cafile=CERT)
    body = json.dumps({"prompt": "What is"})
    with closing(HTTPSConnection("127.0.0.1", command.server.port, timeout=HANG_S, context=trusted)) as connection:
        connection.request("POST", "/completion", body, {"Content-Type": "application/json", "x-request-id": "mine"})
        response = connection.getresponse()
        assert (response.status, response.headers["x-request-id"]) == (200, "mine")
        assert json.loads(response.read())["tokens_predicted"] == 3
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 0
    line, ended = command.said.splitlines(keepends=True)
    assert ended == ENDED
    told = (
        r"octavo: \S+ request id=mine method=POST path=/completion status=200 model=demo prompt=\d+ cached=0 reply=3 "
    )
    assert re.match(told, line)
