"""Servers in a thread of their own, with a loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, TypeVar

from tests.limits import HANG_S

T = TypeVar("T")


@contextmanager
def in_thread(
    serve: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]], name: str
) -> Iterator[tuple[asyncio.AbstractEventLoop, T]]:
    """The loop of what serves until the block ends, and what it tells when it is there."""
    ready, running, found, failed = Event(), list[Any](), list[T](), list[BaseException]()

    def told(one: T) -> None:
        found.append(one)
        ready.set()

    async def run() -> None:
        task = asyncio.get_running_loop().create_task(serve(told))
        running.extend([asyncio.get_running_loop(), task])
        try:
            await task
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = Thread(target=lambda: asyncio.run(run()), name=name)
    thread.start()
    try:
        assert ready.wait(HANG_S)
        assert not failed, failed
        yield running[0], found[0]
    finally:
        loop, task = running
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        thread.join(HANG_S)
        assert not thread.is_alive()
