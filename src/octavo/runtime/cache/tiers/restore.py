"""Restores: what is kept of a prompt's prefix, brought back into pages while its request waits.

Threads find and read; the engine's thread, between steps, copies what was read into pages that it takes for it, and
inserts these into the prefix tree, where the request finds them as any other. Of layers with a window, which share no
pages, the request gets the sequence itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Semaphore
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import CacheFullError
from octavo.formats.spec import U8
from octavo.graph.node import PAGE_SIZE
from octavo.graph.protocol import Saved
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.cache.prefix_tree import common_length
from octavo.runtime.cache.tiers.entry import Entry, Kind, page_entry
from octavo.runtime.cache.tiers.prefix_tiers import PrefixTiers
from octavo.runtime.cache.window_pool import pages_for

if TYPE_CHECKING:
    from octavo.runtime.engine.engine import Engine

log = logging.getLogger("octavo")
AT_ONCE = 4
"""Prompts whose prefixes are looked for at a time."""
READ_AHEAD = 8
"""Entries of a prompt that are read before one is copied."""
PATIENCE_S = 10.0
"""Seconds without another entry after which a request goes on without."""
PLACES: dict[Kind, str] = {"page": "rows", "state": "states", "window": "window_rows"}
BESIDE = 2
"""Entries that are copied between two steps of others."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An entry to copy after `start` tokens, of whose tokens the first `n` are the prompt's."""

    entry: Entry
    start: int
    n: int
    data: U8 | Seq[Saved]
    given_back: int = 0


@dataclass(eq=False)
class Restore:
    """What is found of a prompt: `sequence` has what is copied so far, `floor` tokens are here without it.

    memory  what was read there is copied, so that others may be read there
    done    the request may begin
    """

    tokens: Seq[int]
    salt: str
    sequence: Sequence
    floor: int
    pieces: SimpleQueue[Piece | None] = field(default_factory=SimpleQueue)
    ahead: Semaphore = field(default_factory=lambda: Semaphore(READ_AHEAD))
    memory: deque[U8] = field(default_factory=deque)
    heard: float = field(default_factory=monotonic)
    done: bool = False


