"""Byte-pair merges of single words, in Python: for texts so few that making an engine for them takes longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

MOST_CHARACTERS = 20_000
"""Characters of texts, one after the other, that cost less here than the engine of a large vocabulary does."""
LONGEST_TEXT, LONGEST_WORD = 2_000, 100
"""Characters of a text, and of a word, which takes time of its length squared."""


class WordMerges:
    """Ids of words by merges: of all pairs side by side that which comes first in the list, of equal ones the left.

    lines    the merges, first the most important: two texts with one space between
    ids      those of tokens by their texts
    as_they_are  a word that is a token is that token
    """

    def __init__(self, lines: Sequence[str], ids: Mapping[str, int], as_they_are: bool) -> None:
        self._ids, self._as_they_are = ids, as_they_are
        self._ranks = dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))  # of a pair, the first
        self._left = MOST_CHARACTERS
        self._known: dict[str, list[int]] = {}

    def takes(self, text: str) -> bool:
        """Whether a text is one for `ids`; no more are, once they add up to what an engine costs."""
        self._left -= len(text)
        return len(text) <= LONGEST_TEXT and self._left >= 0

    def ids(self, words: Sequence[str]) -> list[int] | None:
        """The ids of words; None where some part of one is not a token, or one is long."""
        found: list[int] = []
        for word in words:
            if word not in self._known:
                merged = None if len(word) > LONGEST_WORD else self._merged(word)
                if merged is None:
                    return None
                self._known[word] = merged
            found += self._known[word]
        return found

    def _merged(self, word: str) -> list[int] | None:
        if self._as_they_are and word in self._ids:
            return [self._ids[word]]
        parts, last = list(word), len(self._ranks)
        if not all(part in self._ids for part in parts):
            return None
        while len(parts) > 1:
            ranks = [self._ranks.get(f"{a} {b}", last) for a, b in pairwise(parts)]
            least = min(ranks)
            if least == last:
                break
            at = ranks.index(least)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids[part] for part in parts] if all(part in self._ids for part in parts) else None
