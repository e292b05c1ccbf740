"""Grammars of a call's parameters: their values as JSON, or one by one as a format writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import GrammarError
from octavo.runtime.grammar import JSON
from octavo.runtime.schema import NOTES, read_schema
from octavo.server.marked_reader import is_bare
from octavo.server.plain_values import NULLS, WORDS, Plain, listed, plain
from octavo.server.tool_formats import ToolFormat

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

ANYTHING: dict[str, Any] = {"type": "object"}

NAME = "[A-Za-z_][A-Za-z0-9_]*"
"""Of a parameter that no schema names."""
MEMBERS = '(member ("," member)*)?'
"""What an object has of which nothing is said, with texts between marks."""


@dataclass(frozen=True)
class Tool:
    """A function that may be called: its parameters as a JSON schema, and whether all of that is to be kept to."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def quoted(text: str) -> str:
    """A text as Lark has it."""
    return json.dumps(text, ensure_ascii=False)


def written(form: ToolFormat, text: str) -> str:
    """A text of a format as Lark has it, in which line ends may be left out where models differ in them."""
    parts = re.split("(\n)", text) if form.tight else [text]
    return " ".join(quoted(part) + "?" * (form.tight and part == "\n") for part in parts if part) or '""'


def schema_of(tool: Tool) -> dict[str, Any]:
    """The parameters' schema. Keywords that can't be kept to are left out but for strict tools."""
    schema = read_schema(tool.parameters) if tool.parameters else NOTHING
    if schema.get("type") is None:
        schema = {"type": "object", **schema}
    return schema if tool.strict else {**schema, "x-guidance": {"lenient": True}}


def pattern(before: str, text: str) -> str:
    """A regular expression of a text after what `before` matches, "" for any text."""
    return f"/{before or '(?s:.*)'}{escaped(text)}/"


def escaped(text: str) -> str:
    """A text as a part of a regular expression."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text).replace("\n", r"\n")


def json_value(schema: Mapping[str, Any]) -> str:
    """A value as JSON, in Lark's words."""
    options = {**JSON, **schema.get("x-guidance", {})}
    return f"%json {json.dumps({**schema, 'x-guidance': options}, ensure_ascii=False)}"


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Names of parameters with their schemas, and whether they are required."""
    properties, required = schema.get("properties"), schema.get("required")
    found = properties if isinstance(properties, Mapping) else {}
    shared = {k: v for k, v in schema.items() if k in ("$defs", "definitions", "x-guidance")}
    return [
        (
            name,
            {**shared, **one} if isinstance(one, Mapping) else shared,
            isinstance(required, list) and name in required,
        )
        for name, one in found.items()
    ]


def by_name(tool: Tool, form: ToolFormat, rules: list[str]) -> str:
    """Parameters in their order, the required ones first where commas are between them; "" for none.

    Rules that the text refers to are added to `rules`, which is to be the same list for all of a grammar. Of a schema
    that names no parameters, and does not say that there are none, they are any.
    """
    whole = schema_of(tool)
    if "properties" not in whole and whole.get("additionalProperties") is not False:
        require_written(whole)
        return _any(form)
    found = [(_parameter(form, name, one, whole, rules), required) for name, one, required in _properties(whole)]
    if not form.comma:
        return " ".join(one if required else f"({one})?" for one, required in found)
    needed = [one for one, required in found if required]
    others = [one for one, required in found if not required]
    comma = f" {quoted(form.comma)} "
    if not needed:
        return _some(others, comma, rules)
    return " ".join([comma.join(needed), *(f"({comma}{one})?" for one in others)])


def _some(found: Sequence[str], comma: str, rules: list[str]) -> str:
    """Any of several parameters in their order, with commas between them; "" for none.

    Each is written once, in a rule, and what may come after it is a rule, too: the grammar grows with their number.
    """
    first = len(rules)
    for i, one in enumerate(found, first):
        after = f"({comma}given{i + 1})? after{i + 1}" if i + 1 < first + len(found) else '""'
        rules.append(f"given{i}: {one}\nafter{i}: {after}\n")
    choices = " | ".join(f"given{i} after{i}" for i in range(first, len(rules)))
    return f"({choices})?" if choices else ""


def _parameter(
    form: ToolFormat, name: str, schema: Mapping[str, Any], root: Mapping[str, Any], rules: list[str]
) -> str:
    """A parameter with its name and value, whose schema is a part of `root`."""
    before, after = form.parameter.split("VALUE")
    begin, end = before.split("KEY")
    head = f"{quoted(begin + name)} {written(form, end)}"
    if form.mark and not is_bare(name):
        head = f"mark {quoted(name)} mark {quoted(end)}"
    if form.raw and (text := _raw(form, schema, root, after)) is not None:
        return f"{head} {text}"
    value = _marked(schema, form, rules) if form.mark else _value(form, schema, root)
    return f"{head} {value} {written(form, after)}" if after else f"{head} {value}"


def _value(form: ToolFormat, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """A value as JSON or, where a format has them, one of Python's words that the schema, a part of `root`, allows."""
    found = plain(schema, root)
    return _or_words(json_value(schema), () if found is None else _words(form, found))


