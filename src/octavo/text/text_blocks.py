"""Long texts in blocks that are encoded one after the other, so that memory does not grow with a text.

The packages and searches that make ids hold a hundred and more bytes for each of a text. Blocks end only where the ids
are the same as those of the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

SIZE = 1 << 16
"""Characters of a block, at least; it ends at the next place where one may."""

Cut = Callable[[str, int], int]
"""The first place from another one on where a text may be cut; its length where there is none."""


def blocks(text: str, cut: Cut) -> Iterator[str]:
    """The parts of a text, in order."""
    at = 0
    while len(text) - at > SIZE:
        end = cut(text, at + SIZE)
        yield text[at:end]
        at = end
    if at < len(text):
        yield text[at:]


def in_blocks(encode: Callable[[str], list[int]], cut: Cut) -> Callable[[str], list[int]]:
    """`encode` block by block."""

    def encode_all(text: str) -> list[int]:
        if len(text) <= SIZE:
            return encode(text)
        return [token for block in blocks(text, cut) for token in encode(block)]

    return encode_all


def at_pattern(pattern: str) -> Cut:
    """Cuts at an empty match."""
    found = re.compile(pattern)

    def cut(text: str, start: int) -> int:
        match = found.search(text, start)
        return len(text) if match is None else match.start()

    return cut


def uncut(text: str, start: int) -> int:
    """Cuts nowhere."""
    return len(text)


def between_tokens(pairs: Callable[[], Collection[str]], starts: str = "") -> Cut:
    """Cuts where no token lies across.

    pairs   what `pairs_of` gives of the tokens, which a long text asks for
    starts  characters that a block may begin with; empty for any
    """

    def cut(text: str, start: int) -> int:
        joined = pairs()
        for i in range(start, len(text)):
            if text[i - 1 : i + 1] not in joined and (not starts or text[i] in starts):
                return i
        return len(text)

    return cut


def pairs_of(texts: Iterable[str]) -> set[str]:
    """The pairs of characters that are next to each other in a text."""
    return {text[i : i + 2] for text in texts for i in range(len(text) - 1)}
