"""Special tokens are found in the text before anything else: cutting it into tokens and the text between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SPACES = " \t\n\v\f\r"


@dataclass(frozen=True)
class SpecialToken:
    """A token matched by its text.

    `lstrip`, `rstrip`: white space (ASCII) next to it on that side belongs to it. `guarded`: text from outside is never
    taken for it.
    """

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False
    guarded: bool = False


class Partition:
    """Cuts text at special tokens as llama.cpp does: the longest tokens first (in bytes), each from left to right.

    A shorter token can't match inside or across a longer one that was found before, even if it starts earlier.
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._groups: dict[str, list[SpecialToken]] = {}
        self._rank: dict[int, int] = {}
        ordered = sorted(tokens, key=lambda t: len(t.text.encode("utf-8", "surrogatepass")), reverse=True)
        for rank, token in enumerate(ordered):
            self._rank[token.id] = rank
            self._groups.setdefault(token.text[:2], []).append(token)

    @property
    def longest(self) -> int | None:
        """Bytes of the longest token; None where white space may belong to one, however much there is."""
        tokens = [token for group in self._groups.values() for token in group]
        stripping = any(token.lstrip or token.rstrip for token in tokens)
        return None if stripping else max((len(t.text.encode("utf-8", "surrogatepass")) for t in tokens), default=0)

    def split(self, text: str, foreign: bytes = b"") -> Iterator[int | str]:
        """The special tokens' ids and, between them, the pieces of text that are none; no empty piece.

        foreign: for each character 1 where no guarded token may have it; empty for none.
        """
        present = [t for start, group in self._groups.items() if start in text for t in group if t.text in text]
        if not present:
            if text:
                yield text
            return
        present.sort(key=lambda t: self._rank[t.id])
        found = _find_all(text, present, foreign)
        at = 0
        for start, end, token in sorted(found):
            if start > at:
                yield text[at:start]
            if token >= 0:
                yield token
            at = end
        if at < len(text):
            yield text[at:]


def _find_all(text: str, tokens: list[SpecialToken], foreign: bytes) -> list[tuple[int, int, int]]:
    """(start, end, id) of every match, in no order; id is -1 for white space that a token strips."""
    taken = bytearray(len(text))
    found = []

    def take(start: int, end: int, token: int) -> None:
        if end > start:
            found.append((start, end, token))
            taken[start:end] = b"\x01" * (end - start)

    for token in tokens:
        at = text.find(token.text)
        while at >= 0:
            end = at + len(token.text)
            clash = taken.find(1, at, end)
            if token.guarded and foreign.find(1, at, end) >= 0:
                end = at + 1
            elif clash >= 0:
                after = taken.find(0, clash)
                end = len(text) if after < 0 else after
            else:
                take(at, end, token.id)
                if token.lstrip:
                    take(_strip_left(text, taken, at), at, -1)
                if token.rstrip:
                    after = _strip_right(text, taken, end)
                    take(end, after, -1)
                    end = after
            at = text.find(token.text, end)
    return found


def _strip_left(text: str, taken: bytearray, at: int) -> int:
    while at > 0 and not taken[at - 1] and text[at - 1] in _SPACES:
        at -= 1
    return at


def _strip_right(text: str, taken: bytearray, at: int) -> int:
    while at < len(text) and not taken[at] and text[at] in _SPACES:
        at += 1
    return at
