"""What was found so far, in a file of JSON lines, so that a run that was killed at any moment goes on from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, MutableMapping
from typing import Any
from zlib import crc32

from octavo.io import regular_file
from octavo.io.atomic import failures_of, written_file

MAX_BYTES = 1 << 28
SUM = 9
"""Characters of a line before its value."""


class Kept(MutableMapping[str, Any]):
    """Values by name, each written to the file at `path` as it is set.

    of  says what they were made of: a file of something else is begun anew

    A line that was cut or damaged is left out, and what stands behind it: each begins with a sum of its bytes. Raises
    FileError where the file can't be read or written.
    """

    def __init__(self, path: str, of: str) -> None:
        self.path, self._values = path, dict[str, Any]()
        lines = _lines(path) if os.path.exists(path) else []
        kept = [_checked(of)]
        if lines[:1] == kept:
            for line in lines[1:-1]:  # what has no line end was cut
                text = line[SUM:]
                if line != _checked(text):
                    break
                name, value = json.loads(text)
                self._values[name] = value
                kept.append(line)
        with written_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in kept))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        with failures_of(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{_checked(json.dumps([name, value]))}\n")
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("what is kept is not taken away")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _lines(path: str) -> list[str]:
    with regular_file.open_regular(path) as file:
        return file.read(MAX_BYTES).decode("utf-8", "replace").split("\n")


def _checked(text: str) -> str:
    """A line's text with the sum of its bytes before it."""
    return f"{crc32(text.encode()):08x} {text}"
