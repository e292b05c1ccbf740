"""The tier in the host's memory: what the device had no room for, the least recently used first to go."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from octavo.graph.protocol import Saved
from octavo.runtime.cache.tiers.entry import Entry


class HostTier:
    """Up to `limit` bytes of entries, as backends save them. Any thread may call."""

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes = limit, 0
        self._entries: OrderedDict[bytes, OrderedDict[str, tuple[Entry, Sequence[Saved], int]]] = OrderedDict()
        self._lock = Lock()

    def put(self, entry: Entry, saved: Sequence[Saved], given_back: int = 0) -> None:
        """Keep an entry, and drop what was not used for the longest time to make room; those after one page together.

        Pages leave the device from the last one of a prefix on, so that the first ones are those used last.
        """
        size = sum(one.nbytes for one in saved)
        with self._lock:
            self._drop(entry)
            if size > self.limit:
                return
            while self.nbytes + size > self.limit:
                self._drop(next(iter(next(iter(self._entries.values())).values()))[0])
            self._entries.setdefault(entry.parent, OrderedDict())[entry.name] = entry, saved, given_back
            self._entries.move_to_end(entry.parent)
            self.nbytes += size

    def get(self, entry: Entry) -> tuple[Sequence[Saved], int] | None:
        """What was kept of an entry, which is used now, and the pages that its window had given back."""
        with self._lock:
            if (beside := self._entries.get(entry.parent)) is None or (found := beside.get(entry.name)) is None:
                return None
            self._entries.move_to_end(entry.parent)
            return found[1:]

    def has(self, entry: Entry) -> bool:
        with self._lock:
            return entry.name in self._entries.get(entry.parent, {})

    def after(self, parent: bytes) -> list[Entry]:
        """What is here after a page."""
        with self._lock:
            return [entry for entry, _, _ in self._entries.get(parent, {}).values()]

    def remove(self, entry: Entry) -> None:
        with self._lock:
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        beside = self._entries.get(entry.parent)
        if beside is not None and (found := beside.pop(entry.name, None)) is not None:
            self.nbytes -= sum(one.nbytes for one in found[1])
            if not beside:
                del self._entries[entry.parent]
