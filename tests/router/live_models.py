"""A front of models on a real socket in this process; each model's server, and its engine, are processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from octavo.batch.served.routes import with_batches
from octavo.replicas.local import LocalProcess
from octavo.router.catalog import Catalog, KnownModel
from octavo.router.front import ModelsFront
from octavo.router.serve import serve_models
from octavo.server.serve import bind
from octavo.server.serve_options import EngineOptions, Limits, ServerOptions
from tests.server.in_thread import in_thread
from tests.server.live_server import Server

OPTIONS = ServerOptions(name="models", secret="between-us", limits=Limits(drain_time=5.0, ping=1.0))
ENGINE = EngineOptions("demo", device="cpu", threads=1, max_sequences=8, kv_memory=16 << 20, asks=True)


def served(name: str, path: str = "demo", *, aliases: tuple[str, ...] = (), **engine: Any) -> KnownModel:
    """The model at `path` under a name."""
    made = msgspec.structs.replace(ENGINE, path=path, **engine)
    return KnownModel(made, replace(OPTIONS, name=name, aliases=aliases), "argument")


@contextmanager
def serving(
    known: Sequence[KnownModel] | Callable[[], Catalog], *, memory: int | None = None, idle: float | None = None,
    options: ServerOptions = OPTIONS, pulls: bool = True, deletes: bool = False, unit: str = "G",
) -> Iterator[tuple[Server, ModelsFront]]:
    """A front of these models, until the block ends."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    given, catalog = replace(options, port=port), known if callable(known) else lambda: Catalog(known)

    async def serve(told: Callable[[ModelsFront], None]) -> None:
        await with_batches(given, 8, lambda around: serve_models(
            catalog, given, sock, memory=memory, unit=unit, idle=idle, told=told, pulls=pulls, deletes=deletes,
            around=around,
        ))

    try:
        with in_thread(serve, "front") as (loop, front):
            yield Server(port, front, loop), front  # type: ignore[arg-type]
    finally:
        sock.close()


def pid_of(front: ModelsFront, name: str) -> int:
    """The process of a model's server."""
    pool = front.models.models[name].pool
    assert pool is not None
    running = pool.replicas[0].running
    assert isinstance(running, LocalProcess)
    return running.process.pid


def engine_of(pid: int) -> int:
    """The process of the engine of a server."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (engine,) = (one for one in children if b"octavo.server.worker" in Path(f"/proc/{one}/cmdline").read_bytes())
    return int(engine)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """All processes that a process has started, and they."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    return [*found, *(below for one in found for below in children_of(one))]
