"""Running the server: a socket, uvicorn on it, and its end in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from octavo.errors import HostMemoryError, UsageError
from octavo.io.gguf import GGUFFile
from octavo.server.app import Around, make_app
from octavo.server.engine.client import EngineClient
from octavo.server.engine.launch import ENDING
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ending
from octavo.server.http.connection import SPARE, connection_class
from octavo.server.routes.response_store import ResponseStore
from octavo.server.serve_options import ServerOptions
from octavo.text import Tokenizer
from octavo.text.tokenizers_package import be_sequential

log = logging.getLogger("octavo")
KEEP_ALIVE_S = 75
BACKLOG = 2048
FLUSH_S = 1.0
"""Seconds that the last words of replies have to reach their clients."""
THREADS = 2
"""Threads for long texts: each keeps the memory that its longest text took."""
ACCEPT_PAUSE_S = 0.5
"""Seconds after which connections are taken again that there was no descriptor for."""
AT_ONCE = 128
"""Connections that are taken before anything else has its turn."""
DESCRIPTORS = 64
"""Descriptors beside those of connections."""


class Server(uvicorn.Server):
    """Leaves signals to us, and takes connections itself: uvloop tries without a pause where it can take none."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._taking = dict[asyncio.Task[None], socket.socket]()
        self._wants = False
        listens = sockets or []
        await super().startup([] if LISTENS else listens)
        for sock in listens if LISTENS else ():
            sock.setblocking(False)
            self._listen(sock)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for sock in (sockets or []) if LISTENS else ():
            asyncio.get_running_loop().remove_reader(sock)
        await super().shutdown(sockets)

    def _listen(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        """Take the connections that are there; where out of resources, all after a pause."""
        loop = asyncio.get_running_loop()
        for _ in range(AT_ONCE):
            try:
                found, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if not self._wants:
                    log.warning("connections have to wait, as none can be accepted: %s", error.strerror or error)
                self._wants = True
                loop.remove_reader(sock)
                loop.call_later(ACCEPT_PAUSE_S, self._listen, sock)
                return
            self._wants = False
            found.setblocking(False)
            self._taking[task := loop.create_task(self._connect(found))] = found
            task.add_done_callback(lambda task: self._taking.pop(task, None))
            room = self._kind.limits.connections - len(self.server_state.connections)
            if self.config.is_ssl and len(self._taking) > max(SPARE, room + SPARE):
                longest = next(iter(self._taking))
                longest.cancel()
                self._taking.pop(longest).close()

    @property
    def _kind(self) -> Any:
        return self.config.http_protocol_class

    async def _connect(self, sock: socket.socket) -> None:
        """Make a connection of a socket; with TLS its handshake has the time of a head."""
        loop, config = asyncio.get_running_loop(), self.config

        def protocol() -> asyncio.Protocol:
            found: asyncio.Protocol = self._kind(
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )
            return found

        limit = self._kind.limits.header_time if config.is_ssl else None
        try:
            await loop.connect_accepted_socket(protocol, sock, ssl=config.ssl, ssl_handshake_timeout=limit)
        except (OSError, asyncio.CancelledError) as error:
            log.info("a connection failed before its first request: %s", error or type(error).__name__)
            sock.close()


LISTENS = sys.platform != "win32"
"""Whether event loops say that a socket has a connection."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to its end, on uvloop where that is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as factory
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UsageError for an address that can't be listened on."""
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
        advice = "try another --port; 0 takes any free one"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            advice = "--host takes a name or address of this machine; 0.0.0.0: all of them"
        raise UsageError(f"can't listen on host {host}, port {port}: {error.strerror or error} ({advice})") from None
    return sock


def room_for(connections: int) -> int:
    """This many connections, or as many as the system's limit of descriptors leaves, which is raised for them."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return connections
    soft, hard = (limit if limit >= 0 else sys.maxsize for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    others = 2 * SPARE + DESCRIPTORS
    if soft < connections + others:
        soft = min(connections + others, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if soft < connections + others:
        log.warning("--max-connections is only %d: the system's limit is %d files", max(soft - others, 1), soft)
    return max(1, min(connections, soft - others))


def _threads() -> ThreadPoolExecutor:
    """The threads for long texts, begun now: later there may be no room for one. Raises HostMemoryError."""
    pool, all_there = ThreadPoolExecutor(THREADS, "front"), Barrier(THREADS + 1)
    try:
        for _ in range(THREADS):
            pool.submit(all_there.wait)
    except RuntimeError as error:
        all_there.abort()
        raise HostMemoryError(f"the system can't start a thread for the server: {error}") from None
    all_there.wait()
    return pool


async def serve(
    client: EngineClient, file: GGUFFile, options: ServerOptions, sock: socket.socket,
    told: Callable[[Service], None] = lambda service: None, around: Around = lambda app: app,
) -> None:
    """Serve a model until a signal to end comes, or until its engine can't be loaded.

    `told` is called once the model is loaded; `around` is that of `make_app`. Raises EngineDiedError where loading
    fails, UsageError for a wrong argument.
    """
    with contextlib.ExitStack() as closing:
        store = None
        if not options.secret:  # else the front keeps responses
            store = closing.enter_context(contextlib.closing(ResponseStore(options.data_dir)))
        await _serve(client, file, options, sock, told, store, around)


async def _serve(
    client: EngineClient, file: GGUFFile, options: ServerOptions, sock: socket.socket, told: Callable[[Service], None],
    store: ResponseStore | None, around: Around,
) -> None:
    be_sequential()
    asyncio.get_running_loop().set_default_executor(_threads())
    service = Service(client, file, Tokenizer.from_gguf(file), options)
    server = Server(config_of(make_app(service, store, around), options))
    await client.start()
    # While the model loads: it keeps Python's lock for a second, in which no stream would go on.
    Thread(target=service.grammars.prepare, name="grammars", daemon=True).start()
    running = asyncio.get_running_loop().create_task(server.serve([sock]))
    signalled = asyncio.get_running_loop().create_task(until_signal())
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
        await finish(server)
        server.should_exit = server.force_exit = True
        await running
        await client.close()


def config_of(app: ASGIApp, options: ServerOptions) -> uvicorn.Config:
    """How uvicorn is run: without its log and its own ideas of proxies."""
    limits, shown = options.limits, options.certificate
    return uvicorn.Config(
        app, http=connection_class(limits), ws="none", lifespan="off", log_config=None, log_level="error",
        access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S, backlog=BACKLOG,
        timeout_graceful_shutdown=1, ssl_certfile=shown and shown.cert, ssl_keyfile=shown and shown.key,
    )


async def until_signal() -> None:
    """Wait for the first signal that ends the server; after it a second one ends it at once."""
    await _signal_from_now().wait()


def _signal_from_now() -> asyncio.Event:
    """Is set by the next signal to end; never where signals can't be taken, as in another thread than the main one."""
    came, loop = asyncio.Event(), asyncio.get_running_loop()
    with contextlib.suppress(RuntimeError, ValueError):
        for number in _ending():
            try:
                loop.add_signal_handler(number, came.set)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(came.set))
    return came


def _ending() -> Iterator[signal.Signals]:
    """The signals that end the server. One that is ignored stays so, as SIGHUP under nohup, but for those that ask."""
    for name in ENDING:
        number = getattr(signal, name, None)
        asks = name in ("SIGTERM", "SIGINT")
        if number is not None and (asks or signal.getsignal(number) is not signal.SIG_IGN):
            yield number


async def _drain(service: Service) -> None:
    """Take no more requests, and wait until those under way are at their ends, as long as they may take."""
    service.draining = True
    await drained(lambda: service.metrics.replies, service.options.limits.drain_time, lambda: service.compiling)


async def drained(replies: Callable[[], int], limit: float, others: Callable[[], int] = lambda: 0) -> None:
    """Wait until no replies or others are under way, up to `limit` seconds, or to the next signal to end."""
    again, loop = _signal_from_now(), asyncio.get_running_loop()
    end = loop.time() + limit
    while (replies() or others()) and not again.is_set() and loop.time() < end:
        await asyncio.sleep(0.05)
    if n := replies():
        log.warning("cutting off %d replies", n)


async def finish(server: uvicorn.Server) -> None:
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
