"""Servers of models that compute nothing: they ask for room, listen, and end when they are told to."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from octavo.errors import OctavoError
from octavo.replicas.replica import Served
from octavo.router.catalog import Catalog, KnownModel
from octavo.router.model_process import Spare
from octavo.router.models import Models
from octavo.server.engine.engine_protocol import Asks, Loading
from octavo.server.serve_options import EngineOptions, Limits, ServerOptions

WELL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
LIMITS = Limits(drain_time=0.2)
GIB = 1 << 30


class FakeServer:
    """The process of a model, see `Running`."""

    def __init__(self, world: World, launcher: FakeLauncher) -> None:
        self.world, self.launcher, self.name = world, launcher, launcher.name
        self.gone = asyncio.Event()

    async def served(self) -> Served:
        world = self.world
        if (wrong := world.wrong.get(self.name)) is not None:
            raise wrong
        if self.name in world.silent:
            await asyncio.Event().wait()
        await self.launcher.allow(Asks(world.sizes[self.name], 0, 0, 0, world.free))
        self.launcher.show(Loading("reading", 1, 2))
        await world.may_load.wait()
        world.loaded.append(self.name)
        world.here.add(self.name)
        world.most = max(world.most, sum(world.sizes[name] for name in world.here))
        return Served("127.0.0.1", world.port, 16 << 20, 1 << 20)

    async def ended(self) -> str:
        await self.gone.wait()
        return "it was killed"

    def stop(self) -> None:
        self.end()

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        self.world.here.discard(self.name)
        self.gone.set()


class FakeLauncher:
    """See `ModelLauncher`."""

    def __init__(
        self, world: World, model: KnownModel, allow: Callable[[Asks], Awaitable[None]],
        show: Callable[[Loading], None], spare: FakeSpare | None,
    ) -> None:
        self.world, self.name, self.allow, self.show = world, model.name, allow, show
        if spare is not None:
            world.spares.remove(spare)
            world.began.append(model.name)

    async def start(self, number: int) -> FakeServer:
        self.world.servers[self.name] = server = FakeServer(self.world, self)
        return server

    async def close(self) -> None:
        pass


class FakeSpare(Spare):
    """A process that waits for a model."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.spares.append(self)

    async def close(self) -> None:
        self.world.spares.remove(self)


class World:
    """What tests set and see.

    sizes     bytes that each model takes
    free      bytes that are free where engines look
    wrong     why a model can't be loaded
    silent    names of models whose processes never ask for room
    may_load  is set unless loading is to wait
    loaded    names, in the order in which they were loaded; those that are are `here`
    most      bytes that were taken at a time
    spares    processes that wait for a model, and names of models that `began` with one
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes, self.port = sizes, 0
        self.wrong = dict[str, OctavoError]()
        self.servers, self.silent = dict[str, FakeServer](), set[str]()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.loaded, self.here, self.most = list[str](), set[str](), 0
        self.free: int | None = None
        self.spares, self.began = list[FakeSpare](), list[str]()


def none() -> Spare:
    """There is room for no process beside those of models."""
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def known(name: str, queue: int = 3, tags: tuple[str, ...] = ()) -> KnownModel:
    server = ServerOptions(name, limits=replace(LIMITS, queue=queue), tags=tags)
    return KnownModel(EngineOptions(f"/{name}.gguf"), server, "argument")


@asynccontextmanager
async def worlds(
    sizes: dict[str, int], *, memory: int | None = None, idle: float | None = None, queue: int = 3, spares: bool = False
) -> AsyncIterator[tuple[World, Models]]:
    """Models of these sizes, in GiB, whose servers are fakes."""
    world = World({name: size * GIB for name, size in sizes.items()})

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(WELL)
        finally:
            writer.close()

    answering = set[asyncio.Task[None] | None]()
    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    world.port = listening.sockets[0].getsockname()[1]
    options = ServerOptions("models", limits=LIMITS, secret="between-us")
    models = Models(
        Catalog([known(name, queue) for name in sizes]), options, None if memory is None else memory * GIB, idle,
        partial(FakeLauncher, world), begin=partial(FakeSpare, world) if spares else none,
    )
    models.start()
    try:
        yield world, models
    finally:
        await models.close()
        listening.close()
        for task in answering:
            if task is not None:
                task.cancel()
        await asyncio.sleep(0)  # they close their sockets
        assert not world.here
        assert not world.spares
