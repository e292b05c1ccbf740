"""A front on a real socket in this process, with replicas that can be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from octavo.replicas.front import Front
from octavo.replicas.local import LocalLauncher, LocalProcess
from octavo.replicas.pool import Launcher
from octavo.replicas.serve import serve_front
from octavo.server.serve import bind
from octavo.server.serve_options import EngineOptions, Limits, ServerOptions
from tests.server.in_thread import in_thread
from tests.server.live_server import Server
from tests.server.scripted_engine import until

SECRET = "between-us"
OPTIONS = ServerOptions(name="demo", secret=SECRET, limits=Limits(drain_time=5.0, ping=30.0))
ENGINE = EngineOptions("demo", device="cpu", threads=1, max_sequences=16, kv_memory=64 << 20)


@contextmanager
def fronting(launcher: Launcher, n: int, options: ServerOptions = OPTIONS) -> Iterator[tuple[Server, Front]]:
    """A front of `n` replicas, until the block ends; all of them are up."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    given = replace(options, port=port)

    async def serve(told: Callable[[Front], None]) -> None:
        await serve_front(launcher, n, given, sock, told)

    try:
        with in_thread(serve, "front") as (loop, front):
            until(lambda: len(front.pool.up) == n)
            yield Server(port, front, loop), front
    finally:
        sock.close()


def local(n: int, options: ServerOptions = OPTIONS) -> LocalLauncher:
    """What starts real processes."""
    return LocalLauncher(n, ENGINE, options)


def kill(front: Front, number: int, by: int = signal.SIGKILL) -> None:
    """Kill a replica's process, and so its engine, if it is there; or send another signal."""
    running = front.pool.replicas[number].running
    assert running is None or isinstance(running, LocalProcess)
    if running is not None and running.process.poll() is None:
        os.kill(running.process.pid, by)
