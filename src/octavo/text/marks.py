"""Text from outside in what a chat template writes: marked, so that no part of it is taken for a control token.

Templates look at messages, trim and split and compare them, so what marks a text must leave it a plain string that
behaves as before. Each control token has a character such as "<" or "[" in its name. In texts from outside these few
characters are replaced by others, of Unicode's private use, before a template is run, and put back in what it
writes; a control token is then only where all of its such characters are the template's own. Tags as templates look for
them ("</think>") are left as they are, where they are not control tokens themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from octavo.errors import TemplateError, UsageError

PRIVATE = range(0xE000, 0xF900)
_PRIVATE = re.compile("[\ue000-\uf8ff]")
_TAG = re.compile(r"</?\w+>|\[/?\w+\]")
MOST_DEPTH = 100


class Guard:
    """What is to be marked, for the control tokens of a vocabulary, given by their texts."""

    def __init__(self, tokens: Collection[str]) -> None:
        self.letters = _telling(tokens)
        self.tags = frozenset(tag for token in tokens for tag in _TAG.findall(token))
        """Tags that are a part of a control token's name."""
        plain = sorted((t for t in tokens if t and not set(t) & set(self.letters)), key=len, reverse=True)
        self.words = re.compile("|".join(map(re.escape, plain))) if plain else None
        """Control tokens without any such character: their first one is replaced where they stand."""
        firsts = {t[0] for t in plain}
        self.replaced = (*self.letters, *sorted(firsts - set(self.letters)))


def _telling(tokens: Collection[str]) -> tuple[str, ...]:
    """A few characters, neither letters nor white space, of which each token has one, if it has any."""
    left = [marks for t in tokens if (marks := {c for c in t if not c.isalnum() and not c.isspace() and c not in "_▁"})]
    found = []
    while left:
        counts = Counter(c for marks in left for c in marks)
        best = max(sorted(counts), key=lambda c: counts[c])
        found.append(best)
        left = [marks for marks in left if best not in marks]
    return tuple(found)


class Marks:
    """The marks in one set of a template's variables: `data` has them, `read` takes them out of what was written."""

    def __init__(self, guard: Guard, variables: Mapping[str, Any], template: str) -> None:
        """Raises UsageError for variables nested too deep, or with all characters of private use."""
        self._guard = guard
        used = set(_PRIVATE.findall(template))
        _collect(variables, used, 0)
        unused = (chr(code) for code in PRIVATE if chr(code) not in used)
        self._mark: dict[str, str] = dict(zip(guard.replaced, unused, strict=False))
        if len(self._mark) < len(guard.replaced):
            raise UsageError("the messages have too many characters of private use (U+E000 to U+F8FF)")
        self._letters = {c: self._mark[c] for c in guard.letters}
        self._back = {mark: c for c, mark in self._mark.items()}
        self._any = re.compile("[" + "".join(self._back) + "]") if self._back else None
        escapes = {f"\\u{ord(mark):04x}": mark for mark in self._back}
        self._escaped = re.compile("|".join(map(re.escape, escapes))) if escapes else None
        self._escapes = escapes
        self.data = {name: self._marked(value) for name, value in variables.items()}

    def read(self, written: str) -> tuple[str, bytes]:
        """What a template wrote as it is meant, and for each of its characters whether it was marked (1) or not (0)."""
        if self._escaped is not None:
            written = self._escaped.sub(lambda found: self._escapes[found[0]], written)
        if self._any is None or not self._any.search(written):
            return written, b""
        foreign = bytearray(len(written))
        for found in self._any.finditer(written):
            foreign[found.start()] = 1
        return _replaced(written, self._back), bytes(foreign)

    def fault(self, error: TemplateError) -> TemplateError:
        """A template's error in the words that were meant."""
        return TemplateError(self.read(str(error))[0])

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._marked_text(value)
        if isinstance(value, Mapping):
            return {self._marked(k): self._marked(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(one) for one in value]
        return value

    def _marked_text(self, text: str) -> str:
        if self._guard.words is not None:
            text = self._guard.words.sub(lambda found: self._mark[found[0][0]] + found[0][1:], text)
        out, at = [], 0
        for tag in _TAG.finditer(text):
            if tag[0] not in self._guard.tags:
                out += [_replaced(text[at : tag.start()], self._letters), tag[0]]
                at = tag.end()
        return "".join([*out, _replaced(text[at:], self._letters)])


def _replaced(text: str, by: Mapping[str, str]) -> str:
    """`text` with characters replaced by others that are not among them: one after the other, as all at once take long.

    `str.translate` takes a tenth of a microsecond a character, in which no other thread runs.
    """
    for old, new in by.items():
        text = text.replace(old, new)
    return text


def _collect(value: Any, used: set[str], depth: int) -> None:
    """The characters of private use that occur."""
    if depth > MOST_DEPTH:
        raise UsageError(f"variables of the chat template are nested deeper than {MOST_DEPTH}")
    if isinstance(value, str):
        used.update(_PRIVATE.findall(value))
    elif isinstance(value, Mapping):
        for name, one in value.items():
            _collect(name, used, depth + 1)
            _collect(one, used, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            _collect(one, used, depth + 1)
