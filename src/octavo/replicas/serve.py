"""Running the front: replicas, a socket before them, and their end in order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from octavo.replicas.front import Front, make_front
from octavo.replicas.pool import Launcher, Pool
from octavo.server.serve import Server, config_of, drained, finish, until_signal
from octavo.server.serve_options import ServerOptions

log = logging.getLogger("octavo")


async def serve_front(
    launcher: Launcher, n: int, options: ServerOptions, sock: socket.socket,
    told: Callable[[Front], None] = lambda front: None,
) -> None:
    """Serve a model by `n` replicas until a signal to end comes, or until none can load it.

    `told` is called once one has it loaded. Raises EngineDiedError where the model can't be loaded, UsageError for a
    wrong argument.
    """
    loop = asyncio.get_running_loop()
    pool = Pool(launcher, n, options.limits.drain_time, options.secret)
    front = Front(pool, options)
    server = Server(config_of(make_front(front), options))
    pool.start()
    running = loop.create_task(server.serve([sock]))
    signalled = loop.create_task(until_signal())
    try:
        ready = loop.create_task(pool.ready())
        await asyncio.wait([ready, signalled, running], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            told(front)
            await asyncio.wait([signalled, running], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        pool.ending = True
        await drained(lambda: front.under_way, options.limits.drain_time)
    finally:
        signalled.cancel()
        closing = loop.create_task(pool.close())
        await finish(server)
        server.should_exit = server.force_exit = True
        await running
        await closing
