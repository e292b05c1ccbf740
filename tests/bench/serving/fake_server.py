"""A server over real sockets whose times are known: it speaks as much of OpenAI's protocol as a client needs."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fake:
    """How the server behaves, and what it was asked.

    first, gap  seconds before a reply's first text, and between texts, at least
    holds       whether the i-th text of a reply to a request has to wait for something else
    written     when each text was, by `time.perf_counter`
    n_vocab     what /v1/models says, if it says it
    status      of each answer to a completion
    broken      "cut": the connection ends in the middle; "error": an event with an error comes; "text": no JSON comes
    """

    first: float = 0.02
    gap: float = 0.005
    holds: Callable[[dict[str, Any], int], bool] = lambda request, i: False
    n_vocab: int | None = 1000
    status: int = 200
    broken: str | None = None
    key: str | None = None
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    left: int = 0
    written: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.key and headers.get("authorization") != f"bearer {self.key}".lower():
            writer.write(b'HTTP/1.1 401 Unauthorized\r\nContent-Length: 9\r\n\r\n{"no": 1}')
        elif head.startswith("GET"):
            self.models(writer)
        else:
            request = json.loads(body)
            self.asked.append({"path": head.split()[1], **request})
            await self.complete(request, "/chat/" in head, reader, writer)
        writer.close()

    def models(self, writer: asyncio.StreamWriter) -> None:
        meta = {} if self.n_vocab is None else {"meta": {"n_vocab": self.n_vocab}}
        text = json.dumps({"object": "list", "data": [{"id": "fake-7b", **meta}]})
        writer.write(f"HTTP/1.1 200 OK\r\nServer: fake\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    async def complete(
        self, request: dict[str, Any], chat: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.status != 200:
            writer.write(f"HTTP/1.1 {self.status} Bad\r\nConnection: close\r\n\r\nno room".encode())
            return
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        gone = asyncio.create_task(reader.read())
        try:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            async for event in self.events(request, chat):
                if gone.done():
                    self.left += 1
                    return
                writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                await writer.drain()
            if self.broken != "cut":
                writer.write(b"0\r\n\r\n")
        except ConnectionError:
            self.left += 1
        finally:
            self.running -= 1
            gone.cancel()

    async def events(self, request: dict[str, Any], chat: bool) -> AsyncIterator[bytes]:
        yield b": ping\n\n"
        await asyncio.sleep(self.first)
        for i in range(request["max_tokens"]):
            if i:
                await asyncio.sleep(self.gap)
            if i == 2 and self.broken == "cut":
                return
            if i == 2 and self.broken == "error":
                yield b'data: {"error": {"message": "engine gone"}}\n\n'
                return
            if i == 2 and self.broken == "text":
                yield b"data: hello\n\n"
                return
            while self.holds(request, i):
                await asyncio.sleep(0.001)
            self.written.append(time.perf_counter())
            piece = {"delta": {"content": f"w{i} "}} if chat else {"text": f"w{i} "}
            yield event({"choices": [{"index": 0, **piece}]})
        given = request.get("prompt") or " ".join(m["content"] for m in request["messages"])
        count = len(given) if isinstance(given, list) else 2 * len(given.split()) + 7
        usage = {"prompt_tokens": count, "completion_tokens": request["max_tokens"],
                 "prompt_tokens_details": {"cached_tokens": 5}}
        yield event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """Runs the server in a thread of its own."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(fake.handle, "127.0.0.1", 0, limit=1 << 20))
    fake.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(end_all())
        loop.close()


async def end_all() -> None:
    """End what is still being answered."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the server is about to do."""
    while not condition():
        time.sleep(0.002)
