"""Calls as Python writes them, of arguments by name, which are literals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from octavo.server.tool_calls.literals import literal
from octavo.server.tool_calls.readers import MOST_CHARACTERS, Part, Tools

_CALL = re.compile(r"\s*([^\s(]+)\s*\((.*)\)\s*", re.DOTALL)
_ARGUMENT = re.compile(r"\s*([^=()\[\]{}'\"]*[^\s=()\[\]{}'\"])\s*=(.*)", re.DOTALL)


class PythonReader:
    """[f(a=1, b="x"), g()]; names are any that tools and their parameters have, such as `get-weather` and `from`."""

    _BEGIN = re.compile(r"\[\s*[\w.:-]*\s*")

    def __init__(self, tools: Tools) -> None:
        self.done = self.broken = False
        self._tools, self._text, self._brackets = tools, "", _Brackets()

    def feed(self, c: str) -> list[Part]:
        if not self._text and c.isspace():
            return []
        self._text += c
        fits = self._brackets.feed(c)
        if not fits or ("(" not in self._text and not self._BEGIN.fullmatch(self._text)):
            self.broken = True
        if self.broken or not self._brackets.outside:
            self.broken = self.broken or len(self._text) > MOST_CHARACTERS
            return []
        calls = _calls(self._text)
        self.broken = not calls or any(name not in self._tools for name, _ in calls)
        self.done = not self.broken
        return [part for name, a in calls for part in ((name, ""), (None, a))] if self.done else []


class _Brackets:
    """Keeps count of the brackets that are open, but for those in strings."""

    def __init__(self) -> None:
        self._open, self._quote, self._escaped = list[str](), "", False

    @property
    def outside(self) -> bool:
        """Whether none is open, and no string."""
        return not self._open and not self._quote

    def feed(self, c: str) -> bool:
        """Whether a character may come."""
        if self._quote:
            if self._escaped or c == "\\":
                self._escaped = not self._escaped
            elif c == self._quote:
                self._quote = ""
        elif c in "'\"":
            self._quote = c
        elif c in "([{":
            self._open.append({"(": ")", "[": "]", "{": "}"}[c])
        elif c in ")]}":
            return bool(self._open) and self._open.pop() == c
        return True


def _calls(text: str) -> list[tuple[str, str]]:
    """Names and arguments, as JSON, of a list of calls; [] for what is none."""
    try:
        return [_call(part) for part in _parts(text[1:-1])]
    except (ValueError, TypeError):
        return []


def _parts(text: str) -> Iterator[str]:
    """What stands between the commas of a list, the last of which may be at its end. Raises ValueError."""
    brackets, start = _Brackets(), 0
    for i, c in enumerate(text):
        if c == "," and brackets.outside:
            yield text[start:i]
            start = i + 1
        elif not brackets.feed(c):
            raise ValueError(f"{c} at {i}")
    if text[start:].strip():
        yield text[start:]


def _call(text: str) -> tuple[str, str]:
    """Raises ValueError for what is not a call with arguments by name."""
    found = _CALL.fullmatch(text)
    if found is None:
        raise ValueError("no call")
    arguments = {}
    for part in _parts(found[2]):
        one = _ARGUMENT.fullmatch(part)
        if one is None or not one[2].strip():
            raise ValueError("no argument by name")
        arguments[one[1]] = literal(one[2])
    return found[1], json.dumps(arguments, allow_nan=False)
