"""The start of an engine's process, by itself: it imports what it needs while the front does so too."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from dataclasses import dataclass


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
        level = logging.getLogger("octavo").getEffectiveLevel()
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo.server.worker", str(theirs.fileno()), str(level)],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return Launched(process, ours)
