"""A replica's process, and its start: the engine's process has its options before this one has imported its server."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing

import msgspec

from octavo.replicas.setup import Setup, encode
from octavo.server.engine.channel import Channel
from octavo.server.engine.launch import launch


def start(setup: Setup) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start one: its process, and the socket on which it answers. Raises OSError where there is no room for it."""
    ours, theirs = socket.socketpair()
    with theirs, ExitStack() as failing:
        failing.enter_context(ours)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # while it imports
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "octavo.replicas.replica_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **setup.environment},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        Channel(ours).send(encode(setup))
        failing.pop_all()
    return process, ours


def main() -> None:
    """Run with the number of a socket that this process was given. SIGINT ends it without Python's traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    messages = channel.received()
    first = next(messages, None)
    if first is None:
        return
    setup = msgspec.msgpack.decode(first, type=Setup)
    called = (setup.called or f"replica {setup.number}").replace("%", "%%")
    logging.basicConfig(format=f"octavo: %(levelname)s: {called}: %(message)s", level=logging.WARNING)
    logging.getLogger("octavo").setLevel(setup.level)
    if setup.server.log_requests:
        logging.getLogger("octavo.requests").setLevel(logging.INFO)
    with closing(launch(setup.of_engine, grouped=True)) as launched:
        from octavo.replicas.replica import serve_front

        serve_front(channel, messages, setup, launched)


if __name__ == "__main__":
    main()
