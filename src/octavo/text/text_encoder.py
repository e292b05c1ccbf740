"""What makes ids of text between special tokens, and how much text one of them can stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

COMPOSED = 4
"""How many times longer than its composed form (Unicode's NFC) a text is at most, in UTF-8."""


@dataclass(frozen=True)
class Encoder:
    """Makes ids of text of one kind of tokenizer.

    encode    text without special tokens to ids, in time near-linear in the text's length
    longest   bytes, as UTF-8, that one id stands for at most; None where parts of a text may come to nothing
    composes  text is composed first, so that what an id stands for may have been longer
    complete  whether `longest` holds; asked late, as finding out may take long
    """

    encode: Callable[[str], list[int]]
    longest: int | None = None
    composes: bool = False
    complete: Callable[[], bool] = lambda: True

    def beside(self, longest: int | None) -> Encoder:
        """The same beside special tokens, of which each stands for this many bytes at most; None where that is open."""
        known = self.longest is not None and longest is not None
        return replace(self, longest=max(self.longest or 0, longest or 0) if known else None)

    def least(self, text: str) -> int:
        """Ids that a text has at least, told by its length alone."""
        if self.longest is None or not self.complete():
            return 0
        longest = self.longest * (COMPOSED if self.composes and not text.isascii() else 1)
        return -(-len(text.encode("utf-8", "surrogatepass")) // longest)
