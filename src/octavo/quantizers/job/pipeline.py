"""Work that several threads do ahead of what takes it: each slab of a tensor read, encoded and measured in one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class InlineExecutor(Executor):
    """An executor without threads: what is submitted is done at once."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def workers(threads: int) -> Executor:
    """An executor with `threads` threads; with one, it works in the calling thread."""
    return InlineExecutor() if threads == 1 else ThreadPoolExecutor(threads, "octavo-quantize")


class Pipeline(Generic[T]):
    """What calls give, in order, while `executor` works on those after it.

    calls  each with the size of what it gives
    room   of the sizes that are asked for ahead; the last of them may be larger than what is left

    Whoever stops early shuts the executor down with `cancel_futures`.
    """

    def __init__(self, calls: Iterator[tuple[int, Callable[[], T]]], executor: Executor, room: int) -> None:
        self._calls, self._executor, self._room = calls, executor, room
        self._waiting: deque[tuple[int, Future[T]]] = deque()
        self._ahead = 0
        self._fill()

    def _fill(self) -> None:
        while self._ahead < self._room and self._submit():
            pass

    def _submit(self) -> bool:
        size, call = next(self._calls, (0, None))
        if call is None:
            return False
        self._waiting.append((size, self._executor.submit(call)))
        self._ahead += size
        return True

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._waiting and not self._submit():
            raise StopIteration
        size, first = self._waiting.popleft()
        self._ahead -= size
        self._fill()
        return first.result()
