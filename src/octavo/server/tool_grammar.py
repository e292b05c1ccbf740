"""Grammars of calls: in which a reply can be nothing but calls of the tools that there are, as a model writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import GrammarError
from octavo.runtime.grammar import JSON, Grammar
from octavo.runtime.schema import read_schema
from octavo.server.tool_formats import GENERIC, ToolFormat
from octavo.text import Tokenizer

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

ANYTHING: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Tool:
    """A function that may be called: its parameters as a JSON schema, and whether all of that is to be kept to."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def tools_grammar(form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer, *, several: bool) -> Grammar:
    """A grammar of one call or, with `several`, of one or more. Raises GrammarError for a schema that is none."""
    writer = _Writer(form, tools, tokenizer)
    thinks = "thinking? " if form.thinks[0] else ""
    return Grammar.lark(f"start: {thinks}{writer.section(several)}\n{writer.rules()}")


def arguments_grammar(form: ToolFormat, tool: Tool, tokenizer: Tokenizer) -> Grammar:
    """A grammar of a call's arguments alone. Raises GrammarError for a schema that is none."""
    return Grammar.lark(f"start: arguments0\n{_Writer(form, [tool], tokenizer).rules()}")


def or_json(calls: Grammar, answer: Grammar, form: ToolFormat = GENERIC) -> Grammar:
    """Either calls, or an answer that is JSON of a schema."""
    first, rest = calls.text.removeprefix("start: ").split("\n", 1)
    thinks = "thinking? " if form.thinks[0] else ""
    value = f"{_text(form.answers)} " if form.answers else ""
    value += _json(json.loads(answer.text))
    rules = f"calls: {first.removeprefix(thinks)}\nanswer: {value}\n{rest}"
    return Grammar.lark(f"start: {thinks}(calls | answer)\n{rules}")


def text_or_calls(form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer, *, several: bool) -> Grammar:
    """A grammar of any text, in which what begins as a call is one. Raises GrammarError for a schema that is none."""
    writer = _Writer(form, tools, tokenizer)
    opened = [f"opened{i}" for i in range(len(form.opens))]
    rules = [f"{name}: {writer.opened(m)}\n" for name, m in zip(opened, form.opens, strict=True)]
    start = f"({' | '.join(opened)}){'*' if several else '?'} free TEXT?"
    if form.bare:
        rules += [writer.bare_calls(several)]
        start = f"(bare free TEXT? | {start})"
    ids = sorted({*tokenizer.special_ids} - tokenizer.stop_ids - set(map(tokenizer.special_id, form.opens)))
    free = f"(TEXT? <[{_ranges(ids)}]>)*" if ids else '""'
    return Grammar("reply", f"start: {start}\nfree: {free}\nTEXT: /(?s:.+)/\n{''.join(rules)}{writer.rules()}")


