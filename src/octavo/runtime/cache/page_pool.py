"""Pages of the KV cache: which rows of it belong to which sequence.

The backends hold the cache as rows; a page is `PAGE_SIZE` rows in a row, and a sequence a list of pages. So sequences
of any length share one cache, and none is moved. Sequences that begin alike can share pages, too: who writes to one
that others hold gets a copy first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Protocol
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from octavo.errors import CacheFullError
from octavo.graph.node import PAGE_SIZE, Graph, cache_bytes, kept_bytes
from octavo.runtime.cache.block_copier import Copier
from octavo.runtime.cache.hidden_rows import HiddenRows
from octavo.runtime.cache.state_pool import KeptState, StatePool
from octavo.runtime.cache.window_pool import WindowPages, WindowPool, pages_for


@dataclass(eq=False, slots=True)
class Sequence:
    """Tokens whose keys and values are in the cache, and the pages where they lie.

    `window` has those of layers with a window, where these have pages of their own. Up to `room` tokens the sequence
    can go on in pages that nobody else reads. `row` has the pages as an array; a pool that changes them drops it.
    `slot` is where its state lies, which has seen `seen` tokens, if the model has layers with states; it gets one when
    it grows, with what is in `origin`. `keys` are those of `tiers` of its pages, of which the first `kept` are kept.
    `adapter` is the slot of the adapter that it is computed with; None for none. `hidden` are hidden states for a head.
    """

    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    window: WindowPages = field(default_factory=WindowPages)
    room: int = 0
    row: npt.NDArray[np.int32] | None = None
    slot: int | None = None
    seen: int = 0
    origin: KeptState | None = None
    keys: list[bytes] = field(default_factory=list)
    kept: int = 0
    adapter: int | None = None
    hidden: HiddenRows | None = None

    def __len__(self) -> int:
        return len(self.tokens)


def page_bytes(graph: Graph, rows: str = "rows") -> int:
    """Bytes of a page in all caches of a graph that have this many `rows`."""
    return sum(cache_bytes(c, {rows: PAGE_SIZE}) for c in graph.leaves("cache") if c.shape[0] == rows)


def state_bytes(graph: Graph) -> int:
    """Bytes of a sequence's states in all layers of a graph."""
    return kept_bytes([n for n in graph.nodes if any(i.op == "state" for i in n.inputs)], {"states": 1, "rows": 0})


class PageStore(Protocol):
    """Retains pages that no sequence locks, for later sequences, and gives them back on demand."""

    def evict(self) -> None:
        """Give back a page that it retains and no sequence locks; there is one."""

    def forget(self, page: int) -> None:
        """Give back this page; no page below it is retained."""

    def on_lock(self, page: int) -> None:
        """A sequence locks this retained page, which none had locked."""

    def on_unlock(self, page: int) -> None:
        """No sequence locks this retained page any longer."""


