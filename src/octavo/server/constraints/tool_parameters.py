"""Grammars of a call's parameters: their values as JSON, or one by one as a format writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from octavo.errors import GrammarError
from octavo.runtime.grammar.json_schema import NOTES, read_schema, require_finite
from octavo.server.constraints.lark import escaped, pattern, quoted
from octavo.server.constraints.plain_values import NULLS, WORDS, Plain, Schema, listed, plain
from octavo.server.constraints.tool_values import (
    NAME,
    MarkedValues,
    PythonValues,
    ValueGrammar,
    in_order,
    json_value,
    length,
    properties_of,
    require_written,
)
from octavo.server.tool_calls.formats import ToolFormat
from octavo.server.tool_calls.marked_reader import is_bare

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

ANYTHING: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Tool:
    """A function that may be called: its parameters as a JSON schema, and whether all of that is to be kept to."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def written(form: ToolFormat, text: str) -> str:
    """A text of a format as Lark has it, in which line ends may be left out where models differ in them."""
    parts = re.split("(\n)", text) if form.tight else [text]
    return " ".join(quoted(part) + "?" * (form.tight and part == "\n") for part in parts if part) or '""'


def schema_of(tool: Tool) -> dict[str, Any]:
    """The parameters' schema. Keywords that can't be kept to are left out but for strict tools."""
    schema = read_schema(tool.parameters) if tool.parameters else NOTHING
    require_finite(schema)
    if schema.get("type") is None:
        schema = {"type": "object", **schema}
    return schema if tool.strict else {**schema, "x-guidance": {"lenient": True}}


def by_name(tool: Tool, form: ToolFormat, rules: list[str]) -> str:
    """Parameters in their order, the required ones first where commas are between them; "" for none.

    Rules that the text refers to are added to `rules`, which is to be the same list for all of a grammar. Of a schema
    that names no parameters, and does not say that there are none, they are any.
    """
    whole = schema_of(tool)
    if "properties" not in whole and whole.get("additionalProperties") is not False:
        require_written(whole)
        return _any(form)
    values = MarkedValues(whole, rules) if form.mark else PythonValues(whole, rules)
    found = [(_parameter(form, name, one, whole, values), required) for name, one, required in properties_of(whole)]
    if form.comma:
        return in_order(found, quoted(form.comma), rules)
    return " ".join(one if required else f"({one})?" for one, required in found)


def _parameter(form: ToolFormat, name: str, schema: Schema, root: Schema, values: ValueGrammar) -> str:
    """A parameter with its name and value, whose schema is a part of `root`."""
    before, after = form.parameter.split("VALUE")
    begin, end = before.split("KEY")
    head = f"{quoted(begin + name)} {written(form, end)}"
    if form.mark and not is_bare(name):
        head = f"mark {quoted(name)} mark {quoted(end)}"
    if form.raw and (text := _raw(form, schema, root, after)) is not None:
        return f"{head} {text}"
    value = values.value(schema) if form.mark else _value(form, schema, root, values)
    return f"{head} {value} {written(form, after)}" if after else f"{head} {value}"


def _value(form: ToolFormat, schema: Schema, root: Schema, values: ValueGrammar) -> str:
    """A value as JSON or, where a format has them, as Python writes it: a word, a list or an object.

    The schema is a part of `root`. Lists and objects that can't be held to it when they are not JSON are JSON.
    """
    found = plain(schema, root)
    if found is None:
        return json_value(schema)
    choices = [json_value(schema), *map(quoted, _words(form, found))]
    for one in found.others if form.literals else ():
        if one.get("type") in ("array", "object"):
            with suppress(GrammarError):
                choices.append(values.container(one))
    return f"({' | '.join(choices)})"


def _or_words(value: str, words: Iterable[str]) -> str:
    """A value, or one of some words instead."""
    return f"({' | '.join([value, *map(quoted, words)])})"


def _words(form: ToolFormat, allowed: Plain) -> list[str]:
    """Python's words of values that are allowed, where a format has them."""
    return [word for word, value in WORDS.items() if form.words and allowed.allows(value)]


def _any(form: ToolFormat) -> str:
    """Parameters of which nothing is said."""
    if form.mark:
        return MarkedValues.members
    before, after = form.parameter.split("VALUE")
    begin, end = before.split("KEY")
    value = _or_words(json_value({}), WORDS if form.words else ())
    if form.raw:
        value = f"raw {written(form, _after_tag(after))}"
    one = f"{quoted(begin)} /{NAME}/ {written(form, end)} {value}"
    return f"({one} ({quoted(form.comma)} {one})*)?"


def _raw(form: ToolFormat, schema: Schema, root: Schema, after: str) -> str | None:
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
    bounds = [(length(one, "minLength") or 0, length(one, "maxLength")) for one in found.texts]
    if (0, None) in bounds:
        return free
    if len(bounds) > 1:
        require_written(schema)
        return free
    return _text(form, *bounds[0], nulls, after)


def _text(form: ToolFormat, least: int, most: int | None, nulls: Sequence[str], after: str) -> str:
    """A text of this many characters, or null, and what comes after it; one of at most this many characters has no "<".

    Where a line end at either end is not the text's, one of at least this many characters has none among its first.
    """
    tag, rest = after.rstrip(), written(form, _after_tag(after))
    one = r"[^<\n]" if after.startswith("\n") else "[^<]"
    if most is not None:
        text = "|".join([rf"{one}{{{least}}}[^<]{{0,{most - least}}}", *nulls])
        return f"/({text}){escaped(tag)}/ {rest}"
    values = [rf"/({one}|<[^\/]){{{least}}}/ raw", *(quoted(null + tag) for null in nulls if len(null) < least)]
    return f"({' | '.join(values)}) {rest}"


def raw_rule(form: ToolFormat) -> str:
    """The rule of a text that is written as it is, up to the first tag that ends it, and of that tag."""
    tag = form.parameter.split("VALUE")[1].strip()
    return f"raw[lazy]: {pattern('', tag)}\n"


def _after_tag(after: str) -> str:
    """Of what comes after a value what follows the tag."""
    return after[len(after.rstrip()) :]
