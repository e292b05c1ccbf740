"""A front on a real socket in this process, with replicas that can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any

from octavo.replicas.front import Front
from octavo.replicas.local import LocalLauncher, LocalProcess
from octavo.replicas.pool import Launcher
from octavo.replicas.serve import serve_front
from octavo.server.serve import bind
from octavo.server.serve_options import EngineOptions, Limits, ServerOptions
from tests.limits import HANG_S
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
    ready, found, failed = Event(), list[Any](), list[BaseException]()

    async def run() -> None:
        def told(front: Front) -> None:
            found.append(front)
            ready.set()

        task = asyncio.get_running_loop().create_task(
            serve_front(launcher, n, replace(options, port=port), sock, told)
        )
        found.append((asyncio.get_running_loop(), task))
        try:
            await task
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = Thread(target=lambda: asyncio.run(run()), name="front")
    thread.start()
    try:
        assert ready.wait(HANG_S)
        assert not failed, failed
        (loop, _), front = found
        until(lambda: len(front.pool.up) == n)
        yield Server(port, front, loop), front
    finally:
        loop, task = found[0]
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        thread.join(HANG_S)
        sock.close()
        assert not thread.is_alive()


def local(n: int, options: ServerOptions = OPTIONS) -> LocalLauncher:
    """What starts real processes."""
    return LocalLauncher(n, ENGINE, options)


def kill(front: Front, number: int, by: int = signal.SIGKILL) -> None:
    """Kill a replica's process, and so its engine, if it is there; or send another signal."""
    running = front.pool.replicas[number].running
    assert running is None or isinstance(running, LocalProcess)
    if running is not None and running.process.poll() is None:
        os.kill(running.process.pid, by)