def _or_words(value: str, words: Iterable[str]) -> str:
    """A value, or one of some words instead."""
    return f"({' | '.join([value, *map(quoted, words)])})"


def _words(form: ToolFormat, allowed: Plain) -> list[str]:
    """Python's words of values that are allowed, where a format has them."""
    return [word for word, value in WORDS.items() if form.words and allowed.allows(value)]


def _any(form: ToolFormat) -> str:
    """Parameters of which nothing is said."""
    if form.mark:
        return MEMBERS
    before, after = form.parameter.split("VALUE")
    begin, end = before.split("KEY")
    value = _or_words(json_value({}), WORDS if form.words else ())
    if form.raw:
        value = f"raw {written(form, _after_tag(after))}"
    one = f"{quoted(begin)} /{NAME}/ {written(form, end)} {value}"
    return f"({one} ({quoted(form.comma)} {one})*)?"


UNWRITTEN = frozenset({
    "anyOf", "oneOf", "allOf", "not", "if", "$ref", "const", "enum", "pattern", "format", "minItems", "maxItems",
    "uniqueItems", "prefixItems", "contains", "minProperties", "maxProperties", "patternProperties", "propertyNames",
})  # fmt: skip
"""Keywords that only JSON is held to."""


def require_written(schema: Mapping[str, Any]) -> None:
    """Raises GrammarError where a strict tool has keywords that values which are no JSON can't be held to."""
    if "x-guidance" not in schema and (unkept := UNWRITTEN & set(schema)):
        raise GrammarError(f"{min(unkept)} can't be kept to in calls as this model writes them")


def _options(schema: Mapping[str, Any]) -> Sequence[str | int | float | None]:
    """The plain values that are all that a schema allows; () for others."""
    found = listed(schema) or ()
    return found if all(one is None or isinstance(one, str | int | float) for one in found) else ()


def _raw(form: ToolFormat, schema: Mapping[str, Any], root: Mapping[str, Any], after: str) -> str | None:
    """A value that may be a text, as it is, and what comes after it; None for one that is written as JSON.

    Null is a word then. Other values are JSON beside texts that are listed, or Python's words where a format has them.
    Beside other texts they are among these, but a strict tool's value is JSON.
    """
    strict = "x-guidance" not in schema
    tag, rest = after.rstrip(), written(form, _after_tag(after))
    free = f"raw {rest}"
    if not strict and not schema.keys() - NOTES - {"x-guidance"}:
        return free
    found = plain(schema, root)
    if found is None or not found.texts:
        return None
    words = _words(form, found)
    nulls = [*NULLS[:1] * found.null, *(word for word in words if WORDS[word] is None)]
    if all(map(listed, found.texts)):
        values = [quoted(one + tag) for one in dict.fromkeys((*found.options, *nulls, *words))]
        values += [f"{json_value(one)} {quoted(tag)}" for one in found.others]
        return f"({' | '.join(values)}) {rest}"
    if found.others:
        return None if strict else free
    for one in found.texts:
        require_written(one)
    bounds = [(_length(one, "minLength") or 0, _length(one, "maxLength")) for one in found.texts]
    if (0, None) in bounds:
        return free
    if len(bounds) > 1:
        require_written(schema)
        return free
    return _text(form, *bounds[0], nulls, after)