class _Writer:
    """Writes Lark's rules of calls of some tools."""

    def __init__(self, form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer) -> None:
        self.form, self.tools, self._tokenizer = form, tools, tokenizer
        self._arguments = [self._arguments_of(tool) for tool in tools]

    def rules(self) -> str:
        """What all other rules are made of: arguments, calls and thinking."""
        rules = [f"arguments{i}: {text}\n" for i, text in enumerate(self._arguments)]
        rules.append(f"call: {self._calls(self.form.call)}\n")
        begin, end = self.form.thinks
        if begin:
            rules.append(f"thinking: {self.text(begin)} thought\nthought[lazy]: {_regex('', end)}\n")
        if self.form.mark:
            rules.append(f"mark: {self.text(self.form.mark)}\n{ANY_MARKED}")
        return "".join(rules)

    def section(self, several: bool) -> str:
        """Calls, with all that is around them."""
        before, after = self.form.around
        return f"{self.text(before)} {self._list('call', several)} {self.text(after)}"

    def opened(self, marker: str) -> str:
        """Any text up to a marker that opens calls, and what comes after it."""
        (before, after), call = self.form.around, self.form.call
        if before.startswith(marker):
            rest = f"{self.text(before.removeprefix(marker))} {self._list('call', True)} {self.text(after)}"
        elif marker in call:
            rest = f"({self._calls(call[call.index(marker) + len(marker) :])})"
        else:
            rest = self.section(True)
        token = self._tokenizer.special_id(marker)
        if token is not None:
            return f"free TEXT? <[{token}]> {rest}"
        name = f"head{self.form.opens.index(marker)}"
        return f"free {name} {rest}\n{name}[lazy]: {_regex('(?s:.*)', marker)}"

    def bare_calls(self, several: bool) -> str:
        """Calls that a reply begins with and no marker opens: those whose beginning tells the name of a tool."""
        (before, after), call = self.form.around, self.form.call
        begin, rest = call.split("NAME", 1)
        more = self._more(several)
        rules = []
        for i, tool in enumerate(self.tools):
            words = f"{before}{begin}{tool.name}{rest[0]}".split(" ")
            head = r"\s*".join(_escaped(word) for word in words)
            rules.append(f"bare{i}: bare_head{i} {self._call(rest[1:], i)}\n"
                         rf"bare_head{i}[lazy]: /\s*{head}/" "\n")  # fmt: skip
        first = " | ".join(f"bare{i}" for i in range(len(rules)))
        return f"bare: ({first}) {more} {self.text(after)}\n{''.join(rules)}"

    def _list(self, call: str, several: bool) -> str:
        return f"{call} {self._more(several)}"

    def _more(self, several: bool) -> str:
        """Calls after the first one."""
        joint = self.form.joint
        return f"({self.text(joint)} call)*" if several and joint is not None else ""

    def _calls(self, written: str) -> str:
        return " | ".join(self._call(written, i) for i in range(len(self.tools)))

    def _call(self, written: str, i: int) -> str:
        """A call of a tool, as it is written."""
        parts = {"NAME": _text(self.tools[i].name), "ARGUMENTS": f"arguments{i}"}
        return " ".join(parts.get(part) or self.text(part) for part in _CALL_PART.split(written) if part)

    def _arguments_of(self, tool: Tool) -> str:
        try:
            schema = _schema(tool)
            if not self.form.parameter:
                return _json(schema)
            _require_written(schema)
            return _by_name(tool, self.form) or '""'
        except GrammarError as error:
            raise GrammarError(f"tool {tool.name!r}: {error}") from None

    def text(self, written: str) -> str:
        """A text in which there may be control tokens, which a grammar's text never is; NUMBER is any."""
        parts = []
        for part in _PART.split(written):
            token = self._tokenizer.special_id(part)
            if part == "NUMBER":
                parts.append("/[0-9]{1,3}/")
            elif part:
                parts.append(_text(part) if token is None else f"<[{token}]>")
        return " ".join(parts) or '""'


_CALL_PART = re.compile("(NAME|ARGUMENTS)")
_PART = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\]|NUMBER)")
"""What may be a control token."""


def _ranges(ids: Sequence[int]) -> str:
    """Numbers as llguidance writes them: 1-3,7."""
    runs: list[list[int]] = []
    for i in ids:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)


def _regex(before: str, text: str) -> str:
    """A regular expression of a text after what `before` matches."""
    return f"/{before or '(?s:.*)'}{_escaped(text)}/"


def _escaped(text: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text).replace("\n", r"\n")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _schema(tool: Tool) -> dict[str, Any]:
    """The parameters' schema. Keywords that can't be kept to are left out but for strict tools."""
    schema = read_schema(tool.parameters) if tool.parameters else NOTHING
    if schema.get("type") is None:
        schema = {"type": "object", **schema}
    return schema if tool.strict else {**schema, "x-guidance": {"lenient": True}}


def _json(schema: Mapping[str, Any]) -> str:
    options = {**JSON, **schema.get("x-guidance", {})}
    return f"%json {json.dumps({**schema, 'x-guidance': options}, ensure_ascii=False)}"


