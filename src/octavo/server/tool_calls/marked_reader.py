"""Calls whose texts stand between marks, and whose names of parameters are bare, as Gemma 4 writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.server.constraints.json_scan import MOST_DEPTH
from octavo.server.constraints.plain_values import value_of
from octavo.server.tool_calls.readers import LONGEST_HEAD, MOST_CHARACTERS, Part, Tools

MARK = '<|"|>'
BEGIN = "call:"
_TOKEN = re.compile(r'<\|"\|>(.*?)<\|"\|>|([{}\[\],:])|((?:(?!<\|"\|>)[^{}\[\],:])+)', re.DOTALL)
_BARE = re.compile(r'(?:(?!<\|"\|>)[^{}\[\],:])+')
_END = ("", "")


def is_bare(name: str) -> bool:
    """Whether the name of a parameter is read as it is without marks around it."""
    return name == name.strip() and _BARE.fullmatch(name) is not None


class MarkedReader:
    """call:f{a:1,text:<|"|>x<|"|>,list:[true]}; the arguments come at once, when they are complete."""

    def __init__(self, tools: Tools) -> None:
        self.done = self.broken = False
        self._tools, self._text, self._name, self._depth, self._in_text = tools, "", "", 0, False

    def feed(self, c: str) -> list[Part]:
        self._text += c
        if not self._name:
            return self._head(c)
        if c == ">" and self._text.endswith(MARK):
            self._in_text = not self._in_text
        elif not self._in_text and c in "{[":
            self._depth += 1
        elif not self._in_text and c in "}]":
            self._depth -= 1
        self.broken = self._depth > MOST_DEPTH or len(self._text) > MOST_CHARACTERS
        return [] if self._depth or self.broken else self._whole()

    def _head(self, c: str) -> list[Part]:
        text = self._text.lstrip()
        if c != "{":
            begun = text.startswith(BEGIN) or BEGIN.startswith(text)
            self.broken = not begun or len(self._text) > LONGEST_HEAD
            return []
        name = text[len(BEGIN) : -1].strip()
        if not text.startswith(BEGIN) or name not in self._tools:
            self.broken = True
            return []
        self._name, self._text, self._depth = name, "{", 1
        return [(name, "")]

    def _whole(self) -> list[Part]:
        properties = self._tools[self._name].get("properties")
        try:
            arguments = _MarkedValues(self._text, properties if isinstance(properties, Mapping) else {}).read()
        except ValueError:
            self.broken = True
            return []
        self.done = True
        return [(None, arguments)]


def _token(found: re.Match[str]) -> tuple[str, str]:
    """What stands there, and its kind: "text", "bare" or the character itself."""
    text, character, bare = found.groups()
    return (text, "text") if text is not None else (character, character) if character else (bare.strip(), "bare")


class _MarkedValues:
    """Reads an object as JSON. `properties` has the schemas of its values."""

    def __init__(self, text: str, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._tokens = [_token(m) for m in _TOKEN.finditer(text) if not m[0].isspace()]
        self._at = 0

    def read(self) -> str:
        """Raises ValueError for what is not an object."""
        self._expect("{")
        found = self._object(self._properties)
        if self._at < len(self._tokens):
            raise ValueError(self._tokens[self._at][0])
        return found

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else _END

    def _expect(self, *kinds: str) -> tuple[str, str]:
        token = self._next()
        if token[1] not in kinds:
            raise ValueError(token[0])
        return token

    def _ends(self, closer: str) -> bool:
        """Whether an empty list or object ends here."""
        ends = self._at < len(self._tokens) and self._tokens[self._at][1] == closer
        self._at += ends
        return ends

    def _value(self, schema: object) -> str:
        text, kind = self._expect("text", "bare", "{", "[")
        if kind == "text":
            return json.dumps(text)
        if kind == "bare":
            return value_of(text, schema)
        inner = schema if isinstance(schema, Mapping) else {}
        if kind == "[":
            return self._list(inner.get("items"))
        properties = inner.get("properties")
        return self._object(properties if isinstance(properties, Mapping) else {})

    def _list(self, items: object) -> str:
        values, kind = list[str](), "]" if self._ends("]") else ","
        while kind == ",":
            values.append(self._value(items))
            _, kind = self._expect(",", "]")
        return f"[{', '.join(values)}]"

    def _object(self, properties: Mapping[str, Any]) -> str:
        values, kind = list[str](), "}" if self._ends("}") else ","
        while kind == ",":
            name, _ = self._expect("bare", "text")
            self._expect(":")
            values.append(f"{json.dumps(name)}: {self._value(properties.get(name))}")
            _, kind = self._expect(",", "}")
        return f"{{{', '.join(values)}}}"