class Restorer:
    """Restores of an engine's requests. But for what threads do, it is for the engine's thread."""

    def __init__(self, tiers: PrefixTiers) -> None:
        self.tiers, self.engine = tiers, tiers.engine
        self._threads = ThreadPoolExecutor(AT_ONCE, "prefix-reader")
        self._active: list[Restore] = []
        self._arrived = Event()

    def begin(self, tokens: Seq[int], salt: str, floor: int) -> Restore | None:
        """Look for what is kept of a prompt, of which `floor` tokens are here; None: later, others are looked for.

        One that begins like another waits for it, and finds it in the tree.
        """
        first = list(tokens[:PAGE_SIZE])
        alike = any(one.salt == salt and list(one.tokens[:PAGE_SIZE]) == first for one in self._active)
        if alike or len(self._active) >= AT_ONCE:
            return None
        tokens = list(tokens[:-1])  # the logits of the last one are needed
        sequence = Sequence()
        if self.engine.pool.shares:
            sequence = self.engine.prefixes.lock_prefix(tokens, salt)
        made = Restore(tokens, salt, sequence, floor)
        self._active.append(made)
        self._threads.submit(self._read, made, len(sequence) // PAGE_SIZE)
        return made

    def go_on(self, restore: Restore, *, alone: bool) -> bool:
        """Copy what was read meanwhile, all of it if no other request runs; whether the request may begin."""
        left = -1 if alone else BESIDE
        self._arrived.clear()
        while not restore.done and left:
            try:
                piece = restore.pieces.get_nowait()
            except Empty:
                if monotonic() - restore.heard > PATIENCE_S:
                    log.warning("a kept prefix is left out: it was not read within %.0f s", PATIENCE_S)
                    self.end(restore)
                return restore.done
            restore.heard = monotonic()
            restore.ahead.release()
            left -= 1
            if piece is None or not copied(self.engine, restore.sequence, restore.salt, piece):
                self.end(restore)
            elif isinstance(piece.data, np.ndarray):
                restore.memory.append(piece.data)
        return restore.done

    def wait(self, seconds: float) -> None:
        """Wait until there is something to copy, where nothing else is to be done."""
        self._arrived.wait(seconds)

    def end(self, restore: Restore) -> None:
        """Let its pages be used: the request begins, or has ended. Of layers with a window they are `taken`."""
        if not restore.done:
            restore.done = True
            self._active.remove(restore)
            restore.ahead.release(READ_AHEAD)  # who reads looks whether it is to go on
            if self.engine.pool.shares or not self._reaches(restore.sequence):
                self.engine.pool.release(restore.sequence)

    @property
    def reserved(self) -> int:
        """Pages that prompts are to have whose prefixes are being read, beyond those that are taken."""
        return sum(pages_for(len(one.tokens) + 1) - len(one.sequence.pages) for one in self._active)

    @property
    def active(self) -> bool:
        """Whether prefixes are being read."""
        return bool(self._active)

    def give_way(self, sequence: Sequence) -> None:
        """End all, as another sequence is short of their pages."""
        for restore in () if any(one.sequence is sequence for one in self._active) else tuple(self._active):
            self.end(restore)
            self.engine.pool.release(restore.sequence)

    def taken(self, restore: Restore) -> Sequence | None:
        """The sequence of a model whose layers share no pages; None where nothing was found. Once."""
        found, restore.sequence = restore.sequence, Sequence()
        return found if len(found) else None

    def _reaches(self, sequence: Sequence) -> bool:
        """Whether it has the pages of the next token's window."""
        return len(sequence.window.pages) == pages_for(len(sequence))

    def _read(self, restore: Restore, have: int) -> None:
        """In a thread: find what is kept after the first `have` pages, and read it, piece by piece."""
        try:
            for entry, start, n in self._found(restore, have):
                restore.ahead.acquire()
                piece = None if restore.done else self._piece(entry, start, n, restore.memory)
                if piece is None:
                    return
                restore.pieces.put(piece)
                self._arrived.set()
        except Exception:
            log.exception("a kept prefix is left out")
        finally:
            restore.pieces.put(None)
            self._arrived.set()

    def _piece(self, entry: Entry, start: int, n: int, memory: deque[U8]) -> Piece | None:
        host, disk = self.tiers.host, self.tiers.disk
        if host is not None and (kept := host.get(entry)) is not None:
            return Piece(entry, start, n, *kept)
        read = None if disk is None else disk.get(entry, memory.popleft() if memory else None)
        if read is None or len(read.data) % max(self.engine.load().saved_bytes(PLACES[entry.kind]), 1):
            return None
        self.tiers.was_read(entry)
        return Piece(entry, start, n, read.data, read.given_back)

    def _found(self, restore: Restore, have: int) -> Iterator[tuple[Entry, int, int]]:
        """The entries to copy, in order, each with the tokens before it, and how many of its own are the prompt's."""
        tokens, pages = restore.tokens, list[Entry]()
        parents = [self.tiers.root(restore.salt)]
        for at in range(have):
            parents.append(page_entry(parents[-1], tokens, at).key)
        while len(tokens) >= len(parents) * PAGE_SIZE:
            entry = page_entry(parents[-1], tokens, len(parents) - 1)
            if not self._has(entry):
                break
            pages.append(entry)
            parents.append(entry.key)
        pool = self.engine.pool
        if pool.states is None and pool.windows is None:
            yield from _placed(pages, have)
            rest = tuple(tokens[(len(parents) - 1) * PAGE_SIZE :][:PAGE_SIZE])
            start, after = (len(parents) - 1) * PAGE_SIZE, [e for e in self._after(parents[-1]) if e.kind == "page"]
            near = max(after, key=lambda e: common_length(e.tokens, rest), default=None)
            n = 0 if near is None else common_length(near.tokens, rest)
            if near is not None and n and start + n > restore.floor:
                yield near, start, n
            return
        kind: Kind = "window" if pool.states is None else "state"
        for at in reversed(range(len(parents))):
            rest = tuple(tokens[at * PAGE_SIZE : (at + 1) * PAGE_SIZE])
            beside = [e for e in self._after(parents[at]) if e.kind == kind and e.tokens == rest[: len(e.tokens)]]
            last = max(beside, key=lambda e: len(e.tokens), default=None)
            if last is None or not (at < len(parents) - 1 or self._has(last.of("page"))):
                continue
            length = at * PAGE_SIZE + len(last.tokens)
            if length > restore.floor:
                before, is_full = pages[: max(at - have, 0)], len(last.tokens) == PAGE_SIZE
                whole = [] if is_full and at < have else [last.of("page")]
                yield from _placed(before, have)
                yield from ((entry, at * PAGE_SIZE, len(entry.tokens)) for entry in whole)
                yield last, length, len(last.tokens)
            return

    def _has(self, entry: Entry) -> bool:
        return any(tier.has(entry) for tier in self.tiers.tiers)

    def _after(self, parent: bytes) -> list[Entry]:
        return [entry for tier in self.tiers.tiers for entry in tier.after(parent)]


def copied(engine: Engine, sequence: Sequence, salt: str, piece: Piece) -> bool:
    """Copy a piece to where a sequence goes on, and insert it into the tree; False where there is no room for it, or
    it does not fit."""
    pool, executor, entry = engine.pool, engine.load(), piece.entry
    try:
        if len(sequence) > piece.start:  # a state is kept after fewer tokens than the tree has pages of
            pool.shrink(sequence, piece.start)
        if entry.kind == "window":
            return _copied_window(engine, sequence, piece)
        if entry.kind == "state":
            if pool.states is None:
                return False
            pool.reserve(sequence, len(sequence))
            assert sequence.slot is not None
            executor.restore("states", sequence.slot, piece.data)
            sequence.seen = len(sequence)
            engine.prefixes.insert_state(sequence, salt, give=True)
            return True
        length = len(sequence) + piece.n
        if len(sequence) % PAGE_SIZE:
            return False
        pool.reserve(sequence, length)
        executor.restore("rows", sequence.pages[len(sequence) // PAGE_SIZE], piece.data)
        sequence.tokens += entry.tokens[: piece.n]
        if pool.shares:
            engine.prefixes.insert(sequence, salt, tail=piece.n < PAGE_SIZE)
        return True
    except CacheFullError:
        return False


def _copied_window(engine: Engine, sequence: Sequence, piece: Piece) -> bool:
    windows, executor = engine.pool.windows, engine.load()
    count, back = pages_for(len(sequence)) - piece.given_back, piece.given_back
    if windows is None or not 0 < count <= windows.free:
        return False
    sequence.window = windows.take(back, count)
    size = len(piece.data) // count
    for i, page in enumerate(sequence.window.pages[back:]):
        executor.restore("window_rows", page, piece.data[i * size : (i + 1) * size])
    return True


def _placed(pages: Seq[Entry], have: int) -> Iterator[tuple[Entry, int, int]]:
    return ((entry, (have + i) * PAGE_SIZE, PAGE_SIZE) for i, entry in enumerate(pages))
