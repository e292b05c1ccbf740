"""Grammars of values that are not JSON: with texts between marks, as Gemma 4 writes them, or as Python's literals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from octavo.errors import GrammarError
from octavo.runtime.grammar.closed_schema import closed
from octavo.runtime.grammar.grammar_process import JSON
from octavo.server.constraints.lark import escaped, pattern, quoted
from octavo.server.constraints.plain_values import WORDS, Schema, listed, plain
from octavo.server.tool_calls.marked_reader import is_bare

NAME = "[A-Za-z_][A-Za-z0-9_]*"
"""Names that parameters may have where no schema names them."""
UNWRITTEN = frozenset({
    "anyOf", "oneOf", "allOf", "not", "if", "$ref", "const", "enum", "pattern", "format", "minItems", "maxItems",
    "uniqueItems", "prefixItems", "contains", "minProperties", "maxProperties", "patternProperties", "propertyNames",
})
"""Keywords that only JSON is held to."""


def json_value(schema: Schema) -> str:
    """A value as JSON of a closed schema, in Lark's words; without definitions that it does not refer to."""
    options = {**JSON, **schema.get("x-guidance", {})}
    alone = _undefined(schema)
    schema = alone if '"$ref"' not in json.dumps(alone) else schema
    return f"%json {json.dumps({**closed(schema), 'x-guidance': options}, ensure_ascii=False)}"


def require_written(schema: Schema) -> None:
    """Raises GrammarError where a strict tool has keywords that values which are not JSON can't be held to."""
    if "x-guidance" not in schema and (unkept := UNWRITTEN & set(schema)):
        raise GrammarError(f"{min(unkept)} can't be kept to in calls as this model writes them")


