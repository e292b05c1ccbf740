"""The one sequence that a model keeps for its generations, which have it in turn."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from threading import Condition, get_ident
from typing import TYPE_CHECKING

from octavo.runtime.batch import Feed
from octavo.runtime.device_sampling import DeviceSampler
from octavo.runtime.kv_cache import Sequence
from octavo.runtime.lock import tell_when_forked

if TYPE_CHECKING:
    from octavo.runtime.engine import Engine

PATIENCE = 1.0
"""Seconds after which a generation that nobody asks for its next token gives way to one that waits."""


class ClosedError(Exception):
    """Who is closed gets no more turns."""


class Speaker:
    """Who takes turns in a conversation, until `closed`."""

    closed = False


class Conversation:
    """A sequence of an engine that holds the tokens of one speaker at a time, and afterwards of the last one.

    Speakers have turns in the order in which they ask. Who has the turn keeps it from token to token, until closed. It
    gives way earlier where others would wait in vain: to a speaker in its own thread, and where it was not asked for
    its next token for `PATIENCE` seconds. Then it waits as they do, and what was lost of its tokens is computed again.
    The sequence's pages go to any other sequence that is short of them.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.device, self.sequence = engine, DeviceSampler(engine), Sequence()
        self._queue = Condition()
        self._waiting: deque[object] = deque()
        self._turn: weakref.ref[Speaker] | None = None
        self._working: Speaker | None = None
        self._thread, self._left = 0, 0.0
        self._whose: weakref.ref[Speaker] | None = None
        self._chosen: Generator[list[int], None, None] | None = None
        engine.pool.call_when_short(self._give_pages)
        tell_when_forked(self)

    @contextmanager
    def turn(self, who: Speaker) -> Iterator[bool]:
        """The engine and the sequence, for a token. Gives whether the sequence holds what `who` left in it.

        Otherwise it holds anything, and `who` has to bring it to its own tokens. Raises ClosedError if `who` is.
        """
        try:
            self._take(who)
            with self.engine.lock:
                kept = self._whose is not None and self._whose() is who
                if not kept:
                    self._forget()
                try:
                    yield kept
                except BaseException:
                    self._forget()
                    raise
                self._whose = weakref.ref(who)
        finally:
            with self._queue:
                if self._working is who:
                    self._working, self._left = None, time.monotonic()
                self._queue.notify_all()

    def leave(self, who: Speaker) -> None:
        """Take no more turns. This waits for no step, so that any thread may call it at any time."""
        who.closed = True
        with self._queue:
            if self._turn is not None and self._turn() is who:
                self._turn = None
            self._queue.notify_all()

    def greedy(self, feed: Feed) -> int:
        """Within a turn: append a feed's token to the sequence, and give the most likely one after it.

        Over the turns of one speaker this is `DeviceSampler.greedy`: a device may be at the next token already.
        """
        if self._chosen is None:
            self._chosen = self.device.greedy([feed])
        return next(self._chosen)[0]

    def forked(self) -> None:
        if self._thread != get_ident():
            self._queue, self._waiting, self._working, self._turn = Condition(), deque(), None, None

    def _take(self, who: Speaker) -> None:
        with self._queue:
            if who.closed:
                raise ClosedError
            if self._turn is None or self._turn() is not who:
                self._wait(who)
            self._turn, self._working, self._thread = weakref.ref(who), who, get_ident()

    def _wait(self, who: Speaker) -> None:
        place = object()
        self._waiting.append(place)
        try:
            while self._waiting[0] is not place or not self._given_way():
                if who.closed:
                    raise ClosedError
                self._queue.wait(PATIENCE)
        finally:
            self._waiting.remove(place)

    def _given_way(self) -> bool:
        if self._working is not None:
            return False
        idle = self._thread == get_ident() or time.monotonic() - self._left >= PATIENCE
        return idle or self._turn is None or self._turn() is None

    def _forget(self) -> None:
        """The sequence is nobody's; its tokens stay."""
        self._whose = None
        chosen, self._chosen = self._chosen, None
        if chosen is not None:
            chosen.close()

    def _give_pages(self, sequence: Sequence) -> None:
        if sequence is not self.sequence:
            self._forget()
            self.engine.pool.release(self.sequence)
