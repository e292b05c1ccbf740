"""Running the server: a socket, uvicorn on it, and its end in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import uvicorn

from octavo.errors import UsageError
from octavo.io.gguf import GGUFFile
from octavo.server.app import make_app
from octavo.server.client import EngineClient
from octavo.server.connection import connection_class
from octavo.server.errors import ending
from octavo.server.options import ServerOptions
from octavo.server.service import Service
from octavo.text import Tokenizer
from octavo.text.engine import be_sequential

log = logging.getLogger("octavo")
KEEP_ALIVE_S = 75
BACKLOG = 2048
FLUSH_S = 1.0
"""Seconds that the last words of replies have to reach their clients."""
THREADS = 2
"""Threads for long texts: each keeps the memory that its longest text took."""


class _Quiet(uvicorn.Server):
    """Leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to its end, on uvloop where that is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as factory
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UsageError for an address that can't be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as failing:
            sock = failing.enter_context(socket.socket(family, kind, protocol))
            exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)  # Windows: SO_REUSEADDR shares a port in use there
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if exclusive is None else exclusive, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            failing.pop_all()
    except OSError as error:
        raise UsageError(f"host {host} and port {port} can't be listened on: {error.strerror or error}") from None
    return sock


async def serve(
    client: EngineClient, file: GGUFFile, options: ServerOptions, sock: socket.socket,
    told: Callable[[Service], None] = lambda service: None,
) -> None:  # fmt: skip
    """Serve a model until SIGTERM or SIGINT, or until its engine can't be loaded.

    `told` is called once the model is loaded. Raises EngineDiedError where that fails, UsageError for a wrong argument.
    """
    be_sequential()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "front"))
    service = Service(client, file, Tokenizer.from_gguf(file), options)
    server = _Quiet(config(service))
    await client.start()
    # While the model loads: it keeps Python's lock for a second, in which no stream would go on.
    Thread(target=service.grammars.prepare, name="grammars", daemon=True).start()
    running = asyncio.get_running_loop().create_task(server.serve([sock]))
    signalled = asyncio.get_running_loop().create_task(_until_signal())
    try:
        ready = asyncio.get_running_loop().create_task(client.ready())
        await asyncio.wait([ready, signalled, running], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            told(service)
            await asyncio.wait([signalled, running], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        await _drain(service)
    finally:
        signalled.cancel()
        client.give_up(ending())
        await _finish(server)
        server.should_exit = server.force_exit = True
        await running
        await client.close()


def config(service: Service) -> uvicorn.Config:
    """How uvicorn is run: without its log and its own ideas of proxies."""
    limits, shown = service.options.limits, service.options.certificate
    return uvicorn.Config(
        make_app(service), http=connection_class(limits), ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S, backlog=BACKLOG,
        timeout_graceful_shutdown=1, ssl_certfile=shown and shown.cert, ssl_keyfile=shown and shown.key,
    )  # fmt: skip


async def _until_signal() -> None:
    """Wait for the first signal that ends the server; after it a second one ends it at once."""
    await _signal_from_now().wait()


def _signal_from_now() -> asyncio.Event:
    """Is set by the next signal to end; never where signals can't be taken, as in another thread than the main one."""
    came, loop = asyncio.Event(), asyncio.get_running_loop()
    with contextlib.suppress(RuntimeError, ValueError):
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, came.set)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(came.set))
    return came


async def _drain(service: Service) -> None:
    """Take no more requests, and wait until those under way are at their ends, as long as they may take."""
    service.draining = True
    limit = service.options.limits.drain_time
    again, loop = _signal_from_now(), asyncio.get_running_loop()
    end = loop.time() + limit
    while service.metrics.replies and not again.is_set() and loop.time() < end:
        await asyncio.sleep(0.05)
    if service.metrics.replies:
        log.warning("%d replies are cut off", service.metrics.replies)


async def _finish(server: uvicorn.Server) -> None:
    """Let requests say how they ended, then end those that can't: of clients that read nothing, or still send."""
    state, loop = server.server_state, asyncio.get_running_loop()
    end = loop.time() + FLUSH_S
    while state.tasks and loop.time() < end:
        await asyncio.sleep(0.02)
    if state.tasks:
        for connection in list(state.connections):
            connection.transport.abort()
        with _silent(logging.getLogger("uvicorn.error")):  # uvicorn logs a traceback for each
            for task in (tasks := list(state.tasks)):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