class PagePool:
    """Hands out the pages of a cache of `n_pages`, numbered from 0.

    A page is empty, held (locked by sequences), or cached (retained by a `PageStore`, and locked by none). Sequences
    may have pages that are none of these; they write to them as they are. With `windows` they get and lose pages of
    layers with a window, too, and with `states` a slot for a state.
    """

    def __init__(self, n_pages: int, windows: WindowPool | None = None, states: StatePool | None = None) -> None:
        self.n_pages, self.windows, self.states = n_pages, windows, states
        self.cached = 0
        self.store: PageStore | None = None
        self.copier = Copier()
        self._when_short: WeakMethod[Callable[[Sequence], None]] | None = None
        self._released: list[int] = []
        self._unused = 0  # this page and those after it were never handed out
        self._refs: dict[int, int] = {}  # how many sequences lock a page
        self._retained: set[int] = set()
        self._lock = RLock()

    @property
    def empty(self) -> int:
        """Pages that are neither locked nor retained."""
        return len(self._released) + self.n_pages - self._unused

    @property
    def free(self) -> int:
        """Pages that a sequence can get: empty ones, and cached ones."""
        return self.empty + self.cached

    @property
    def handed_out(self) -> int:
        """Pages that some sequence had, from the first one on."""
        return self._unused

    @property
    def held(self) -> int:
        """Pages that sequences lock."""
        return len(self._refs)

    @property
    def shares(self) -> bool:
        """Whether sequences can share the pages that they begin with: not where some pages are given back."""
        return self.windows is None

    def call_when_short(self, method: Callable[[Sequence], None]) -> None:
        """Have a method called with a sequence that too few pages are free for; it may release others.

        This does not keep the method's object, which holds the engine and its memory, alive.
        """
        self._when_short = WeakMethod(method)

    def missing(self, sequence: Sequence, length: int) -> int:
        """Pages that `sequence` needs to grow to `length` tokens; a copy of a page that others lock is one."""
        page = self._written(sequence, length)
        copies = page is not None and self._refs.get(page, 0) > 1
        return max(0, pages_for(length) - len(sequence.pages)) + copies

    def grow(self, sequence: Sequence, length: int) -> None:
        """Give `sequence` the pages for `length` tokens, and make the page its own that is written next.

        Raises CacheFullError, taking none, if too few are free.
        """
        if length > sequence.room:
            self._grow(sequence, length, self.windows)

    def reserve(self, sequence: Sequence, length: int) -> None:
        """As `grow`, but without pages of layers with a window: of these a sequence never has those for all tokens."""
        self._grow(sequence, length, None)

    def _grow(self, sequence: Sequence, length: int, windows: WindowPool | None) -> None:
        with self._lock:
            self._release_idle(sequence, self._lacks(sequence, length, windows))
            if self._lacks_slot(sequence):
                raise CacheFullError("the KV cache is full: no slot left for the state of another sequence")
            if self._lacks(sequence, length, windows):
                missing = self.missing(sequence, length)
                raise CacheFullError(
                    f"the KV cache is full: {missing * PAGE_SIZE} more tokens needed, room for {self.free * PAGE_SIZE}"
                )
            sequence.row = None
            if self.states is not None and sequence.slot is None:
                sequence.slot, sequence.seen = self.states.resume(sequence.origin)
                sequence.origin = None
            while len(sequence.pages) < pages_for(length):
                sequence.pages.append(self._take())
            self._make_own(sequence, length)
            if windows is not None:
                windows.grow(sequence.window, len(sequence), length)
            if self.windows is None:  # others give pages back as they go on
                sequence.room = PAGE_SIZE * pages_for(length)

    def _lacks(self, sequence: Sequence, length: int, windows: WindowPool | None) -> bool:
        """Whether too few pages are free, or too few of `windows`, or no slot."""
        if self._lacks_slot(sequence):
            return True
        lacks = windows is not None and windows.missing(sequence.window, len(sequence), length) > windows.free
        return lacks or self.missing(sequence, length) > self.free

    def _lacks_slot(self, sequence: Sequence) -> bool:
        return self.states is not None and sequence.slot is None and not self.states.free

    def make_room(self, sequence: Sequence, pages: int) -> None:
        """Have pages released that are idle, if fewer than this many are free for a sequence."""
        self._release_idle(sequence, pages > self.free)

    def _release_idle(self, sequence: Sequence, short: bool) -> None:
        when_short = None if self._when_short is None else self._when_short()
        if short and when_short is not None:
            when_short(sequence)

    def _written(self, sequence: Sequence, length: int) -> int | None:
        """The page where the next token goes, if `sequence` has it already."""
        at = len(sequence) // PAGE_SIZE
        return sequence.pages[at] if length > len(sequence) and at < len(sequence.pages) else None

    def _is_own(self, page: int | None) -> bool:
        """Whether nobody else reads a page, or there is none."""
        return page is None or (self._refs.get(page, 0) < 2 and page not in self._retained)

    def _make_own(self, sequence: Sequence, length: int) -> None:
        """Copy the page that is written next if others read it; without a page to copy to, the store gives it up."""
        old = self._written(sequence, length)
        if old is None or self._is_own(old):
            return
        if not self.free:
            assert self.store is not None
            self.store.forget(old)
            return
        new = self._take()
        self.copier.copy(new, old)
        sequence.pages[len(sequence) // PAGE_SIZE] = new
        self._let_go(old)

    def _take(self) -> int:
        if self._released:
            page = self._released.pop()
        elif self._unused < self.n_pages:
            self._unused += 1
            page = self._unused - 1
        else:
            assert self.store is not None
            self.store.evict()
            page = self._released.pop()
        self._refs[page] = 1
        return page

    def lock(self, page: int) -> None:
        """One more sequence uses a page."""
        if page not in self._refs:
            assert self.store is not None
            self.cached -= 1
            self.store.on_lock(page)
        self._refs[page] = self._refs.get(page, 0) + 1

    def _let_go(self, page: int) -> None:
        self._refs[page] -= 1
        if self._refs[page]:
            return
        del self._refs[page]
        if page in self._retained:
            assert self.store is not None
            self.cached += 1
            self.store.on_unlock(page)
        else:
            self._released.append(page)

    def retain(self, page: int) -> None:
        """Keep a locked page from becoming empty when it is released, until `give_up`."""
        assert page in self._refs
        self._retained.add(page)

    def give_up(self, page: int) -> None:
        """Undo `retain`."""
        self._retained.remove(page)
        if page not in self._refs:
            self.cached -= 1
            self._released.append(page)

    def replace(self, sequence: Sequence, at: int, page: int) -> None:
        """Let `sequence` have another page in place of its `at`-th, in which the same tokens are."""
        with self._lock:
            self.lock(page)
            self._let_go(sequence.pages[at])
            sequence.pages[at], sequence.room, sequence.row = page, 0, None

    def fork(self, sequence: Sequence) -> Sequence:
        """A sequence of the same tokens in the same pages."""
        with self._lock:
            pages = sequence.pages[: pages_for(len(sequence))]
            for page in pages:
                self.lock(page)
            sequence.room = 0
            window = WindowPages() if self.windows is None else self.windows.fork(sequence.window, len(sequence))
            made = Sequence(pages, list(sequence.tokens), window, seen=sequence.seen, origin=sequence.origin)
            made.adapter = sequence.adapter
            made.hidden = None if sequence.hidden is None else sequence.hidden.copy()
            if self.states is not None and sequence.slot is not None:
                made.slot = self.states.fork(sequence.slot)
            return made

    def reached(self, sequence: Sequence, length: int) -> int:
        """`length`, or 0 where the sequence's state has seen another number of tokens."""
        return length if self.states is None or sequence.seen == length else 0

    def shrink(self, sequence: Sequence, length: int) -> None:
        """Forget what `sequence` holds past `length` tokens, and take back the pages that empties.

        All is forgotten where the window of the next token has been given back.
        """
        with self._lock:
            if self.windows is not None:
                length = length if self.windows.reaches(sequence.window, length) else 0
                self.windows.shrink(sequence.window, length)
            if self.states is not None and not length:
                if sequence.slot is not None:
                    self.states.give_back(sequence.slot)
                sequence.slot, sequence.seen, sequence.origin = None, 0, None
            del sequence.tokens[length:], sequence.keys[length // PAGE_SIZE + 1 :]
            sequence.kept = min(sequence.kept, length // PAGE_SIZE)
            sequence.room, sequence.row = 0, None
            keep = pages_for(length)
            released = sequence.pages[keep:]
            del sequence.pages[keep:]
            for page in reversed(released):
                self._let_go(page)

    def release(self, sequence: Sequence) -> None:
        """Take back all pages of `sequence`."""
        self.shrink(sequence, 0)


def rows(pages_of: list[int], start: int, stop: int) -> npt.NDArray[np.int64]:
    """Cache rows of the positions from `start` up to `stop` of a sequence that has these pages."""
    positions = np.arange(start, stop)
    pages = np.asarray(pages_of, np.int64)
    return pages[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
