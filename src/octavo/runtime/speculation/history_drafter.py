"""Drafts from replies that ended: how a text may go on, from where its last tokens occurred in one of them.

Servers write the same again and again: forms of JSON, code of one project, answers to questions that others ask, too.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

LENGTH = 5
"""Tokens that have to be the same."""
MOST_TOKENS = 1 << 17
"""Tokens of replies that are kept; the oldest go first."""


class HistoryDrafter:
    """Replies by where tokens occur in them; requests see those of their own `salt` alone, as in the prefix cache."""

    def __init__(self, most: int = MOST_TOKENS) -> None:
        self._most, self._count, self._next = most, 0, 0
        self._texts: OrderedDict[int, tuple[str, array[int]]] = OrderedDict()
        self._ends: dict[int, tuple[int, int]] = {}  # by a hash: a text, and where in it these tokens end

    def add(self, tokens: Sequence[int], salt: str) -> None:
        """Keep the end of a reply."""
        text = array("i", tokens[-self._most :])
        if len(text) <= LENGTH:
            return
        self._texts[self._next] = salt, text
        self._count += len(text)
        for end in range(LENGTH, len(text)):
            self._ends[_hash(text[end - LENGTH : end], salt)] = self._next, end
        self._next += 1
        while self._count > self._most:
            number, (salt, text) = self._texts.popitem(last=False)
            self._count -= len(text)
            for end in range(LENGTH, len(text)):
                key = _hash(text[end - LENGTH : end], salt)
                if self._ends.get(key, (None, 0))[0] == number:
                    del self._ends[key]

    def draft(self, tokens: Sequence[int], n: int, salt: str) -> list[int]:
        """At most n tokens that came next where the last ones occurred; none where they did not."""
        last = tokens[-LENGTH:]
        found = self._ends.get(_hash(last, salt)) if len(last) == LENGTH else None
        if found is None:
            return []
        number, end = found
        whose, text = self._texts[number]
        same = whose == salt and text[end - LENGTH : end].tolist() == list(last)
        return text[end : end + n].tolist() if same else []


def _hash(tokens: Sequence[int], salt: str) -> int:
    return hash((salt, *tokens))
