"""A server on a real socket in this process: its loop and its engine each have a thread."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import uvicorn.server

from octavo.batch.served.routes import with_batches
from octavo.runtime import Model
from octavo.server.engine.client import EngineClient
from octavo.server.generation.service import Service
from octavo.server.serve import bind, serve
from octavo.server.serve_options import Limits, ServerOptions
from tests.limits import HANG_S
from tests.server.in_thread import in_thread
from tests.server.thread_client import ThreadClient

TICK_S = 0.005


async def _tick(delay: float) -> None:
    await asyncio.sleep(min(delay, TICK_S))


# uvicorn looks ten times a second whether it is to end, and pauses for a tenth of one before it does.
uvicorn.server.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": _tick})  # type: ignore[attr-defined]


@dataclass
class Server:
    """One that runs; `service` is for a look inside, `secret` that of its front, which is told with each request."""

    port: int
    service: Service
    loop: asyncio.AbstractEventLoop
    secret: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """A request with a body of JSON, or of bytes as they are: status, headers (in lower case) and body."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        usual = {} if data is None else {"Content-Type": "application/json"}
        if self.secret:
            usual["x-octavo-handover"] = f"{self.secret} 0"
        try:
            connection.request(method, path, data, {**usual, **(headers or {})})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Any:
        status, _, body = self.send("GET", path, headers=headers)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, **body: Any) -> Any:
        """The answer to a request that is right."""
        status, _, answer = self.send("POST", path, body)
        assert status == 200, answer
        return json.loads(answer)

    def post_list(self, path: str, body: list[Any]) -> Any:
        """The same with a list as the body."""
        status, _, answer = self.send("POST", path, body)
        assert status == 200, answer
        return json.loads(answer)

    def refused(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and error of a request that is wrong."""
        status, _, answer = self.send("POST", path, body, headers)
        assert status >= 400, answer
        return status, json.loads(answer)["error"]

    def chat(self, text: str, **more: Any) -> Any:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": text}], **more)


def events(body: bytes) -> list[Any]:
    """What the events of a stream say, in order; "[DONE]" as it is."""
    parts = body.split(b"\n\n")
    assert parts.pop() == b""
    data = [part.removeprefix(b"data: ") for part in parts if not part.startswith(b":")]
    assert all(b"\n" not in one for one in data)
    return [one.decode() if one == b"[DONE]" else json.loads(one) for one in data]


@contextmanager
def running(
    client: EngineClient, model: Model, *, limits: Limits | None = None, sent_ahead: int | None = None, **options: Any
) -> Iterator[Server]:
    """A server over an engine's client, until the block ends.

    sent_ahead  bytes that the system takes of the server before a client reads them
    """
    sock = bind("127.0.0.1", 0)
    if sent_ahead is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_ahead)
    port = sock.getsockname()[1]
    given = ServerOptions(name="demo", port=port, limits=limits or Limits(drain_time=0), **options)

    async def run(told: Callable[[Service], None]) -> None:
        await with_batches(given, 8, lambda around: serve(client, model.file, given, sock, told, around))

    with in_thread(run, "server") as (loop, service):
        yield Server(port, service, loop, given.secret)


@contextmanager
def running_model(model: Model, *, embeddings: bool = False, **options: Any) -> Iterator[Server]:
    """A server of a loaded model."""
    with running(ThreadClient(model, embeddings=embeddings), model, **options) as server:
        yield server
