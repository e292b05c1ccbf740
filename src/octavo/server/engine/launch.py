"""The start of an engine's process, by itself: it imports what it needs while the front does so too."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import msgspec

from octavo.server.engine.channel import Channel
from octavo.server.serve_options import EngineOptions

STDIN, WAITS = "-", "waits"
"""In place of a socket's number: standard input says what makes it. And the last argument of one that waits."""
ENDING = (
    "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGBREAK", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF",
    "SIGIO", "SIGPWR", "SIGSTKFLT", "SIGXCPU",
)
"""Signals that would end a process at once, but for faults. A server's front takes them, its engine ignores them."""
GONE_S = 10.0
"""Seconds that a killed process may take to be gone."""
ENDS = 3
"""Processes that end by themselves before they have loaded the model for the first time, after which it can't be."""


@dataclass(frozen=True)
class Launched:
    """A process, and the socket on which it waits for its options, or was `told` them. It ends when that is closed."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    told: bool = False

    def tell(self, options: EngineOptions) -> Launched:
        """Tell it its options. What is wrong with its process is found by who takes its messages."""
        with suppress(OSError):
            Channel(self.socket).send(msgspec.msgpack.encode(options))
        return replace(self, told=True)

    def close(self) -> None:
        """See that it is gone; one that a driver holds is not waited for."""
        self.socket.close()
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GONE_S)


def launch(*, grouped: bool = False, waits: bool = False) -> Launched:
    """Start one. Raises OSError where the system has no room for it.

    grouped  it stays in the process group of this process, which is killed as one, see `LocalProcess`
    waits    it is told its options much later, and imports what the CPU needs by then
    """
    ours, theirs = socket.socketpair()
    with theirs, ExitStack() as failing:
        failing.enter_context(ours)
        process = _on_windows(theirs) if sys.platform == "win32" else _with_descriptor(theirs, grouped, waits)
        failing.pop_all()
    return Launched(process, ours)


def _command(place: str) -> list[str]:
    """What starts an engine that finds its socket at `place`, see `octavo.server.worker.main`."""
    return [sys.executable, "-m", "octavo.server.worker", place, str(logging.getLogger("octavo").getEffectiveLevel())]


def _with_descriptor(theirs: socket.socket, grouped: bool, waits: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*_command(str(theirs.fileno())), *([WAITS] if waits else [])],
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=not grouped,
    )


def _on_windows(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """A socket is not a descriptor there: what the process makes one of comes by its standard input."""
    process = subprocess.Popen(
        _command(STDIN), stdin=subprocess.PIPE, creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(theirs.share(process.pid))  # type: ignore[attr-defined, unused-ignore]  # Windows alone has it
    return process
