"""Running a front: what is behind it, a socket before it, and their end in order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Protocol

from starlette.types import ASGIApp

from octavo.replicas.front import BaseFront, Front, make_front
from octavo.replicas.pool import Launcher, Pool
from octavo.server.app import Around
from octavo.server.serve import Server, config_of, drained, finish, until_signal
from octavo.server.serve_options import ServerOptions

log = logging.getLogger("octavo")


class Behind(Protocol):
    """The servers behind a front; `ending`: no more requests are taken."""

    ending: bool

    def start(self) -> None:
        """Start them."""

    async def ready(self) -> None:
        """Wait until requests can be answered. Raises OctavoError where that can't be."""

    async def close(self) -> None:
        """End them, which have the time to finish what is under way."""


async def serve_front(
    launcher: Launcher, n: int, options: ServerOptions, sock: socket.socket,
    told: Callable[[Front], None] = lambda front: None, around: Around = lambda app: app,
) -> None:
    """Serve a model by `n` replicas until a signal to end comes, or until none can load it.

    `told` is called once one has it loaded; `around` is that of `make_app`. Raises EngineDiedError where the model
    can't be loaded, UsageError for a wrong argument.
    """
    pool = Pool(launcher, n, options.limits.drain_time, options.secret)
    front = Front(pool, options)
    front.around = around
    await run_front(front, make_front(front), pool, sock, lambda: told(front))


async def run_front(
    front: BaseFront, app: ASGIApp, behind: Behind, sock: socket.socket, told: Callable[[], None]
) -> None:
    """Serve by what is behind a front until a signal to end comes; `told` is called once that is ready."""
    loop, options = asyncio.get_running_loop(), front.options
    server = Server(config_of(app, options))
    behind.start()
    running = loop.create_task(server.serve([sock]))
    signalled = loop.create_task(until_signal())
    try:
        ready = loop.create_task(behind.ready())
        await asyncio.wait([ready, signalled, running], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            told()
            await asyncio.wait([signalled, running], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        behind.ending = True
        await drained(lambda: front.under_way, options.limits.drain_time)
    finally:
        signalled.cancel()
        closing = loop.create_task(behind.close())
        await finish(server)
        server.should_exit = server.force_exit = True
        await running
        await closing
        front.store.close()
