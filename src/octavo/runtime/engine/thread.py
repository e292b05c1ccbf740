"""The thread in which an engine's state changes.

Python runs signal handlers in the main thread. An interrupt there, as of a cell of a notebook, may come between any two
instructions; it hits one who waits for what is computed here, and nothing that is half changed.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Generator
from queue import SimpleQueue
from threading import Lock, RLock, Thread, get_ident, main_thread
from typing import Any, TypeVar
from weakref import WeakSet

from octavo.errors import UsageError
from octavo.runtime.engine.fork import tell_when_forked

NAME = "octavo"
T = TypeVar("T")
Pieces = Generator[None, None, T]
"""Work in pieces, each of which is done by who has the engine's lock; what it returns is the result."""


class _Call:
    """Pieces that a thread waits for.

    alone  the engine is for nobody else between the pieces
    done   is free when there is a result, or an error
    left   nobody waits any longer: no further piece is begun
    """

    __slots__ = ("alone", "done", "error", "left", "pieces", "result")

    def __init__(self, pieces: Pieces[Any], *, alone: bool) -> None:
        self.pieces: Pieces[Any] | None = pieces
        self.alone, self.left, self.done = alone, False, Lock()
        self.result: Any = None
        self.error: BaseException | None = None
        self.done.acquire()

    def go_on(self) -> bool:
        """Do a piece, or end them if nobody waits; whether there are more."""
        assert self.pieces is not None
        try:
            if not self.left:
                next(self.pieces)
                return True
            self.pieces.close()
        except StopIteration as end:
            self.result = end.value
        except BaseException as error:
            self.error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        self.pieces = None  # and all that they refer to
        self.done.release()
        return False


class EngineThread:
    """Does what is asked for in the order in which it came, in a thread that begins with the first of it.

    lock     of who has the engine: this thread while it does a piece, or one that computes by itself
    in_step  requests are in a step, in the middle of which nothing else is computed

    It refers to no engine, whose end is to `end` it. A process that is forked has a thread of its own.
    """

    def __init__(self) -> None:
        self.lock, self.in_step = RLock(), False
        self._calls, self._serving = SimpleQueue[_Call | None](), Lock()
        self._closed = False
        _threads.add(self)
        tell_when_forked(self)

    def run(self, work: Callable[[], T]) -> T:
        """What `work` gives, or raises, which is done at once by one that has the lock."""
        return self.finish(_whole(work))

    def finish(self, pieces: Pieces[T], *, alone: bool = False) -> T:
        """What pieces come to, or raise. Between them others may have the engine, unless they are to be `alone`.

        Where a thread is interrupted while it waits, the piece under way is the last one: the pieces are closed.
        """
        if self._computes_here():
            with self.lock:
                self.require_idle()
                return _finished(pieces)
        call = _Call(pieces, alone=alone)
        try:
            self._calls.put(call)
            call.done.acquire()
        except BaseException:
            call.left = True
            raise
        if call.error is None:
            result: T = call.result
            return result
        error, call.error = call.error, None
        try:
            raise error
        finally:
            del error  # whose traceback refers to this frame

    def require_idle(self) -> None:
        """Raise UsageError in the middle of a step, as of a sampler or a finalizer that is called there."""
        if self.in_step:
            raise UsageError("a model can't be used by a callback of its own step")

    def _computes_here(self) -> bool:
        """Whether this thread is to compute: it has the lock, or there is no other one. That is made otherwise."""
        if self.lock._is_owned():  # type: ignore[attr-defined]
            return True
        if self._closed:  # the threads that there may be beside the main one are left behind where they are
            return get_ident() == main_thread().ident
        if not self._serving.locked():
            try:
                Thread(target=self._serve, args=(self._calls, self._serving), name=NAME, daemon=True).start()
            except RuntimeError:  # the interpreter ends
                return True
        return False

    def _serve(self, calls: SimpleQueue[_Call | None], serving: Lock) -> None:
        if serving.acquire(blocking=False):  # else there is one: whoever began it was interrupted, or two began
            while self._did(calls):
                pass
            serving.release()

    def _did(self, calls: SimpleQueue[_Call | None]) -> bool:
        """Do the next call, or a piece of it; False if that is to be the end. Nothing is referred to any longer."""
        call = calls.get()
        if call is None:
            return False
        with self.lock:
            while (more := call.go_on()) and call.alone and not self._closed:
                pass
        if more:
            calls.put(call)
        return not self._closed

    def end(self) -> None:
        """End the thread after what was asked for; any thread may call this at any time."""
        self._calls.put(None)

    def close(self) -> None:
        """Wait for the piece under way: the interpreter ends, and what comes now the main thread does by itself."""
        self._closed = True
        self.end()
        self._serving.acquire()

    def forked(self) -> None:
        self._calls, self._serving = SimpleQueue(), Lock()
        if not self.lock._is_owned():  # type: ignore[attr-defined]
            self.lock, self.in_step = RLock(), False


def _whole(work: Callable[[], T]) -> Pieces[T]:
    return work()
    yield


def _finished(pieces: Pieces[T]) -> T:
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            found: T = end.value
            return found


_threads: WeakSet[EngineThread] = WeakSet()


@atexit.register
def _close() -> None:
    for thread in list(_threads):
        thread.close()
