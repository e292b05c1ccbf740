"""A model's text on its way to the terminal: nothing in it steers the terminal, and its thinking is dim."""

from __future__ import annotations

import re
from collections.abc import Callable

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
NO_BLANKS = 0x2E80
"""From here on Unicode has writing that puts no blanks between words: it is shown as it comes."""
OPEN, CLOSE = "<think>", "</think>"
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def harmless(text: str) -> str:
    r"""`text` with control characters, which could move the cursor or rename the window, as escapes such as \x1b."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class Wrapped:
    """Writes text for lines of this many columns: where one is full it goes on with a whole word."""

    def __init__(self, write: Callable[[str], None], columns: int) -> None:
        self._write, self._columns = write, columns
        self._at, self._word = 0, ""

    def __call__(self, text: str) -> None:
        for part in re.split(r"(\x1b\[\d*m|\s)", text):
            if part.startswith("\x1b"):
                self.flush()
                self._write(part)
            elif part.isspace():
                self.flush()
                self._at = 0 if part == "\n" else self._at + 1
                self._write(part)
            else:
                self._word += part
                if len(self._word) > self._columns or any(ord(char) >= NO_BLANKS for char in part):
                    self.flush()

    def flush(self) -> None:
        """Write the word that is held, on the next line where this one is too short for it."""
        width = len(self._word)
        if self._word and self._at and self._at + width > self._columns >= width:
            self._write("\n")
            self._at = 0
        self._write(self._word)
        self._at, self._word = self._at + width, ""


class Screen:
    """Writes pieces of a reply: on a terminal harmless, and dim between <think> and </think>; elsewhere unchanged.

    Without `dim` nothing is dim. `thinking` is for a prompt that ends in <think>: the reply begins in the middle of it.
    `end` writes what is left.
    """

    def __init__(
        self, write: Callable[[str], None], *, terminal: bool, dim: bool = True, thinking: bool = False
    ) -> None:
        self._write, self._terminal, self._thinking = write, terminal, thinking
        self._held = ""
        self._dim, self._plain = (DIM, PLAIN) if dim else ("", "")
        if terminal and thinking:
            write(self._dim)

    def show(self, piece: str) -> None:
        if not self._terminal:
            self._write(piece)
            return
        text = self._held + piece
        while (tag := CLOSE if self._thinking else OPEN) in text:
            before, _, text = text.partition(tag)
            self._thinking = not self._thinking
            self._write(harmless(before) + (self._dim + tag if self._thinking else tag + self._plain))
        keep = next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
        self._held = text[len(text) - keep :]
        if len(text) > keep:
            self._write(harmless(text[: len(text) - keep]))

    def end(self) -> None:
        if not self._terminal:
            return
        self._write(harmless(self._held) + (self._plain if self._thinking else ""))
        if isinstance(self._write, Wrapped):
            self._write.flush()
        self._held, self._thinking = "", False
