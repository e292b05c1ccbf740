"""Memory in large pages."""

from __future__ import annotations

import mmap

import numpy as np

from octavo.formats.spec import U8


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


class Arena:
    """Memory for many arrays side by side in large pages, which ends with the last of them.

    Arrays with memory of their own begin and end in small pages, and filling those takes most of the time of loading.
    """

    def __init__(self) -> None:
        self._left, self._size = zeroed(0), FIRST

    def take(self, nbytes: int) -> U8:
        """Zeros that begin at a cache line."""
        size = -(-nbytes // 64) * 64
        if size > len(self._left):
            self._size = min(2 * self._size, LARGEST)
            self._left = zeroed(max(size, self._size))
        taken, self._left = self._left[:nbytes], self._left[size:]
        return taken