def properties_of(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Names of an object's members with their schemas, and whether they are required."""
    properties, required = schema.get("properties"), schema.get("required")
    found = properties if isinstance(properties, Mapping) else {}
    return [(name, within(one, schema), isinstance(required, list) and name in required) for name, one in found.items()]


def within(one: object, schema: Schema) -> Schema:
    """A part of a schema, with what goes for all of it."""
    shared = {k: v for k, v in schema.items() if k in ("$defs", "definitions", "x-guidance")}
    return {**shared, **one} if isinstance(one, Mapping) else shared


def _part(one: Schema, schema: Schema) -> Schema:
    """A part of a schema whose definitions are looked up elsewhere: without them the grammar does not repeat them."""
    return _undefined(within(one, schema))


def _undefined(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}


def in_order(found: Sequence[tuple[str, bool]], comma: str, rules: list[str]) -> str:
    """Members, some of them required, with commas between them: the required ones first; "" for none.

    Rules that the text refers to are added to `rules`.
    """
    needed = [one for one, required in found if required]
    others = [one for one, required in found if not required]
    if not needed:
        return _optional_members(others, comma, rules)
    return " ".join([f" {comma} ".join(needed), *(f"({comma} {one})?" for one in others)])


def _optional_members(found: Sequence[str], comma: str, rules: list[str]) -> str:
    """Any of several members in their order, with commas between them; "" for none.

    Each is written once, in a rule, and what may come after it is a rule, too: the grammar grows with their number.
    """
    first = len(rules)
    for i, one in enumerate(found, first):
        after = f"({comma} given{i + 1})? after{i + 1}" if i + 1 < first + len(found) else '""'
        rules.append(f"given{i}: {one}\nafter{i}: {after}\n")
    choices = " | ".join(f"given{i} after{i}" for i in range(first, len(rules)))
    return f"({choices})?" if choices else ""


def length(schema: Schema, key: str) -> int | None:
    """Characters that a schema wants at least, or at most; None for what is not a number of them."""
    found = schema.get(key)
    return found if isinstance(found, int) and found >= 0 else None


class ValueGrammar:
    """Writes values of schemas within `root` in Lark's words. Rules that they refer to are added to `rules`.

    Raises GrammarError for what a strict tool has and can't be kept to.
    """

    comma: ClassVar[str]
    any: ClassVar[str]
    members: ClassVar[str]

    def __init__(self, root: Schema, rules: list[str]) -> None:
        self._root, self._rules, self._named = root, rules, dict[str, int]()

    def value(self, schema: Schema) -> str:
        """A value that is valid for a schema, or for one of those it allows a choice of."""
        found = plain(schema, self._root)
        if found is None:
            require_written(schema)
            return self.any
        choices = [*map(self._text, found.texts), *map(self._other, found.others)]
        choices += [self.word(None)] * found.null
        return f"({' | '.join(choices)})" if len(choices) > 1 else choices[0]

    def _other(self, schema: Schema) -> str:
        """A value that is not text and not null."""
        if (options := listed(schema)) is not None:
            if any(isinstance(one, list | dict) for one in options):
                require_written(schema)
                return self.any
            return f"({' | '.join(map(self.word, options))})"
        kind = schema["type"]
        if kind == "boolean":
            return f"({self.word(True)} | {self.word(False)})"
        if kind not in ("array", "object"):
            return json_value(schema)
        return self.container(schema)

    def container(self, schema: Schema) -> str:
        """The rule of a list or an object, which may have others like itself in it."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._named:
            require_written(schema)
            at = self._named[key] = len(self._rules)
            self._rules.append("")
            try:
                text = self._list(schema) if schema["type"] == "array" else self._object(schema)
            except GrammarError:  # rules since then may refer to this one
                del self._rules[at:]
                self._named = {key: i for key, i in self._named.items() if i < at}
                raise
            self._rules[at] = f"held{at}: {text}\n"
        return f"held{self._named[key]}"

    def _list(self, schema: Schema) -> str:
        item = self.value(_part(schema["items"], schema)) if isinstance(schema.get("items"), Mapping) else self.any
        return f'"[" ({item} ({self.comma} {item})*)? "]"'

    def _object(self, schema: Schema) -> str:
        others = schema.get("additionalProperties")
        if schema.get("properties") or others is False or (others is None and "properties" in schema):
            found = [
                (f"{self.key(name)} {self.value(_part(one, schema))}", required)
                for name, one, required in properties_of(schema)
            ]
            return f'"{{" {in_order(found, self.comma, self._rules)} "}}"'
        if not isinstance(others, Mapping):
            return f'"{{" {self.members} "}}"'
        member = f"{self.any_key()} {self.value(_part(others, schema))}"
        return f'"{{" ({member} ({self.comma} {member})*)? "}}"'

    def _text(self, schema: Schema) -> str:
        if (options := listed(schema)) is not None:
            return f"({' | '.join(self.option(one) for one in options)})"
        require_written(schema)
        return self.text(length(schema, "minLength") or 0, length(schema, "maxLength"))

    def word(self, value: Any) -> str:
        """A number, a boolean or null."""
        return quoted(json.dumps(value))

    def key(self, name: str) -> str:
        """A member's name, and what comes before its value."""
        raise NotImplementedError

    def any_key(self) -> str:
        """The same of any name."""
        raise NotImplementedError

    def option(self, text: str) -> str:
        """A text that is listed."""
        raise NotImplementedError

    def text(self, least: int, most: int | None) -> str:
        """A text of this many characters."""
        raise NotImplementedError


class MarkedValues(ValueGrammar):
    """Texts between marks; names of members without."""

    comma, any, members = '","', "any", '(member ("," member)*)?'

    def key(self, name: str) -> str:
        return quoted(f"{name}:") if is_bare(name) else f'mark {quoted(name)} mark ":"'

    def any_key(self) -> str:
        return f'/{NAME}/ ":"'

    def option(self, text: str) -> str:
        return f"mark {quoted(text)} mark"

    def text(self, least: int, most: int | None) -> str:
        if most is not None:
            return f"mark /[^<]{{{least},{most}}}/ mark"
        return rf"mark /([^<]|<[^|]){{{least}}}/ marked" if least else "mark marked"

    @classmethod
    def rules(cls, mark: str, token: int | None) -> Iterator[str]:
        """The rule of a value of which nothing is said, and that of a text up to the mark after it, with that mark.

        token  the mark, where it is a control token
        """
        yield (
            f'any: mark marked | %json {{"type": ["number", "boolean", "null"]}} | "[" (any ("," any)*)? "]"'
            f' | "{{" {cls.members} "}}"\nmember: /{NAME}/ ":" any\n'
        )
        yield f"marked[lazy]: {pattern('', mark)}\n" if token is None else f"marked: /(?s:.+)/? <[{token}]>\n"


_ESCAPE = r"\\([\\'\"nrtbf0]|x[0-9a-f]{2}|u[0-9a-f]{4})"
"""What Python writes for a character that can't stand in a text as it is."""
_IN = {mark: rf"([^\\\n{mark}]|{_ESCAPE})" for mark in "'\""}
"""A character of a text between marks."""


class PythonValues(ValueGrammar):
    """Literals of Python, where true, false and null may be as JSON has them, too."""

    comma, any, members = '"," " "?', "literal", '(named ("," " "? named)*)?'

    def word(self, value: Any) -> str:
        written = [quoted(word) for word, one in WORDS.items() if one is value]
        return f"({' | '.join([super().word(value), *written])})"

    def key(self, name: str) -> str:
        return f'{self.option(name)} ":" " "?'

    def any_key(self) -> str:
        return 'written ":" " "?'

    def option(self, text: str) -> str:
        both = dict.fromkeys((repr(text), json.dumps(text, ensure_ascii=False)))
        return f"({' | '.join(map(quoted, both))})"

    def text(self, least: int, most: int | None) -> str:
        if not least and most is None:
            return "written"
        times = f"{{{least},{'' if most is None else most}}}"
        return f"/{'|'.join(f'{escaped(mark)}{one}{times}{escaped(mark)}' for mark, one in _IN.items())}/"

    @classmethod
    def rules(cls) -> Iterator[str]:
        """The rules of a value of which nothing is said, and of a text."""
        words = " | ".join(quoted(word) for word in (*WORDS, "true", "false", "null"))
        yield (
            f'literal: written | %json {{"type": "number"}} | {words} | "[" (literal ("," " "? literal)*)? "]"'
            f' | "{{" {cls.members} "}}"\nnamed: written ":" " "? literal\n'
        )
        yield f"written: /{'|'.join(f'{escaped(mark)}{one}*{escaped(mark)}' for mark, one in _IN.items())}/\n"
