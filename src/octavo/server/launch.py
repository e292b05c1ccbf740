"""The start of an engine's process, by itself: it imports what it needs while the front does so too."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

QUIET = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
"""Threads that wait for work sleep, so that a server with nothing to do takes no time of cores."""


@dataclass(frozen=True)
class Launched:
    """A process, and the socket on which it waits for its options. It ends when the socket is closed."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    def close(self) -> None:
        """See that it is gone."""
        self.socket.close()
        self.process.kill()
        self.process.wait()


def launch() -> Launched:
    """Start one."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo.server.worker", str(theirs.fileno())], pass_fds=[theirs.fileno()],
            env={**QUIET, **os.environ}, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return Launched(process, ours)
