"""Slots: a conversation's pages, and its state or window, saved to a file of their own, restored from it, and erased.

A file has the entries of the conversation, one after the other, each before what follows it. It is done in pieces, an
entry each, between which others compute.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from octavo.errors import CacheFullError, FileError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.io.atomic import failures_of, replace_file
from octavo.io.regular_file import open_regular
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.cache.prefix_tree import common_length
from octavo.runtime.cache.tiers.entry import Entry, page_entry
from octavo.runtime.cache.tiers.entry_file import read_entry, write_entry
from octavo.runtime.cache.tiers.prefix_tiers import PrefixTiers, joined
from octavo.runtime.cache.tiers.restore import Piece, copied
from octavo.runtime.cache.window_pool import pages_for
from octavo.runtime.engine.thread import Pieces
from octavo.runtime.scheduler.scheduler import Scheduler


class SlotFiles:
    """Saves and restores conversations of an engine; for its thread."""

    def __init__(self, tiers: PrefixTiers, scheduler: Scheduler) -> None:
        self.tiers, self.engine, self.scheduler = tiers, tiers.engine, scheduler

    def save(self, tokens: Seq[int], salt: str, path: str) -> Pieces[tuple[int, int]]:
        """Write what is computed of a conversation: its tokens, and the bytes of the file. Raises FileError."""
        executor, pool = self.engine.load(), self.engine.pool
        sequence = self._held(tokens, salt)
        try:
            if not len(sequence):
                raise UsageError("nothing of the slot is in the cache")
            with failures_of(path), replace_file(path, flush=False, mode=0o600) as made, open(made, "wb") as file:
                parent, entry = self.tiers.root(salt), Entry(b"", ())
                for at, page in enumerate(sequence.pages[: pages_for(len(sequence))]):
                    entry = page_entry(parent, sequence.tokens, at)
                    write_entry(file, entry, joined(executor.save("rows", page)))
                    parent = entry.key
                    yield
                if pool.states is not None and sequence.origin is not None:
                    write_entry(file, entry.of("state"), joined(executor.save("states", sequence.origin.slot)))
                if pool.windows is not None and len(sequence):
                    back = sequence.window.given_back
                    pages = sequence.window.pages[back : pages_for(len(sequence))]
                    parts = [part for page in pages for part in executor.save("window_rows", page)]
                    write_entry(file, entry.of("window"), joined(parts), back)
                return len(sequence), file.tell()
        finally:
            if pool.shares:
                pool.release(sequence)

    def _held(self, tokens: Seq[int], salt: str) -> Sequence:
        """What is here of a conversation: its pages are locked, or those of the sequence that ended last."""
        if self.engine.pool.shares:
            return self.engine.prefixes.match_prefix([*tokens, 0], salt)
        last_salt, last = self.scheduler.last
        same = last_salt == salt and common_length(last.tokens, list(tokens)) == len(last)
        return last if same else Sequence()

    def restore(self, salt: str, path: str) -> Pieces[tuple[list[int], int]]:
        """Bring back a conversation: its tokens, and the bytes read. Raises FileError, CacheFullError."""
        pool, sequence, parent = self.engine.pool, Sequence(), self.tiers.root(salt)
        kept = False
        try:
            with open_regular(path, "a saved slot") as file:
                while (found := read_entry(file, path)) is not None:
                    entry, is_page = found.entry, found.entry.kind == "page"
                    if entry.parent != parent and not (entry.key == parent and not is_page):
                        problem = "is of another model, or of a client with another key" if not len(sequence) \
                            else "its pages do not follow each other"
                        raise FileError(problem, file=path)
                    piece = Piece(entry, len(sequence), len(entry.tokens), found.data, found.given_back)
                    if not copied(self.engine, sequence, salt, piece):
                        raise CacheFullError("the KV cache has no room for the saved slot")
                    parent = entry.key
                    yield
                tokens, read = list(sequence.tokens), file.tell()
            if not pool.shares and len(sequence.window.pages) == pages_for(len(sequence)):
                self.scheduler.keep_as_last(sequence, salt)
                kept = True
            return tokens, read
        finally:
            if not kept:
                pool.release(sequence)

    def erase(self, tokens: Seq[int], salt: str) -> Pieces[int]:
        """Drop what only this conversation has, kept entries too: how many tokens that were."""
        sequence = Sequence([], list(tokens))
        if self.engine.pool.shares:
            left = self.engine.prefixes.erase(tokens, salt)
        else:
            left = 0
            if self._held(tokens, salt).tokens:
                self.scheduler.forget()
        if self.tiers.tiers:
            self.tiers.forget(sequence, salt, left // PAGE_SIZE)
        return len(tokens) - left
        yield
