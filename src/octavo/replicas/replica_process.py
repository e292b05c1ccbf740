"""A replica's process, and its start. It imports its server and starts its engine's process, which imports as well, at
once: where it is told later what to serve, both are done by then.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing
from importlib import import_module
from select import select
from threading import Thread

import msgspec

from octavo.replicas.setup import ALIVE, Setup, encode
from octavo.server.engine.channel import Channel
from octavo.server.engine.launch import launch

Started = tuple[subprocess.Popen[bytes], socket.socket]
"""A process, and the socket on which it answers."""


def begin(level: int, environment: Mapping[str, str]) -> Started:
    """Start one that waits for its setup, and logs so much. Raises OSError where there is no room for it."""
    ours, theirs = socket.socketpair()
    with theirs, ExitStack() as failing:
        failing.enter_context(ours)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # while it imports
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "octavo.replicas.replica_process", str(theirs.fileno()), str(level)],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **environment},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        failing.pop_all()
    return process, ours


def start(setup: Setup, begun: Started | None = None) -> Started:
    """Have one serve: `begun`, or another. Raises OSError where there is no room for it, or it is gone."""
    process, sock = begun or begin(setup.level, setup.environment)
    try:
        Channel(sock).send(encode(setup))
    except OSError:
        sock.close()
        raise
    return process, sock


def main() -> None:
    """Run with the number of a socket that this process was given, and how much it is to say.

    SIGINT ends it without Python's traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    sock = socket.socket(fileno=int(sys.argv[1]))
    channel = Channel(sock)
    logging.getLogger("octavo").setLevel(int(sys.argv[2]))
    waits = not select([sock], [], [], 0.0)[0]
    with closing(launch(grouped=True, waits=waits)) as launched:
        Thread(target=import_module, args=("octavo.replicas.replica",), name="import").start()
        messages = channel.received()
        first = next(messages, None)
        if first is None:
            return
        setup = msgspec.msgpack.decode(first, type=Setup)
        called = (setup.called or f"replica {setup.number}").replace("%", "%%")
        logging.basicConfig(format=f"octavo: %(levelname)s: {called}: %(message)s", level=logging.WARNING)
        if setup.server.log_requests:
            logging.getLogger("octavo.requests").setLevel(logging.INFO)
        told, going = launched.tell(setup.of_engine), Future[None]()
        Thread(target=_listen, args=(channel, messages, going), daemon=True, name="front").start()
        from octavo.replicas.replica import serve_front

        serve_front(channel, setup, told, going)


def _listen(channel: Channel, messages: Iterator[bytes], going: Future[None]) -> None:
    """Answer a front that asks for signs of life, and set `going` at its `Go`; when it is gone, end."""
    try:
        for message in messages:
            if message == ALIVE:
                channel.send(ALIVE)
            elif not going.done():  # it comes once for each engine that asked before the first one
                going.set_result(None)
    finally:
        os._exit(0)  # its engine ends with it


if __name__ == "__main__":
    main()