def _text(form: ToolFormat, least: int, most: int | None, nulls: Sequence[str], after: str) -> str:
    """A text of so many characters, or null, and what comes after it; one of at most so many characters has no "<".

    Where a line end at either end is not the text's, one of at least so many characters has none among its first.
    """
    tag, rest = after.rstrip(), written(form, _after_tag(after))
    one = r"[^<\n]" if after.startswith("\n") else "[^<]"
    if most is not None:
        text = "|".join([rf"{one}{{{least}}}[^<]{{0,{most - least}}}", *nulls])
        return f"/({text}){escaped(tag)}/ {rest}"
    values = [rf"/({one}|<[^\/]){{{least}}}/ raw", *(quoted(null + tag) for null in nulls if len(null) < least)]
    return f"({' | '.join(values)}) {rest}"


def _length(schema: Mapping[str, Any], key: str) -> int | None:
    """Characters that a schema wants at least, or at most; None for what is no number of them."""
    found = schema.get(key)
    return found if isinstance(found, int) and found >= 0 else None


def marked_rule(mark: str, token: int | None) -> str:
    """The rule of a text up to the mark after it, which may be a control token, and of that mark."""
    return f"marked[lazy]: {pattern('', mark)}\n" if token is None else f"marked: /(?s:.+)/? <[{token}]>\n"


def raw_rule(form: ToolFormat) -> str:
    """The rule of a text that is written as it is, up to the first tag that ends it, and of that tag."""
    tag = form.parameter.split("VALUE")[1].strip()
    return f"raw[lazy]: {pattern('', tag)}\n"


def _after_tag(after: str) -> str:
    """Of what comes after a value what follows the tag."""
    return after[len(after.rstrip()) :]


ANY_MARKED = (
    'any: mark marked | %json {"type": ["number", "boolean", "null"]} | "[" (any ("," any)*)? "]"'
    f' | "{{" {MEMBERS} "}}"\nmember: /{NAME}/ ":" any\n'
)
"""A value of which nothing is said, with texts between marks."""


def _marked(schema: Mapping[str, Any], form: ToolFormat, rules: list[str]) -> str:
    """A value with texts between marks. Raises GrammarError for what can't be kept to and has to be."""
    kind, options = schema.get("type"), _options(schema)
    if options:
        written = (f"mark {quoted(one)} mark" if isinstance(one, str) else quoted(json.dumps(one)) for one in options)
        return f"({' | '.join(written)})"
    if kind in ("integer", "number", "boolean", "null"):
        return json_value(schema)
    if isinstance(kind, list) and kind:
        return f"({' | '.join(_marked({**schema, 'type': one}, form, rules) for one in kind)})"
    require_written(schema)
    if kind == "string":
        least, most = _length(schema, "minLength") or 0, _length(schema, "maxLength")
        if most is not None:
            return f"mark /[^<]{{{least},{most}}}/ mark"
        return rf"mark /([^<]|<[^|]){{{least}}}/ marked" if least else "mark marked"
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    if kind == "array":
        item = (
            _marked({**shared, **schema["items"]}, form, rules) if isinstance(schema.get("items"), Mapping) else "any"
        )
        return f'"[" ({item} ("," {item})*)? "]"'
    if kind == "object" and (schema.get("properties") or schema.get("additionalProperties") is False):
        return f'"{{" {by_name(Tool("", schema, strict=True), form, rules)} "}}"'
    return f'"{{" {MEMBERS} "}}"' if kind == "object" else "any"
