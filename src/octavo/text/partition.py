"""Special tokens are found in the text before anything else: cutting it into tokens and the text between them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

_SPACES = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
)
_WHITE, _PREFIX = -1, -2
"""In place of an id, for white space that belongs to a token; and for a text's only space, if one is put before it."""
_IN_WORDS = ("L", "M", "Nd", "Nl", "Pc")
"""Categories of Unicode's, or beginnings of them."""


@dataclass(frozen=True)
class SpecialToken:
    r"""A token matched by its text.

    lstrip, rstrip  white space next to it on that side belongs to it
    single_word     it is only found where no letter, digit or underscore is beside it
    guarded         text from outside is never taken for it
    late            it is looked for when all others were found
    fold            what text and token become, a character for each, before it is looked for
    after_space     it is only found behind a space, which it takes, and where a text begins; no space goes before
                    the text behind it
    """

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    guarded: bool = False
    late: bool = False
    fold: Callable[[str], str] | None = None
    after_space: bool = False


class Partition:
    """Cuts text at special tokens as llama.cpp does: the longest tokens first (in bytes), each from left to right.

    A shorter token can't match inside or across a longer one that was found before, even if it starts earlier.
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._groups: dict[str, list[SpecialToken]] = {}
        self._rank: dict[int, int] = {}
        ordered = sorted(tokens, key=lambda t: (t.late, -len(t.text.encode("utf-8", "surrogatepass"))))
        self._folded = [t for t in ordered if t.fold is not None]
        self.joined = frozenset(t.id for t in ordered if t.after_space)
        """Tokens behind which no space is put."""
        for rank, token in enumerate(ordered):
            self._rank[token.id] = rank
            if token.fold is None:
                self._groups.setdefault(token.text[:2], []).append(token)

    @property
    def longest(self) -> int | None:
        """Bytes of the longest token; None where white space may belong to one, however much there is."""
        tokens = [*self._folded, *(token for group in self._groups.values() for token in group)]
        stripping = any(token.lstrip or token.rstrip for token in tokens)
        return None if stripping else max((len(t.text.encode("utf-8", "surrogatepass")) for t in tokens), default=0)

    def split(self, text: str, foreign: bytes = b"") -> Iterator[int | str]:
        """The special tokens' ids and, between them, the pieces of text that are none.

        A piece is empty only where nothing but what is put before a text is left of it.

        foreign: for each character 1 where no guarded token may have it; empty for none.
        """
        present = [t for start, group in self._groups.items() if start in text for t in group if t.text in text]
        if not present and not self._folded:
            if text:
                yield text
            return
        present = sorted([*present, *self._folded], key=lambda t: self._rank[t.id])
        found = _Search(text, foreign).find(present)
        at = 0
        for start, end, token in sorted(found):
            if start > at:
                yield text[at:start]
            if token != _WHITE:
                yield "" if token == _PREFIX else token
            at = end
        if at < len(text):
            yield text[at:]


class _Search:
    """The matches of tokens in a text: (start, end, id), in no order; white space that a token takes has none."""

    def __init__(self, text: str, foreign: bytes) -> None:
        self.text, self.foreign = text, foreign
        self.taken = bytearray(len(text))  # 1 for a token, 2 for one of those behind which no space goes
        self.found: list[tuple[int, int, int]] = []
        self._folded: dict[int, str] = {}

    def find(self, tokens: Iterable[SpecialToken]) -> list[tuple[int, int, int]]:
        for token in tokens:
            self._find_all(token)
        return self.found

    def _find_all(self, token: SpecialToken) -> None:
        text, wanted = (self.text, token.text) if token.fold is None else (self._fold(token), token.fold(token.text))
        at = text.find(wanted)
        while at >= 0:
            end = at + len(wanted)
            clash = next((i for i in range(at, end) if self.taken[i]), -1)
            if token.guarded and self.foreign.find(1, at, end) >= 0:
                end = at + 1
            elif clash >= 0:
                after = self.taken.find(0, clash)
                end = len(text) if after < 0 else after
            elif not self._stands(token, at, end):
                end = at + 1
            else:
                end = self._take(token, at, end)
            at = text.find(wanted, end)

    def _fold(self, token: SpecialToken) -> str:
        assert token.fold is not None
        if id(token.fold) not in self._folded:
            self._folded[id(token.fold)] = token.fold(self.text)
        return self._folded[id(token.fold)]

    def _stands(self, token: SpecialToken, at: int, end: int) -> bool:
        """Whether what is beside a match lets it be the token."""
        text, start = self.text, at
        if token.after_space and at > 0 and self.taken[at - 1] != 1:
            start -= 1
            if self.taken[start] or text[start] not in (" ", "▁"):
                return False
        beside = text[max(0, start - 1) : start] + text[end : end + 1]
        return not (token.single_word and any(map(_in_word, beside)))

    def _take(self, token: SpecialToken, at: int, end: int) -> int:
        """Mark a match and the white space that belongs to it; where it ends."""
        mark = 2 if token.after_space else 1
        self._mark(at, end, token.id, mark)
        start, after = at, end
        if token.after_space and at > 0 and not self.taken[at - 1]:
            is_first = at == 1 or self.taken[at - 2] == 1
            self._mark(at - 1, at, _PREFIX if is_first else _WHITE, mark)
        while token.lstrip and start > 0 and not self.taken[start - 1] and self.text[start - 1] in _SPACES:
            start -= 1
        while token.rstrip and after < len(self.text) and not self.taken[after] and self.text[after] in _SPACES:
            after += 1
        self._mark(start, at, _WHITE, mark)
        self._mark(end, after, _WHITE, mark)
        return after

    def _mark(self, start: int, end: int, token: int, mark: int) -> None:
        if end > start:
            self.found.append((start, end, token))
            self.taken[start:end] = bytes([mark]) * (end - start)


def _in_word(c: str) -> bool:
    return unicodedata.category(c).startswith(_IN_WORDS) or c in "\u200c\u200d"
