"""The process that forks workers for grammars, see `grammar_process`: started, asked for workers, and ended."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from itertools import count
from threading import RLock
from typing import IO, Any
from weakref import WeakSet, finalize

from octavo.errors import HostMemoryError, UsageError
from octavo.jit.clock import clock
from octavo.runtime.grammar.deadlines import wait_for
from octavo.runtime.grammar.grammar_process import FORKED
from octavo.text import Tokenizer

ENDS_KEPT, ENDS_S = 1024, 0.5
"""Workers whose ends are kept, as of most nobody asks, and seconds in which the process ends them all."""
CHUNK = 1 << 16


class Host:
    """The process that forks workers. It is started when the first one is wanted, and again where it has ended.

    nice  how much less of the processor workers get from the start where others want it
    """

    def __init__(self, tokenizer: Tokenizer, nice: int = 0) -> None:
        self._tokenizer, self._nice, self._lock = tokenizer, nice, RLock()
        self._vocabulary: IO[bytes] | None = None
        self._control: socket.socket | None = None
        self._ended: dict[int, int] = {}
        self._rest = b""
        self._numbers = count()
        self._owner = 0
        self._closing: finalize[Any, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.compiling = WeakSet[Any]()

    def start(self) -> None:
        """Start it, if it is not there. Raises HostMemoryError where the system has no room for a process."""
        with self._lock:
            if self._control is not None and self._owner == os.getpid():
                return
            if sys.platform == "win32":
                raise UsageError("grammars need fork, which Windows does not have")
            self._leave()
            try:
                if self._vocabulary is None:
                    self._vocabulary = _file(pickle.dumps(self._tokenizer.metadata()))
                    finalize(self, self._vocabulary.close).atexit = False
                process, self._control = _started(self._vocabulary, self._nice)
            except OSError as error:
                raise no_process(error) from None
            self.process, self._owner = process, os.getpid()
            self._closing = finalize(self, _end, process, self._control, self._owner)

    def worker(self, source: bytes) -> tuple[socket.socket, int]:
        """The socket of a new worker for a grammar, and its number. Raises HostMemoryError."""
        with self._lock:
            number = next(self._numbers)
            for again in (True, False):
                while self._take_ends(0.0):  # else there is no room for more of them, and nothing is forked
                    pass
                self.start()
                assert self._control is not None
                try:
                    return self._forked(self._control, source, number), number
                except OSError as error:  # it has ended, or there is no descriptor
                    self._leave()
                    if not again:
                        raise no_process(error) from None
            raise AssertionError

    def _forked(self, control: socket.socket, source: bytes, number: int) -> socket.socket:
        with ExitStack() as failing:
            ours, theirs = map(failing.enter_context, socket.socketpair())
            with theirs, _file(source) as file:
                socket.send_fds(control, [FORKED.pack(number, 0)], [theirs.fileno(), file.fileno()])
            failing.pop_all()
        return ours

    @property
    def tells(self) -> bool:
        """Whether it can tell how workers ended."""
        return self._control is not None and self._owner == os.getpid()

    def end_of(self, number: int, seconds: float) -> int | None:
        """How a worker ended, as `os.waitpid` tells; None where that isn't told, for which it is waited so long."""
        with self._lock:
            until = clock() + seconds
            while number not in self._ended and self._take_ends(max(until - clock(), 0.0)):
                pass
            return self._ended.pop(number, None)

    def _take_ends(self, seconds: float) -> bool:
        """Take what is told of workers that ended, and wait so long for that; whether there was something."""
        if self._control is None or not self.tells:
            return False
        if seconds:
            wait_for([self._control], seconds)
        try:
            found = self._control.recv(CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            found = b""
        if not found:
            self._leave()
            return False
        self._rest += found
        while len(self._rest) >= FORKED.size:
            one, status = FORKED.unpack_from(self._rest)
            self._rest = self._rest[FORKED.size :]
            self._ended[one] = status
        while len(self._ended) > ENDS_KEPT:
            del self._ended[next(iter(self._ended))]
        return True

    def _leave(self) -> None:
        if self._closing is not None:
            self._closing()
        self._control = self._closing = self.process = None
        self._rest, self._ended = b"", {}


def no_process(error: OSError) -> HostMemoryError:
    """That there can be no worker."""
    return HostMemoryError(f"can't start a process for grammars: {error.strerror or error}")


def _file(data: bytes) -> IO[bytes]:
    """A file with no name."""
    found: IO[bytes]
    if hasattr(os, "memfd_create"):
        found = os.fdopen(os.memfd_create("octavo"), "w+b")
    else:
        found = tempfile.TemporaryFile()  # noqa: SIM115
    found.write(data)
    found.flush()
    return found


def _started(vocabulary: IO[bytes], nice: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A host in a group of its own, which signals of a terminal don't reach; its libraries have no threads."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            given = theirs.fileno(), vocabulary.fileno()
            quiet = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [sys.executable, "-m", "octavo.runtime.grammar.grammar_process", *map(str, (*given, nice))],
                pass_fds=given, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                process_group=0, env={**os.environ, **quiet},
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def _end(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    control.close()
    if os.getpid() == owner:
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    else:  # of a process that this one was forked from
        process.returncode = 0
