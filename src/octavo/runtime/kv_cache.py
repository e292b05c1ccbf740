"""Pages of the KV cache: which rows of it belong to which sequence.

The backends hold the cache as rows; a page is `PAGE_SIZE` rows in a row, and a sequence a list of pages. So sequences
of any length share one cache, and none is moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from octavo.errors import ContextFullError
from octavo.graph.node import PAGE_SIZE


@dataclass(eq=False)
class Sequence:
    """Tokens whose keys and values are in the cache, and the pages where they lie."""

    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)


class PagePool:
    """Hands out the pages of a cache of `n_pages`; the lowest free ones first."""

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self._when_short: WeakMethod[Callable[[Sequence], None]] | None = None
        self._released: list[int] = []
        self._unused = 0  # this page and those after it were never handed out
        self._lock = RLock()

    @property
    def free(self) -> int:
        return len(self._released) + self.n_pages - self._unused

    def call_when_short(self, method: Callable[[Sequence], None]) -> None:
        """Have a method called with a sequence that too few pages are free for; it may release others.

        This does not keep the method's object, which holds the engine and its memory, alive.
        """
        self._when_short = WeakMethod(method)

    def grow(self, sequence: Sequence, length: int) -> None:
        """Give `sequence` the pages for `length` tokens. Raises ContextFullError, taking none, if too few are free."""
        with self._lock:
            missing = -(-length // PAGE_SIZE) - len(sequence.pages)
            when_short = None if self._when_short is None else self._when_short()
            if missing > self.free and when_short is not None:
                when_short(sequence)
            if missing > self.free:
                raise ContextFullError(
                    f"the KV cache is full: {missing * PAGE_SIZE} more tokens wanted, room for {self.free * PAGE_SIZE}"
                )
            for _ in range(missing):
                sequence.pages.append(self._take())

    def _take(self) -> int:
        if self._released:
            return self._released.pop()
        self._unused += 1
        return self._unused - 1

    def shrink(self, sequence: Sequence, length: int) -> None:
        """Forget what `sequence` holds past `length` tokens, and take back the pages that empties."""
        with self._lock:
            del sequence.tokens[length:]
            keep = -(-length // PAGE_SIZE)
            released = sequence.pages[keep:]
            del sequence.pages[keep:]
            self._released = sorted([*self._released, *released], reverse=True)

    def release(self, sequence: Sequence) -> None:
        """Take back all pages of `sequence`."""
        self.shrink(sequence, 0)


def rows(sequence: Sequence, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Cache rows of the positions from `start` up to `stop`."""
    positions = np.arange(start, stop)
    pages = np.asarray(sequence.pages, np.int64)
    return pages[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