def _properties(tool: Tool) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Names of parameters with their schemas, and whether they are required."""
    schema = _schema(tool)
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


def _by_name(tool: Tool, form: ToolFormat) -> str:
    """Parameters in their order, the required ones first where commas are between them."""
    found = _properties(tool)
    if form.comma:
        found.sort(key=lambda p: not p[2])
    needed = sum(required for _, _, required in found)
    parts = []
    for i, (name, schema, required) in enumerate(found):
        one = _parameter(form, name, schema)
        if not form.comma:
            parts.append(one if required else f"({one})?")
        elif required or needed or i == 0:
            one = f"{_text(form.comma)} {one}" if i else one
            parts.append(one if required else f"({one})?")
    return " ".join(parts)


def _parameter(form: ToolFormat, name: str, schema: Mapping[str, Any]) -> str:
    """A parameter; a text that is written as it is goes on up to the next tag of an end."""
    before, after = (part.replace("KEY", name) for part in form.parameter.split("VALUE"))
    raw = form.raw and schema.get("type") == "string"
    value = _marked(schema, form) if form.mark else _raw(schema) if raw else _json(schema)
    return f"{_text(before)} {value} {_text(after)}" if after else f"{_text(before)} {value}"


UNWRITTEN = frozenset({
    "anyOf", "oneOf", "allOf", "not", "if", "$ref", "const", "enum", "pattern", "format", "minItems", "maxItems",
    "uniqueItems", "prefixItems", "contains", "minProperties", "maxProperties", "patternProperties", "propertyNames",
})  # fmt: skip
"""Keywords that only JSON is held to."""


def _require_written(schema: Mapping[str, Any]) -> None:
    """Raises GrammarError where a strict tool has keywords that values which are no JSON can't be held to."""
    if "x-guidance" not in schema and (unkept := UNWRITTEN & set(schema)):
        raise GrammarError(f"{min(unkept)} can't be kept to in calls as this model writes them")


def _options(schema: Mapping[str, Any]) -> Sequence[str | int | float | None]:
    """The plain values that are all that a schema allows; () for others."""
    found = schema.get("enum", [schema["const"]] if "const" in schema else None)
    plain = isinstance(found, list) and all(one is None or isinstance(one, str | int | float) for one in found)
    return found if isinstance(found, list) and plain else ()


def _raw(schema: Mapping[str, Any]) -> str:
    """A text as it is; one of a given length has no "<"."""
    if options := _options(schema):
        return f"({' | '.join(_text(str(one)) for one in options)})"
    _require_written(schema)
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return rf"/[^<]{{{least},{most}}}/" if least or most != "" else r"/([^<]|<[^\/])*/"


ANY_MARKED = (
    'any: MARKED | %json {"type": ["number", "boolean", "null"]} | "[" (any ("," any)*)? "]"'
    ' | "{" (member ("," member)*)? "}"\nmember: /[A-Za-z_][A-Za-z0-9_]*/ ":" any\n'
).replace("MARKED", r"mark /([^<]|<+[^<|])*/ mark")
"""A value of which nothing is said, with texts between marks."""


def _marked(schema: Mapping[str, Any], form: ToolFormat) -> str:
    """A value with texts between marks. Raises GrammarError for what can't be kept to and has to be."""
    kind, options = schema.get("type"), _options(schema)
    if options:
        written = (f"mark {_text(one)} mark" if isinstance(one, str) else _text(json.dumps(one)) for one in options)
        return f"({' | '.join(written)})"
    if kind in ("integer", "number", "boolean", "null"):
        return _json(schema)
    if isinstance(kind, list) and kind:
        return f"({' | '.join(_marked({**schema, 'type': one}, form) for one in kind)})"
    _require_written(schema)
    if kind == "string":
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        text = rf"/[^<]{{{least},{most}}}/" if least or most != "" else r"/([^<]|<+[^<|])*/"
        return f"mark {text} mark"
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    if kind == "array":
        item = _marked({**shared, **schema["items"]}, form) if isinstance(schema.get("items"), Mapping) else "any"
        return f'"[" ({item} ("," {item})*)? "]"'
    if kind == "object" and (schema.get("properties") or schema.get("additionalProperties") is False):
        return f'"{{" {_by_name(Tool("", schema, strict=True), form)} "}}"'
    return '"{" (member ("," member)*)? "}"' if kind == "object" else "any"
