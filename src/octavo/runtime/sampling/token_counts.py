"""How often tokens come in a part of a text, kept up to date as the text grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


class Counts(NamedTuple):
    """Tokens, each once in any order, and how often each comes; both int64 [tokens]."""

    ids: Ids
    counts: Ids


class Kept(Protocol):
    """What is known of a text, and kept as that grows."""

    def cut(self, text: Sequence[int], length: int) -> None:
        """Forget what comes after the first `length` tokens of a text, which still has them."""


class CountedWindow:
    """The tokens of a text from `begin` to `end`, counted; both may be moved."""

    def __init__(self) -> None:
        self.begin = self.end = 0
        self._places: dict[int, int] = {}
        self._rows: np.ndarray[tuple[int, int], np.dtype[np.int64]] = np.zeros((2, 16), np.int64)

    def move(self, text: Sequence[int], begin: int, end: int) -> None:
        """Count the tokens of `text` from `begin` to `end`, which has those counted so far where they were."""
        if begin >= self.end or end <= self.begin:
            self.begin = self.end = begin
            self._places.clear()
        self._add(text[self.end : end])
        self._add(text[begin : self.begin])
        self._remove(text[end : self.end])
        self._remove(text[self.begin : begin])
        self.begin, self.end = begin, end

    def cut(self, text: Sequence[int], length: int) -> None:
        self.move(text, min(self.begin, length), min(self.end, length))

    def counts(self) -> Counts:
        """What is counted now, in memory of its own."""
        ids, counts = self._rows[:, : len(self._places)].copy()
        return Counts(ids, counts)

    def _add(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            n = len(self._places)
            place = self._places.setdefault(token, n)
            if place == n:
                if n == self._rows.shape[1]:
                    self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)], axis=1)
                self._rows[:, n] = token, 0
            self._rows[1, place] += 1

    def _remove(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            place = self._places[token]
            self._rows[1, place] -= 1
            if not self._rows[1, place]:
                del self._places[token]
                if (last := len(self._places)) != place:  # the last one takes its place
                    self._rows[:, place] = self._rows[:, last]
                    self._places[int(self._rows[0, place])] = place


K = TypeVar("K", bound=Kept)


class CountedText(list[int]):
    """Tokens to which more are added, and what is counted of them; a draft's go on from those of `base`."""

    def __init__(self, tokens: Iterable[int] = (), base: CountedText | None = None) -> None:
        super().__init__(tokens)
        self.base = base
        self.kept: dict[object, Kept] = {}

    def cut(self, length: int) -> None:
        """Lose all but the first `length` tokens."""
        for one in self.kept.values():
            one.cut(self, length)
        del self[length:]

    def known(self, key: object, kind: type[K], first: Callable[[], K]) -> K:
        """What is kept under a key, or else `first`, from now on."""
        found = self.kept.get(key)
        if not isinstance(found, kind):
            found = self.kept[key] = first()
        return found


def counted(text: Sequence[int], begin: int, key: object) -> Counts:
    """How often tokens come in a text from `begin` on, counted on from where `key` has counted a `CountedText` before.

    The tokens of a draft leave nothing in the counts of the text before them.
    """
    if not isinstance(text, CountedText):
        window = CountedWindow()
    elif (base := text.base) is None:
        window = text.known(key, CountedWindow, CountedWindow)
    else:
        window = base.known(key, CountedWindow, CountedWindow)
    before = window.begin, window.end
    window.move(text, min(begin, len(text)), len(text))
    found = window.counts()
    if isinstance(text, CountedText) and text.base is not None:
        window.move(text, *before)
    return found
