"""A server whose engine says what a test tells it to, and its bytes on the wire."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from octavo.runtime import Model
from octavo.server.engine.client import NO_STATS
from octavo.server.engine.engine_protocol import Add, Cancel, EngineOutput, Prefill, StepOutputs
from octavo.server.engine.fake import FakeClient
from octavo.server.serve_options import Limits
from tests.limits import HANG_S
from tests.server.live_server import Server, running

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 12 times 7?"}], "temperature": 0}
CHAT = "/v1/chat/completions"


def request(body: dict[str, Any], path: str = CHAT) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def until(condition: Callable[[], bool], seconds: float = HANG_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Played:
    """A server whose engine says what a test tells it to."""

    def __init__(self, server: Server, fake: FakeClient) -> None:
        self.server, self.fake = server, fake

    def adds(self) -> list[Add]:
        return [message for message in self.fake.sent if isinstance(message, Add)]

    def cancelled(self) -> set[int]:
        return {one for message in self.fake.sent if isinstance(message, Cancel) for one in message.ids}

    def asked(self, n: int = 1) -> Add:
        """The latest request, once there are this many."""
        until(lambda: len(self.adds()) >= n)
        return self.adds()[n - 1]

    def say(self, *rows: EngineOutput) -> None:
        self.server.loop.call_soon_threadsafe(self.fake.deliver, StepOutputs(list(rows), NO_STATS, 0.01))

    def answering(self, *rows: EngineOutput) -> Thread:
        """Says rows of the first reply once it is asked for, and some comments have been sent."""

        def answer() -> None:
            self.asked()
            time.sleep(0.3)
            self.say(*rows)

        thread = Thread(target=answer)
        thread.start()
        return thread

    def die(self) -> None:
        self.server.loop.call_soon_threadsafe(self.fake.died, "killed")


@contextmanager
def playing(model: Model, *, secret: str = "", **limits: float) -> Iterator[Played]:
    """With no comments where no `ping` is given, so that a test may take its time."""
    fake, given = FakeClient(), {"ping": 1000.0, **limits}
    with running(fake, model, limits=Limits(drain_time=0, **given), secret=secret) as server:  # type: ignore[arg-type]
        yield Played(server, fake)


def begun(one: int, token: int = 300, **more: Any) -> EngineOutput:
    return EngineOutput(one, token, prefill=Prefill(0, 0, 0.0), **more)


class Reader:
    """The bytes of a response as they come: its head, then its HTTP chunks."""

    def __init__(self, sock: socket.socket) -> None:
        self.file = sock.makefile("rb")

    def close(self) -> None:
        self.file.close()

    def head(self) -> bytes:
        lines = []
        while (line := self.file.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines)

    def chunk(self) -> bytes:
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        assert self.file.read(2) == b"\r\n"
        return data
