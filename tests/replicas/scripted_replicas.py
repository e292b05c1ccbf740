"""Replicas that do what a test tells them: answer so, cut a response off after some bytes, or pass it all on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from octavo.errors import OctavoError
from octavo.replicas.replica import Served
from tests.limits import HANG_S

WELL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
Script = Callable[[bytes], bytes | None]
"""What is answered to a request of some bytes; None to end the connection."""


def json_answer(status: int, body: bytes = b"{}") -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return head + body


class Scripted:
    """A replica at a port of this machine, in the loop of `scripted`.

    script  what it answers, where it does not pass requests on to `server`, a port
    cut     bytes of the next response to a POST, after which its connection ends; None for all of it
    health  what it says of itself
    poison  a request that has this ends all connections; others are answered after a while
    asked   requests that came, but for those for /health
    """

    def __init__(self, number: int) -> None:
        self.number, self.port = number, 0
        self.script: Script | None = None
        self.server: int | None = None
        self.cut: int | None = None
        self.poison: bytes | None = None
        self._writers = set[asyncio.StreamWriter]()
        self.health = WELL
        self.asked = list[bytes]()
        self.stopped = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError, EOFError):
            while True:
                data = await self._request(reader)
                if data.startswith(b"GET /health"):
                    writer.write(self.health)
                    continue
                self.asked.append(data)
                if self.poison is not None:
                    await asyncio.sleep(0.01 if self.poison in data else 0.1)
                    for one in self._writers if self.poison in data else ():
                        one.transport.abort()
                    if writer.transport.is_closing():
                        return
                    writer.write(WELL)
                    continue
                if self.script is None:
                    await self._pass_on(data, writer)
                    return
                answer = self.script(data)
                if answer is None:
                    writer.transport.abort()
                    return
                writer.write(answer)
        writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        return head + await reader.readexactly(int(size.partition(b":")[2]))

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        """What the server says to this request, up to the place where it is to be cut."""
        left, self.cut = self.cut, None if data.startswith(b"POST") else self.cut
        left = left if data.startswith(b"POST") else None
        reader, theirs = await asyncio.open_connection("127.0.0.1", self.server)
        try:
            theirs.write(data.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
            while found := await reader.read(1 << 16 if left is None else max(left, 1)):
                if left is not None:
                    found, left = found[:left], left - len(found[:left])
                writer.write(found)
                await writer.drain()
                if left == 0:
                    break
        finally:
            theirs.transport.abort()
        await asyncio.sleep(0.0)
        writer.close()


class ScriptedRunning:
    """See `Running`: it never ends but by `end`, and its next process is the same replica."""

    def __init__(self, replica: Scripted) -> None:
        self.replica, self._over = replica, asyncio.Event()

    async def served(self) -> Served:
        return Served("127.0.0.1", self.replica.port, 16 << 20, 1 << 20)

    async def ended(self) -> str:
        await self._over.wait()
        return "it was told to"

    def stop(self) -> None:
        self.replica.stopped += 1
        self._over.set()

    async def close(self) -> None:
        self._over.set()


class Killed(ScriptedRunning):
    """One that ends before it serves."""

    async def served(self) -> Served:
        await asyncio.Event().wait()
        raise AssertionError

    async def ended(self) -> str:
        return "it was killed"


class ScriptedLauncher:
    """Starts them; with `fails`, raises that instead. The first `ends` processes end before they serve."""

    def __init__(self, replicas: list[Scripted]) -> None:
        self.replicas = replicas
        self.fails: OctavoError | None = None
        self.ends = 0

    async def start(self, number: int) -> ScriptedRunning:
        if self.fails is not None:
            raise self.fails
        self.ends -= 1
        return Killed(self.replicas[number]) if self.ends >= 0 else ScriptedRunning(self.replicas[number])

    async def close(self) -> None:
        pass


@contextmanager
def scripted(n: int) -> Iterator[list[Scripted]]:
    """Replicas that listen, in a thread of their own."""
    replicas, ready = [Scripted(i) for i in range(n)], Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        servers = [await asyncio.start_server(one.talk, "127.0.0.1", 0) for one in replicas]
        for one, server in zip(replicas, servers, strict=True):
            one.port = server.sockets[0].getsockname()[1]
        ready.set()
        await over.wait()
        for server in servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    over = asyncio.Event()
    thread = Thread(target=lambda: loop.run_until_complete(run()), name="scripted")
    thread.start()
    try:
        assert ready.wait(HANG_S)
        yield replicas
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(HANG_S)
        loop.close()
