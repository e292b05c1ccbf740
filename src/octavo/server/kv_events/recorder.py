"""What happens in the prefix tree, noted in the engine's thread, and turned into events in the publisher's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.prefix_tree import PrefixNode, PrefixTree, Tokens
from octavo.server.kv_events.block_hash import ExtraKey, block_hash, first_parent, short_hash
from octavo.server.kv_events.wire import MEDIUM, AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch

MOST_BATCHES = 4096
"""Batches that may wait for the publisher; then they are dropped, and the whole tree is told once there is room."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A page became full, or was found to be there."""

    node: PrefixNode
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Removed:
    """A full page is gone."""

    node: PrefixNode


CLEARED = None
Change = Stored | Removed | None
Noted = tuple[float, list[Change]]


class Recorder:
    """Listens to a prefix tree. `flush` hands what it heard since the last time to `queue`, and calls `wake`.

    A step never waits for the publisher. Where too many batches wait for that, further ones are dropped, and made up
    for by `CLEARED` and all pages that are there. The first batch is of that kind too: who followed an earlier engine
    has its pages.

    tell_all  all pages are to be told
    """

    def __init__(self, tree: PrefixTree, wake: Callable[[], None]) -> None:
        self.tree, self._wake = tree, wake
        self.queue: deque[Noted] = deque()
        self.tell_all = True
        self._changes: list[Change] = []
        tree.listener = self

    def stored(self, node: PrefixNode) -> None:
        self._changes.append(Stored(node, node.tokens))

    def removed(self, node: PrefixNode) -> None:
        self._changes.append(Removed(node))

    def cleared(self) -> None:
        self._changes = [CLEARED]

    def flush(self) -> None:
        """Hand over what happened; between steps, in the engine's thread."""
        changes, self._changes = self._changes, []
        if self.tell_all or len(self.queue) >= MOST_BATCHES:
            self.tell_all = True
            if len(self.queue) > MOST_BATCHES // 2:
                return
            self.tell_all = False
            changes = [CLEARED, *(Stored(node, node.tokens) for node in self.tree.full_nodes())]
        if changes:
            self.queue.append((time.time(), changes))
            self._wake()


class Events:
    """Makes events of changes, and keeps the hashes of pages for that.

    rank  of this engine among replicas of its model
    lora  adapters of all requests, which hashes depend on
    """

    def __init__(self, rank: int, lora: Sequence[ExtraKey] = ()) -> None:
        self.rank, self._lora = rank, tuple(lora)
        self._first = first_parent()
        self._hashes: dict[PrefixNode, bytes] = {}  # each after the one before it

    def snapshot(self) -> EventBatch:
        """All pages, behind `AllBlocksCleared`: what somebody needs who has none of the batches so far."""
        return self.batch((time.time(), [CLEARED, *(Stored(node, node.tokens) for node in self._hashes)]))

    def batch(self, noted: Noted) -> EventBatch:
        """The events of a batch of changes."""
        at, changes = noted
        events: list[Event] = []
        for change in changes:
            if change is CLEARED:
                self._hashes.clear()
                events.append(AllBlocksCleared())
            elif isinstance(change, Removed):
                digest = self._hashes.pop(change.node, None)
                if digest is not None:
                    self._add_removed(events, short_hash(digest))
            else:
                self._add_stored(events, change)
        return EventBatch(at, events, self.rank)

    def _add_removed(self, events: list[Event], digest: int) -> None:
        last = events[-1] if events else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(digest)
        else:
            events.append(BlockRemoved([digest], MEDIUM))

    def _add_stored(self, events: list[Event], change: Stored) -> None:
        """Add the event of a page: one for each, as AIBrix takes all pages of an event for children of its parent.

        There is none where the page before is not known: it was in a batch that was dropped, and all will be told.
        """
        node, parent = change.node, change.node.above
        is_first = parent.parent is None
        before = self._first if is_first else self._hashes.get(parent)
        if before is None:
            return
        salt = str(node.cache_salt) if is_first else ""
        digest = block_hash(before, change.tokens, (*self._lora, ("cache_salt", salt)) if salt else self._lora)
        self._hashes[node] = digest
        events.append(BlockStored(
            [short_hash(digest)], None if is_first else short_hash(before), list(change.tokens), PAGE_SIZE,
            None, MEDIUM, None, [(salt,)] if salt else None,
        ))
