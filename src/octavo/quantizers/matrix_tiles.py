"""Products of matrices in tiles, which are the same to the last bit whatever the number of threads.

A BLAS library divides a product among its threads and adds up in an order that depends on how many there are. Here each
tile is a product by itself, in one thread of the library's, and tiles are divided among threads of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import RLock

from threadpoolctl import ThreadpoolController

from octavo.backends.cores import cores

TILE = 256
"""Rows and columns of a tile."""

Task = Callable[[], None]

_lock = RLock()


def run_tiles(tasks: Iterable[Task]) -> None:
    """Run tasks that write to different memory, each in one thread; what a task raises is raised."""
    with _lock, _library().limit(limits=1, user_api="blas"):
        for done in [_threads().submit(task) for task in tasks]:
            done.result()


def spans(size: int, tile: int = TILE) -> list[slice]:
    """0 to `size` in pieces of `tile`, the last of what is left."""
    return [slice(start, min(start + tile, size)) for start in range(0, size, tile)]


@cache
def _library() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), "octavo-tiles")
