"""Grammars of calls: in which a reply can be nothing but calls of the tools that there are, as a model writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import GrammarError
from octavo.runtime.grammar import JSON, Grammar
from octavo.runtime.schema import read_schema
from octavo.server.tools import ToolFormat
from octavo.text import Tokenizer

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function that may be called: its parameters as a JSON schema, and whether all of that is to be kept to."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def tools_grammar(form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer, *, several: bool) -> Grammar:
    """A grammar of one call or, with `several`, of one or more. Raises GrammarError for a schema that is none."""
    if form.name == "xml":
        calls, begin, end = [_xml(t) for t in tools], '"<tool_call>\\n"', '"</function>\\n</tool_call>"'
        rules = _repeated(calls, begin, end, '"\\n"', several)
    elif form.name == "pythonic":
        rules = _repeated([_python(t) for t in tools], "", "", '", "', several, around=('"["', '"]"'))
    elif form.name == "mistral":
        marker = _literal("[TOOL_CALLS]", tokenizer)
        if "[ARGS]" in tokenizer.texts:
            args = _literal("[ARGS]", tokenizer)
            calls = [f"{marker} {_text(t.name)} {args} {_json(_schema(t))}" for t in tools]
            rules = _repeated(calls, "", "", '""', several)
        else:
            rules = _repeated(
                [_object(t, "arguments") for t in tools], "", "", '", "', several, (f'{marker} "["', '"]"')
            )
    elif form.name == "llama3":
        rules = _repeated([_object(t, "parameters") for t in tools], "", "", '"; "', several)
    else:
        calls = [_object(t, "arguments") for t in tools]
        opens, closes = _literal("<tool_call>", tokenizer), _literal("</tool_call>", tokenizer)
        rules = _repeated(calls, f'{opens} "\\n"', f'"\\n" {closes}', '"\\n"', several)
    return Grammar.lark(rules)


def or_json(calls: Grammar, answer: Grammar) -> Grammar:
    """Either calls, or an answer that is JSON of a schema."""
    rules = calls.text.replace("start:", "calls:", 1)
    return Grammar.lark(f"start: calls | answer\nanswer: {_json(json.loads(answer.text))}\n{rules}")


def _repeated(
    calls: Sequence[str], begin: str, end: str, between: str, several: bool, around: tuple[str, str] = ("", "")
) -> str:
    """Lark's rules for calls, each between `begin` and `end`, and all of them within `around`."""
    one = f"call: {begin} function {end}\nfunction: " + "\n  | ".join(calls)
    more = f" ({between} call)*" if several else ""
    return f"start: {around[0]} call{more} {around[1]}\n{one}\n".replace('("" call)*', "call*")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str, tokenizer: Tokenizer) -> str:
    """A text that may be a control token, which a grammar's text never is."""
    token = tokenizer.texts.index(text) if text in tokenizer.texts else None
    return f"<[{token}]>" if token is not None and tokenizer.is_special(token) else _text(text)


def _schema(tool: Tool) -> dict[str, Any]:
    """The parameters' schema. Keywords that can't be kept to are left out but for strict tools."""
    try:
        schema = read_schema(tool.parameters) if tool.parameters else NOTHING
    except GrammarError as error:
        raise GrammarError(f"tool {tool.name!r}: {error}") from None
    if schema.get("type") is None:
        schema = {"type": "object", **schema}
    return schema if tool.strict else {**schema, "x-guidance": {"lenient": True}}


def _json(schema: Mapping[str, Any]) -> str:
    options = {**JSON, **schema.get("x-guidance", {})}
    return f"%json {json.dumps({**schema, 'x-guidance': options}, ensure_ascii=False)}"


def _object(tool: Tool, arguments: str) -> str:
    head = f'{{"name": {_text(tool.name)}, "{arguments}": '
    return f'{_text(head)} {_json(_schema(tool))} "}}"'


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


def _xml(tool: Tool) -> str:
    """Texts are as they are, up to the next tag of an end; other values are JSON."""
    parts = [_text(f"<function={tool.name}>\n")]
    for name, schema, required in _properties(tool):
        value = r"/([^<]|<[^\/])*/" if schema.get("type") == "string" and "enum" not in schema else _json(schema)
        one = f'({_text(f"<parameter={name}>")} "\\n" {value} "\\n</parameter>\\n")'
        parts.append(one if required else one + "?")
    return " ".join(parts)


def _python(tool: Tool) -> str:
    """Arguments by name in their order, the required ones first; values are JSON."""
    found = sorted(_properties(tool), key=lambda p: not p[2])
    parts = [_text(f"{tool.name}(")]
    needed = sum(required for _, _, required in found)
    for i, (name, schema, required) in enumerate(found):
        comma = '", " ' if i > 0 and (required or needed) else ""
        one = f"{comma}{_text(name + '=')} {_json(schema)}"
        if required or needed or len(found) == 1 or i == 0:
            parts.append(one if required else f"({one})?")
    return " ".join([*parts, '")"'])
