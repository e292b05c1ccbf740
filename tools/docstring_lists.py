"""An extension of griffe: lists of names in docstrings, `name    what it is`, become definition lists on the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

ROW = re.compile(r"(?P<names>\w+(?:, \w+)*) {2,}(?P<text>\S.*)")


class NameLists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = "\n".join(lines(obj.docstring.value))


def lines(text: str) -> Iterator[str]:
    """A docstring's lines, those of lists rewritten: a row of two or more spaces after names, and its continuations."""
    column = 0
    for line in text.splitlines():
        row = ROW.fullmatch(line)
        if row and (not column or row.start("text") == column):
            column = row.start("text")
            yield from ("", ", ".join(f"`{name}`" for name in row["names"].split(", ")), f":   {row['text']}")
        elif column and line[:column].isspace():
            yield f"    {line.strip()}"
        else:
            yield from ("", line) if column else (line,)
            column = 0
