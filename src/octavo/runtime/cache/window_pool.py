"""Pages of the layers with a window: a sequence has those that the window reaches, and gives the others back.

So a long context takes memory for whole sequences only in layers that see whole sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.graph.node import PAGE_SIZE, Graph
from octavo.runtime.cache.block_copier import Copier

SLACK = 512
"""Tokens that a sequence can go back by without losing what its window holds there."""


@dataclass
class WindowPages:
    """The pages of a sequence, by their numbers in it; the first `given_back` are no longer its own, and 0."""

    pages: list[int] = field(default_factory=list)
    given_back: int = 0


def window_of(graph: Graph) -> int:
    """The most positions that a layer with a window sees, 0 where no layer has one."""
    attention = (n.attrs for n in graph.nodes if n.op == "attention" and not n.attrs.get("reach"))
    return max((abs(attrs.get("window", 0)) for attrs in attention), default=0)


def pages_for(length: int) -> int:
    """Pages that hold this many tokens."""
    return -(-length // PAGE_SIZE)


def most_pages(window: int, n_batch: int, n_ctx: int) -> int:
    """Pages that a sequence of up to `n_ctx` tokens has of layers with a window, in steps of `n_batch` tokens.

    All of them, unless half of them are enough: it can then go back, and share what it begins with.
    """
    few, every = pages_for(window + SLACK + n_batch) + 1, pages_for(n_ctx)
    return few if 2 * few <= every else every


class WindowPool:
    """Hands out the pages of the caches of layers that see `window` positions."""

    def __init__(self, window: int, n_pages: int) -> None:
        self.window, self.n_pages = window, n_pages
        self._free = list(reversed(range(n_pages)))
        self.copier = Copier()

    @property
    def free(self) -> int:
        return len(self._free)

    def missing(self, mine: WindowPages, held: int, length: int) -> int:
        """Pages that a sequence of `held` tokens lacks to grow to `length`, less those that it gives back then."""
        first = self._first(held)
        back = sum(1 for i in range(mine.given_back, first) if i < len(mine.pages))
        return pages_for(length) - max(len(mine.pages), first) - back

    def grow(self, mine: WindowPages, held: int, length: int) -> None:
        """Give back what no window reaches after `held` tokens, and take pages for `length`: this many are free."""
        first = self._first(held)
        for i in range(mine.given_back, min(first, len(mine.pages))):
            self._free.append(mine.pages[i])
            mine.pages[i] = 0
        mine.pages += [0] * (first - len(mine.pages))
        mine.given_back = max(mine.given_back, first)
        while len(mine.pages) < pages_for(length):
            mine.pages.append(self._free.pop())

    def take(self, given_back: int, count: int) -> WindowPages:
        """Pages after those that were given back; this many are free."""
        return WindowPages([0] * given_back + [self._free.pop() for _ in range(count)], given_back)

    def reaches(self, mine: WindowPages, length: int) -> bool:
        """Whether the window of the token after `length` others is still there."""
        return max(0, length + 1 - self.window) // PAGE_SIZE >= mine.given_back

    def shrink(self, mine: WindowPages, length: int) -> None:
        """Take back the pages past `length` tokens."""
        keep = pages_for(length)
        self._free += reversed(mine.pages[max(keep, mine.given_back) :])
        del mine.pages[keep:]
        mine.given_back = min(mine.given_back, keep)

    def fork(self, mine: WindowPages, held: int) -> WindowPages:
        """Copies of the pages of `held` tokens; this many are free."""
        made = WindowPages([0] * mine.given_back, mine.given_back)
        for page in mine.pages[mine.given_back : pages_for(held)]:
            made.pages.append(self._free.pop())
            self.copier.copy(made.pages[-1], page)
        return made

    def _first(self, held: int) -> int:
        """The first page that a sequence of `held` tokens keeps."""
        return max(0, held + 1 - SLACK - self.window) // PAGE_SIZE
