"""Workers that compile a grammar and make masks, each a process of its own.

What ends a worker ends the reply that was asked about then, or all of its replies where the grammar is being compiled.
The others go on with another worker, from the tokens that they have.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from threading import RLock
from typing import Any, Protocol
from weakref import WeakSet, finalize

from octavo.errors import GrammarError, OctavoError
from octavo.jit.clock import clock
from octavo.runtime.grammar.deadlines import wait_for
from octavo.runtime.grammar.grammar_process import COMPILE_S, FRAME, MEMORY, NO_FORK, TOKEN_S, framed
from octavo.runtime.grammar.host import CHUNK, Host, no_process

LONGEST_S, STARTING_S = 30.0, 60.0
"""Seconds that an answer may take whatever else the processors do, and the first one of a worker."""
TOLD_S = 1.0
"""Seconds in which it is told how a worker ended, which no step waits for."""
FATAL = 2
"""Workers that may end for reasons of their own while a reply is asked about."""
MOST_COMPILING = 8
"""Grammars that are compiled at a time where nobody waits for one."""


class MaskReply(Protocol):
    """A reply that a worker is asked about."""

    number: int
    lost: int

    @property
    def tokens(self) -> list[int]:
        """Those that it has."""

    def began_again(self) -> None:
        """Nothing that was asked is answered, but what is asked from now on."""

    def answered(self, op: str, found: Sequence[Any], masks: bytes) -> None:
        """What may come next, see `grammar_process`."""

    def failed(self, why: OctavoError) -> None:
        """Nothing is answered any more."""


class GrammarWorker:
    """A process for a grammar. Any thread may ask it, and take what it answers.

    failure  why the grammar or schema can't be used
    """

    def __init__(self, host: Host, source: dict[str, Any]) -> None:
        self._host, self._source, self._lock = host, json.dumps(source).encode(), RLock()
        self._socket: socket.socket | None = None
        self._closing: finalize[Any, Any] | None = None
        self._number, self._owner = 0, 0
        self._asked = deque[tuple[MaskReply | None, str]]()
        self._since = self._over = 0.0
        self._read = bytearray()
        self._inside = False
        self._lost = 0
        self._numbers = count()
        self.replies = WeakSet[Any]()
        self.left: list[int] = []
        self.failure: OctavoError | None = None

    @property
    def may_begin(self) -> bool:
        """Whether there is room for one more that compiles, if this one is to."""
        return self._socket is not None or len(self._host.compiling) < MOST_COMPILING

    def fileno(self) -> int:
        """What tells that there are answers; -1 where it isn't begun."""
        return -1 if self._socket is None else self._socket.fileno()

    def add(self, reply: Any) -> int:
        """A reply's number, which is to be asked about."""
        with self._lock:
            self.replies.add(reply)
            return next(self._numbers)

    def ask(self, reply: MaskReply, op: str, tokens: Sequence[int]) -> None:
        """Ask, see `grammar_process`. Raises HostMemoryError and UsageError where there can be no worker."""
        with self._lock:
            self._check()
            if self.failure is not None:
                reply.failed(self.failure)
                return
            if self._socket is None:
                self._begin()
            self._send(reply, op, tokens)
            self._inside = False

    def take(self, seconds: float) -> None:
        """Take the answers that there are, and wait so long for the first one."""
        with self._lock:
            self._check()
            if self._socket is not None:
                self._take(self._socket, seconds)
            self._inside = False

    def _check(self) -> None:
        """Begin again where another process was forked, or an exception came in the middle of a message."""
        strange = self._socket is not None and (self._inside or self._owner != os.getpid())
        self._inside = True
        if strange:
            self._begin_again()

    def _begin(self) -> None:
        found, self._number = self._host.worker(self._source)
        self._socket, self._owner, self._since, self._over = found, os.getpid(), clock(), 0.0
        self._closing = finalize(self, found.close)
        self._closing.atexit = False
        self._asked.clear()
        self._asked.append((None, "compile"))
        self._read.clear()
        self._host.compiling.add(self)

    def _begin_again(self) -> None:
        """With another process, which is asked about all replies that there are."""
        self._end()
        replies = list(self.replies)
        if not replies:
            return
        try:
            self._begin()
        except OctavoError as error:
            self._fail(replies, error)
            return
        for reply in replies:
            reply.began_again()
            self._send(reply, "open", reply.tokens)

    def _end(self) -> None:
        if self._closing is not None:
            self._closing()
        self._socket = self._closing = None
        self._asked.clear()
        self._host.compiling.discard(self)

    def _send(self, reply: MaskReply, op: str, tokens: Sequence[int]) -> None:
        assert self._socket is not None
        left, self.left = self.left, []
        message = b"".join(framed(["close", number]) for number in left) + framed([op, reply.number, [*tokens]])
        if not self._asked:
            self._since = clock()
        self._asked.append((reply, op))
        with suppress(OSError):  # it has ended, which `take` finds out
            self._socket.sendall(message)

    def _take(self, channel: socket.socket, seconds: float) -> None:
        if not self._asked:
            return
        head = self._asked[0]
        while self._asked and self._asked[0] is head:
            if seconds:
                wait_for([self], seconds)
            try:
                found = channel.recv(CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                longest = STARTING_S if head[0] is None else LONGEST_S
                if clock() - self._since > longest:
                    self._ended(f"it takes longer than {longest:.0f} s")
                return
            except OSError:
                found = b""
            if not found:
                self._find_out(seconds)
                return
            self._read += found
            while self._answer():
                pass
            if self.failure is not None:
                return

    def _answer(self) -> bool:
        """Hand over an answer, if one is there."""
        if len(self._read) < FRAME.size:
            return False
        n_header, n_masks = FRAME.unpack_from(self._read)
        end = FRAME.size + n_header + n_masks
        if len(self._read) < end:
            return False
        header = json.loads(self._read[FRAME.size : FRAME.size + n_header])
        masks = bytes(self._read[FRAME.size + n_header : end])
        del self._read[:end]
        (reply, op), self._since = self._asked.popleft(), clock()
        if reply is not None:
            reply.answered(op, header, masks)
            return True
        self._host.compiling.discard(self)
        if header is not None:
            self._fail(list(self.replies), GrammarError(header), for_good=True)
        return header is None

    def _find_out(self, seconds: float) -> None:
        """What becomes of the replies of a process that has ended, once it is told how; wait so long for that."""
        status = self._host.end_of(self._number, min(seconds, TOLD_S))
        self._over = self._over or clock()
        if status is None and self._host.tells and clock() - self._over < TOLD_S:
            return
        if status == NO_FORK:
            self._fail(list(self.replies), no_process(OSError("out of resources")))
        elif status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) not in KILLS:
            number = os.WTERMSIG(status)
            compiles = self._asked[0][0] is None
            seconds = COMPILE_S if compiles else TOKEN_S
            if number == signal.SIGPROF:
                what = "to compile" if compiles else "for a token"
                self._ended(f"it takes more than {seconds:g} s of CPU time {what}")
            else:
                name = signal.Signals(number).name
                self._ended(f"it is nested too deep, or takes more than {MEMORY >> 20} MiB ({name})")
        else:
            self._ended(None)

    def _ended(self, problem: str | None) -> None:
        """Tell who was asked about what went wrong, and begin again for the others.

        problem  of the grammar; None where it may have been something else, and may not come again
        """
        reply = self._asked[0][0]
        if reply is None:
            self._lost += 1
            if problem is not None or self._lost >= FATAL:
                said = problem or "the process that compiles it ended"
                error = GrammarError(f"the grammar or schema can't be used: {said}")
                self._fail(list(self.replies), error, for_good=problem is not None)
                return
        else:
            reply.lost += 1
            if problem is not None or reply.lost >= FATAL:
                said = problem or "the process that makes masks ended"
                self.replies.discard(reply)
                reply.failed(GrammarError(f"the grammar or schema can't be followed: {said}"))
        self._begin_again()

    def _fail(self, replies: Sequence[MaskReply], error: OctavoError, *, for_good: bool = False) -> None:
        if for_good:
            self.failure = error
        self._end()
        for reply in replies:
            reply.failed(error)


KILLS = frozenset({signal.SIGKILL, signal.SIGTERM} if sys.platform != "win32" else ())
"""Signals that somebody has sent, and not the system for a fault or a limit."""
