"""Work that other threads do beside the encoder: slabs read before they are wanted, errors measured after."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Inline(Executor):
    """An executor without threads: what is submitted is done at once."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def worker(threads: int | None) -> Executor:
    """An executor of one thread beside those of the encoder; of none where it has only one itself."""
    return Inline() if threads == 1 else ThreadPoolExecutor(1)


class Ahead(Generic[T]):
    """The items of an iterator, in order, each worked out by `executor` while earlier ones are in use.

    Up to `depth` items wait. Whoever stops early shuts the executor down with `cancel_futures`.
    """

    def __init__(self, items: Iterator[T], executor: Executor, depth: int = 2) -> None:
        self._items, self._executor = items, executor
        self._waiting: deque[Future[Any]] = deque(executor.submit(next, items) for _ in range(depth))

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        first = self._waiting.popleft()
        self._waiting.append(self._executor.submit(next, self._items))
        item: T = first.result()
        return item
