"""PrefixTiers: keeps what is computed of sequences beyond the device's pages, and the process.

Pages are copied once, when they are complete, in the engine's thread, after the step that completed them; a thread of
its own writes them. What it is behind by is bounded: pages beyond that are copied after later steps, or never. A page
that makes room on the device goes to the host's memory then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Condition, Thread
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from octavo.formats.spec import U8
from octavo.graph.node import PAGE_SIZE
from octavo.graph.protocol import Saved
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.cache.prefix_tree import PrefixNode
from octavo.runtime.cache.tiers.disk_tier import DiskTier
from octavo.runtime.cache.tiers.entry import Entry, page_entry, page_key, root_key
from octavo.runtime.cache.tiers.host_tier import HostTier
from octavo.runtime.cache.window_pool import pages_for

if TYPE_CHECKING:
    from octavo.runtime.engine.engine import Engine

log = logging.getLogger("octavo")
MOST_BEHIND = 64 << 20
"""Bytes that may wait to be written, but for one entry that is larger."""
CLOSE_S = 4.0
"""Seconds that the last entries have to be written, when the engine ends."""


@dataclass(frozen=True, slots=True)
class Write:
    """An entry for the writer: what was copied, in one or several parts."""

    entry: Entry
    parts: Seq[Saved]
    given_back: int
    nbytes: int


class PrefixTiers:
    """What is kept of an engine's sequences, on disk and in the host's memory; one of them may be missing.

    `keep`, `keep_last` and `evicted` are for the engine's thread, the rest is for any.
    """

    def __init__(self, engine: Engine, fingerprint: bytes, disk: DiskTier | None, host: HostTier | None) -> None:
        self.engine, self.fingerprint, self.disk, self.host = engine, fingerprint, disk, host
        self._roots: dict[str, bytes] = {}
        self._known: set[bytes] = set()  # keys of pages that are on disk, or on their way
        self._queue = SimpleQueue[Write | list[Entry] | None]()
        self._behind, self._less = 0, Condition()
        if disk is not None:
            Thread(target=self._write_all, args=(disk,), name="prefixes", daemon=True).start()

    @property
    def tiers(self) -> list[HostTier | DiskTier]:
        """The faster one first."""
        return [tier for tier in (self.host, self.disk) if tier is not None]

    def root(self, salt: str) -> bytes:
        """The key before the first page of requests with a salt."""
        found = self._roots.get(salt)
        if found is None:
            if len(self._roots) > 1 << 12:
                self._roots.clear()
            self._roots[salt] = found = root_key(self.fingerprint, salt)
        return found

    def keep(self, sequence: Sequence, salt: str) -> bool:
        """Keep the full pages of a sequence; whether all are, which they are not while too many wait to be written."""
        full = len(sequence) // PAGE_SIZE
        keys = sequence.keys or [self.root(salt)]
        sequence.keys = keys
        for at in range(sequence.kept, full):
            entry = page_entry(keys[at], sequence.tokens, at)
            if not self._put(entry, "rows", [sequence.pages[at]]):
                return False
            keys[at + 1 :] = [entry.key]
            sequence.kept = at + 1
        return True

    def keep_last(self, sequence: Sequence, salt: str, at_length: int | None = None) -> None:
        """Keep what another sequence needs to go on where this one is: the page that is not full, its state, and what
        its window reaches. `at_length`: after this many of its tokens, in full pages; it goes on itself."""
        length, pool = at_length or len(sequence), self.engine.pool
        if not length or not self.keep(sequence, salt):
            return
        at, rest = (length - 1) // PAGE_SIZE, length % PAGE_SIZE
        entry = page_entry(sequence.keys[at], sequence.tokens, at)
        if rest and not self._put(entry, "rows", [sequence.pages[at]]):
            return
        if pool.states is not None and sequence.slot is not None and sequence.seen == length:
            self._put(entry.of("state"), "states", [sequence.slot])
        if pool.windows is not None and pool.windows.reaches(sequence.window, length):
            back = sequence.window.given_back
            self._put(entry.of("window"), "window_rows", sequence.window.pages[back : pages_for(length)], back)
        if at_length is None and self.disk is not None:
            pages = [page_entry(sequence.keys[i], sequence.tokens, i) for i in reversed(range(pages_for(length)))]
            self._queue.put(pages)

    def _put(self, entry: Entry, place: str, numbers: Seq[int], given_back: int = 0) -> bool:
        """Keep a copy of an entry, unless that is done or under way; False where too many wait to be written.

        In the host's memory are pages that the device has no longer, and what it may drop at any time.
        """
        is_page = entry.kind == "page"
        host = None if is_page and self.engine.pool.shares else self.host
        writes = self.disk is not None and not (is_page and entry.key in self._known)
        if writes and self._behind >= MOST_BEHIND:
            return False
        parts = [part for number in numbers for part in self._save(place, number)] if writes or host else []
        if host is not None:
            host.put(entry, parts, given_back)
        if writes:
            nbytes = sum(part.nbytes for part in parts)
            with self._less:
                self._behind += nbytes
            if is_page:
                self._known.add(entry.key)
            self._queue.put(Write(entry, parts, given_back, nbytes))
        return True

    def was_read(self, entry: Entry) -> None:
        """An entry is on disk: sequences that have it need not be kept again so far."""
        if entry.kind == "page":
            self._known.add(entry.key)

    def _save(self, place: str, number: int) -> list[Saved]:
        return self.engine.load().save(place, number)

    def evicted(self, node: PrefixNode) -> None:
        """A page of the tree is about to be another one's."""
        if self.host is not None:
            self.host.put(Entry(self._key(node.above), node.tokens), self._save("rows", node.page))

    def _key(self, node: PrefixNode) -> bytes:
        """The key of a full page of the tree, or of a root."""
        above = [node]
        while not above[-1].key and above[-1].parent is not None:
            above.append(above[-1].above)
        for one in reversed(above):
            if not one.key:
                is_root = one.parent is None
                one.key = self.root(str(one.cache_salt)) if is_root else page_key(one.above.key, one.tokens)
        return node.key

    def forget(self, sequence: Sequence, salt: str, first: int = 0) -> None:
        """Drop what is kept of a sequence from its page `first` on, and what follows these pages."""
        parent = self.root(salt)
        for at in range(pages_for(len(sequence))):
            page = page_entry(parent, sequence.tokens, at)
            for tier in self.tiers if at >= first else ():
                for entry in [page, page.of("state"), page.of("window"), *tier.after(page.key)]:
                    tier.remove(entry)
                    self._known.discard(entry.key)
            parent = page.key

    def _write_all(self, disk: DiskTier) -> None:
        while (work := self._queue.get()) is not None:
            try:
                if isinstance(work, Write):
                    if not disk.put(work.entry, joined(work.parts), work.given_back):
                        self._known.discard(work.entry.key)
                else:
                    for kind in ("window", "state"):
                        disk.touch(work[0].of(kind))
                    for entry in work:
                        if not disk.touch(entry):  # another engine has removed it
                            self._known.discard(entry.key)
            except Exception:  # a cache is worth no request
                log.exception("a prefix can't be kept")
            if isinstance(work, Write):
                with self._less:
                    self._behind -= work.nbytes
                    self._less.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all that was kept is written, so long at the most; whether it is."""
        with self._less:
            return self._less.wait_for(lambda: self._behind == 0, seconds)

    def close(self) -> None:
        """Write what is left, as far as there is time, and end."""
        began = monotonic()
        if not self.flush(CLOSE_S):
            log.warning("%d MB of prefixes were not kept: the disk is too slow", self._behind >> 20)
        self._queue.put(None)
        log.info("prefixes were written in %.1f s", monotonic() - began)


def joined(parts: Seq[Saved]) -> U8:
    """The bytes of what was saved."""
    if len(parts) == 1:
        return parts[0].data()
    return np.concatenate([np.empty(0, np.uint8), *(part.data() for part in parts)])
