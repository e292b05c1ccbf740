"""JSON as it comes: which character can come next, and where in an object it stands."""

from __future__ import annotations

import json
import re

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PART_OF_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][+-]?[0-9]*)?")
_WORDS = ("true", "false", "null")
_SPACE = " \t\n\r"
_HEX = frozenset("0123456789abcdefABCDEF")
MOST_DEPTH = 200


class JsonScanner:
    """Follows a JSON object or array. `state` is what may come next; `closers` what closes the open brackets.

    States: "value", "first" (a value, or the end of an array), "key", "first key" (or the end of an object), "colon",
    "after" (a comma or an end), "text" (in a string), "escape", "hex", "word" (a number or a literal), "done".
    """

    def __init__(self) -> None:
        self.state = "value"
        self.closers: list[str] = []
        self._is_key, self._word, self._left = False, "", 0

    @property
    def depth(self) -> int:
        return len(self.closers)

    def feed(self, c: str) -> bool:
        """Go on by a character; False where it can't come, after which nothing can."""
        if self.state == "word":
            if c not in _SPACE and c not in ",]}":
                self._word += c
                return self._may_be_word(self._word)
            if self._word not in _WORDS and not _NUMBER.fullmatch(self._word):
                return False
            self.state = "after"
        return self._in_string(c) if self.state in ("text", "escape", "hex") else self._between(c)

    def _in_string(self, c: str) -> bool:
        if self.state == "text":
            if c == '"':
                self.state = "colon" if self._is_key else "after"
            elif c == "\\":
                self.state = "escape"
            return c >= " "
        if self.state == "escape":
            self.state, self._left = ("hex", 4) if c == "u" else ("text", 0)
            return c in 'u"\\/bfnrt'
        self._left -= 1
        if not self._left:
            self.state = "text"
        return c in _HEX

    def _between(self, c: str) -> bool:
        if c in _SPACE:
            return True
        if self.state in ("value", "first"):
            return self._value(c) or (self.state == "first" and self._close(c))
        if self.state in ("key", "first key"):
            if c == '"':
                self.state, self._is_key = "text", True
                return True
            return self.state == "first key" and self._close(c)
        if self.state == "colon":
            self.state = "value"
            return c == ":"
        if self.state == "after" and c == ",":
            self.state = "key" if self.closers[-1] == "}" else "value"
            return True
        return self.state == "after" and self._close(c)

    def _value(self, c: str) -> bool:
        if c in "{[":
            self.closers.append("}" if c == "{" else "]")
            self.state = "first key" if c == "{" else "first"
            return len(self.closers) <= MOST_DEPTH
        if not self.closers:
            return False
        if c == '"':
            self.state, self._is_key = "text", False
            return True
        if self._may_be_word(c):
            self.state, self._word = "word", c
            return True
        return False

    def _close(self, c: str) -> bool:
        if not self.closers or c != self.closers[-1]:
            return False
        self.closers.pop()
        self.state = "after" if self.closers else "done"
        return True

    @staticmethod
    def _may_be_word(text: str) -> bool:
        return any(word.startswith(text) for word in _WORDS) or bool(_PART_OF_NUMBER.fullmatch(text))


class CallReader:
    """Reads one call as an object: {"name": ..., "arguments": {...}}, in any order, with other keys left out.

    arguments  keys that the arguments may go by
    name       the function, once that is known
    broken     it is not a call
    done       it is complete
    """

    def __init__(self, arguments: tuple[str, ...] = ("arguments", "parameters")) -> None:
        self.name: str | None = None
        self.broken = self.done = False
        self._keys, self._scanner = arguments, JsonScanner()
        self._key, self._token, self._held = "", "", ""
        self._value: list[str] = []
        self._has_arguments = False

    def feed(self, c: str) -> str:
        """Go on by a character: what it adds to the arguments' JSON, once the name is known."""
        scanner = self._scanner
        before, depth = scanner.state, scanner.depth
        if not scanner.feed(c) or (not depth and scanner.closers == ["]"]):
            self.broken = True
            return ""
        if scanner.state == "done":
            self.done = True
        if self._value:
            self._in_value(c, before)
        elif depth == 1:
            self._in_object(c, before)
        return self._take_value()

    def _in_object(self, c: str, before: str) -> None:
        """A character at the call's own level that is not a part of a value, or begins one."""
        state = self._scanner.state
        if before in ("key", "first key") and state == "text":
            self._token = c
        elif before in ("text", "escape", "hex"):
            self._token += c
            if state == "colon":
                self._key = str(json.loads(self._token))
        elif before == "value" and state != "value":
            self._value = [c]
            self._begin_value(c)

    def _begin_value(self, c: str) -> None:
        if self._key in self._keys:
            if self._has_arguments or c not in '{"':
                self.broken = True
            self._has_arguments = True
            self._held += c if c == "{" else ""

    def _in_value(self, c: str, before: str) -> None:
        scanner = self._scanner
        ends = scanner.depth <= 1 and scanner.state in ("after", "key", "done")
        if not (before == "word" and ends and self._value[0] not in '{["'):  # else it stands after the value
            if self._key in self._keys and self._value[0] == "{":
                self._held += c
            else:
                self._value.append(c)
        if ends:
            self._end_value("".join(self._value))

    def _end_value(self, value: str) -> None:
        self._value = []
        if self._key == "name":
            self.broken = self.broken or value[0] != '"' or self.name is not None
            self.name = None if self.broken else str(json.loads(value))
        elif self._key in self._keys and value[0] == '"':
            self._held += str(json.loads(value))
            self.broken = self.broken or not is_object(self._held)

    def _take_value(self) -> str:
        if self.broken or self.name is None:
            self.broken = self.broken or self.done
            return ""
        if self.done and not self._has_arguments:
            self._held = "{}"
        taken, self._held = self._held, ""
        return taken


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
