"""Readers of calls: each takes the characters after a marker and gives the calls that they come to.

`feed` gives for a character the parts of calls that it completes: (name, "") where one begins, then (None, a piece of
its arguments' JSON). `done`: the calls are complete. `broken`: the characters so far are not a call of a known tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from octavo.server.constraints.json_scan import CallReader, JsonScanner

Part = tuple[str | None, str]
Tools = Mapping[str, Mapping[str, Any]]
"""Parameters, as a JSON schema, by the names of functions."""

MOST_CHARACTERS = 1 << 20
"""The most characters of a call that is read only once it is whole."""
LONGEST_HEAD = 512
"""Characters of a name and what is around it."""


class Reader(Protocol):
    @property
    def done(self) -> bool: ...

    @property
    def broken(self) -> bool: ...

    def feed(self, c: str) -> list[Part]:
        """Take a character."""


class ObjectReader:
    """{"name": "f", "arguments": {...}}, as most models write calls."""

    def __init__(self, tools: Tools) -> None:
        self.done = self.broken = False
        self._tools, self._call, self._named = tools, CallReader(), False

    def feed(self, c: str) -> list[Part]:
        arguments = self._call.feed(c)
        self.done, self.broken = self._call.done, self._call.broken
        if self._call.name is None or self._named:
            return [(None, arguments)] if arguments else []
        if self.broken or self._call.name not in self._tools:
            self.broken = True
            return []
        self._named = True
        return [(self._call.name, ""), *([(None, arguments)] if arguments else [])]


class ArrayReader:
    """[{"name": "f", "arguments": {...}}, ...]"""

    def __init__(self, tools: Tools) -> None:
        self.done = self.broken = False
        self._tools, self._begun = tools, False
        self._object: ObjectReader | None = None

    def feed(self, c: str) -> list[Part]:
        if self._object is not None:
            parts = self._object.feed(c)
            self.broken = self._object.broken
            if self._object.done:
                self._object = None
            return parts
        if c == "{" and self._begun:
            self._object = ObjectReader(self._tools)
            return self._object.feed(c)
        self.done = c == "]" and self._begun
        self.broken = not (c.isspace() or (c in ",]" if self._begun else c == "["))
        self._begun = self._begun or c == "["
        return []


class NamedReader:
    """A name and its arguments, a JSON object; `head` matches what comes before that, groups of it are the name."""

    def __init__(self, tools: Tools, head: re.Pattern[str]) -> None:
        self.done = self.broken = False
        self._tools, self._head, self._text = tools, head, ""
        self._scanner: JsonScanner | None = None

    def feed(self, c: str) -> list[Part]:
        if self._scanner is not None:
            self.broken = not self._scanner.feed(c)
            self.done = self._scanner.state == "done"
            return [] if self.broken else [(None, c)]
        if c == "{":
            return self._begin()
        self._text += c
        self.broken = len(self._text) > LONGEST_HEAD
        return []

    def _begin(self) -> list[Part]:
        found = self._head.fullmatch(self._text)
        name = next(filter(None, found.groups()), None) if found is not None else None
        if name not in self._tools or name is None:
            self.broken = True
            return []
        self._scanner = JsonScanner()
        self._scanner.feed("{")
        return [(name, "{")]


class MistralReader:
    """[{"name": "f", "arguments": {...}}, ...], or f[ARGS]{...}, where a [CALL_ID] may come before the arguments."""

    _HEAD = re.compile(r"\s*(?P<name>[^\[\s]*)\s*(?:\[(?:ARGS|CALL_ID)\].*)?", re.DOTALL)

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._reader: ArrayReader | NamedReader | None = None

    def feed(self, c: str) -> list[Part]:
        if self._reader is None:
            if c.isspace():
                return []
            self._reader = ArrayReader(self._tools) if c == "[" else NamedReader(self._tools, self._HEAD)
        return self._reader.feed(c)

    @property
    def done(self) -> bool:
        return self._reader is not None and self._reader.done

    @property
    def broken(self) -> bool:
        return self._reader is not None and self._reader.broken
