"""When requests are sent: this many at a time, or at random times at a rate."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

Send = Callable[[], Awaitable[object]]


async def at_most(streams: int, requests: int, send: Send) -> None:
    """`requests` in all, `streams` at a time: each that ends makes room for the next."""
    left = iter(range(requests))

    async def one_after_the_other() -> None:
        for _ in left:
            await send()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(streams, requests)):
            group.create_task(one_after_the_other())


async def at_rate(rate: float, requests: int, send: Send, draw: random.Random, streams: int | None = None) -> None:
    """`requests` whose times between are exponential, `rate` a second on average: arrivals of a Poisson process.

    With `streams`, requests beyond that many in flight wait on this side.
    """
    room = asyncio.Semaphore(streams or requests)

    async def when_there_is_room() -> None:
        async with room:
            await send()

    async with asyncio.TaskGroup() as group:
        for _ in range(requests):
            group.create_task(when_there_is_room())
            await asyncio.sleep(draw.expovariate(rate))
