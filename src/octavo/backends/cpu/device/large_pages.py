"""Memory in large pages."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

import numpy as np

from octavo.backends.cpu.device.memory_nodes import prefer_node_of
from octavo.formats.spec import U8

log = logging.getLogger("octavo")


def zeroed(nbytes: int) -> U8:
    """Zeros that take memory when they are touched, in large pages where the system has them.

    Reading a long context goes through all of a cache at every step: with pages of 4 kB, finding them takes longer.
    Raises MemoryError.
    """
    size = max(nbytes, 1)
    try:
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            return np.frombuffer(mmap.mmap(-1, size), np.uint8, nbytes)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory would get small pages
    except (OSError, OverflowError):
        raise MemoryError(f"{size:,} bytes") from None
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, nbytes)


FIRST, LARGEST = 1 << 21, 1 << 28


class Region(Protocol):
    """Room for the data of a weight, filled part by part."""

    def part(self, start: int, stop: int) -> AbstractContextManager[U8]:
        """Zeros to fill, which are its bytes `start` to `stop` when the block ends."""

    def array(self) -> U8:
        """All of it, once its parts are filled."""


class Room(Protocol):
    """Where packed weights go."""

    def region(self, nbytes: int) -> Region:
        """Room for a weight's data. Raises MemoryError or OSError."""

    def tell_not_finite(self, name: str) -> None:
        """Warn of NaN or Inf in the scales or values of a tensor."""


class Memory(NamedTuple):
    """A region in memory."""

    data: U8

    @contextmanager
    def part(self, start: int, stop: int) -> Iterator[U8]:
        prefer_node_of(start, len(self.data))
        yield self.data[start:stop]

    def array(self) -> U8:
        return self.data


class Arena:
    """Memory for many arrays side by side in large pages, which ends with the last of them.

    Arrays with memory of their own begin and end in small pages, and filling those takes most of the time of loading.
    """

    def __init__(self) -> None:
        self._left, self._size = zeroed(0), FIRST

    def region(self, nbytes: int) -> Memory:
        return Memory(self.take(nbytes))

    def tell_not_finite(self, name: str) -> None:
        log.warning("tensor %s holds NaN or Inf", name)

    def take(self, nbytes: int) -> U8:
        """Zeros that begin at a cache line."""
        size = -(-nbytes // 64) * 64
        if size > len(self._left):
            self._size = min(2 * self._size, LARGEST)
            self._left = zeroed(max(size, self._size))
        taken, self._left = self._left[:nbytes], self._left[size:]
        return taken
