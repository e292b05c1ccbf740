"""A lock for threads that share an engine, and what becomes of locks in a forked process."""

from __future__ import annotations

import os
from threading import RLock, get_ident
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Has something to put right in a process that was forked: of the threads only the one that forked goes on."""

    def forked(self) -> None: ...


_forked: WeakSet[Forked] = WeakSet()


def tell_when_forked(it: Forked) -> None:
    """Call `it.forked()` in each process that is forked from this one, as long as `it` lives."""
    _forked.add(it)


def _tell() -> None:
    for it in list(_forked):
        it.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)


class FairLock:
    """A lock that its thread may take again, and that nobody gets twice while another thread waits."""

    def __init__(self) -> None:
        self._door, self._lock = RLock(), RLock()  # the next thread stands in the door until the one inside is done
        self._owner: int | None = None
        self._depth = 0
        tell_when_forked(self)

    def __enter__(self) -> None:
        me = get_ident()
        if self._owner == me:
            self._lock.acquire()
        else:
            with self._door:
                self._lock.acquire()
        self._owner, self._depth = me, self._depth + 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._lock.release()

    def forked(self) -> None:
        self._door = RLock()
        if self._owner != get_ident():
            self._lock, self._owner, self._depth = RLock(), None, 0
