"""Readers of calls: each takes the characters after a marker and gives the calls that they come to.

`feed` gives for a character the parts of calls that it completes: (name, "") where one begins, then (None, a piece of
its arguments' JSON). `done`: the calls are complete. `broken`: the characters so far are no call of a known tool.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from octavo.server.json_scan import CallReader, JsonScanner

Part = tuple[str | None, str]
Tools = Mapping[str, Mapping[str, Any]]
"""Parameters, as a JSON schema, by the names of functions."""

MOST_CHARACTERS = 1 << 20
"""Of a call that is read only once it is whole."""
LONGEST_TAG = 64
"""Characters among which a tag that is awaited begins."""


class Reader(Protocol):
    done: bool
    broken: bool

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


class MistralReader:
    """[{"name": "f", "arguments": {...}}, ...], or f[ARGS]{...}, where a [CALL_ID] may come before the arguments."""

    def __init__(self, tools: Tools) -> None:
        self.done = self.broken = False
        self._tools, self._name = tools, ""
        self._object: ObjectReader | None = None
        self._scanner: JsonScanner | None = None
        self._array = False

    def feed(self, c: str) -> list[Part]:
        if self._array:
            return self._in_array(c)
        if self._scanner is not None:
            self.broken = not self._scanner.feed(c)
            self.done = self._scanner.state == "done"
            return [] if self.broken else [(None, c)]
        if not self._name.strip() and c == "[":
            self._array = True
            return []
        if c == "{":
            return self._begin()
        self._name += c
        self.broken = len(self._name) > 512
        return []

    def _begin(self) -> list[Part]:
        name = re.split(r"\[ARGS\]|\[CALL_ID\]", self._name)[0].strip()
        if name not in self._tools:
            self.broken = True
            return []
        self._scanner = JsonScanner()
        self._scanner.feed("{")
        return [(name, "{")]

    def _in_array(self, c: str) -> list[Part]:
        if self._object is not None:
            parts = self._object.feed(c)
            self.broken = self._object.broken
            if self._object.done:
                self._object = None
            return parts
        if c == "{":
            self._object = ObjectReader(self._tools)
            return self._object.feed(c)
        self.done = c == "]"
        self.broken = c not in " \t\r\n,]"
        return []


class XmlReader:
    """<function=f><parameter=a>1</parameter></function>; values of parameters are as they are, not JSON."""

    _FUNCTION = re.compile(r"\s*<function=([^>\s]+)>")
    _PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
    _END = re.compile(r"\s*</function>")

    def __init__(self, tools: Tools) -> None:
        self.done = self.broken = False
        self._tools, self._text, self._count = tools, "", 0
        self._properties: Mapping[str, Any] | None = None

    def feed(self, c: str) -> list[Part]:
        self._text += c
        if c != ">":
            n = len(self._text)
            self.broken = n > MOST_CHARACTERS or (n < LONGEST_TAG and not self._may_begin())
            return []
        if self._properties is None:
            return self._begin()
        if self._END.fullmatch(self._text):
            self.done = True
            return [(None, "}" if self._count else "{}")]
        closed = self._text.endswith("</parameter>")  # a look at all of it for each ">" of a long value would take long
        found = self._PARAMETER.fullmatch(self._text) if closed else None
        if found is None:
            self.broken = not self._may_begin()
            return []
        self._text = ""
        self._count += 1
        name = found[1].strip()
        value = _value_of(found[2].removeprefix("\n").removesuffix("\n"), self._properties.get(name))
        return [(None, f"{'{' if self._count == 1 else ', '}{json.dumps(name)}: {value}")]

    def _begin(self) -> list[Part]:
        found = self._FUNCTION.fullmatch(self._text)
        if found is None or found[1] not in self._tools:
            self.broken = True
            return []
        self._text = ""
        properties = self._tools[found[1]].get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        return [(found[1], "")]

    def _may_begin(self) -> bool:
        """Whether the text may go on to one of the tags that are awaited."""
        text = self._text.lstrip()
        tags = ("<function=",) if self._properties is None else ("<parameter=", "</function>")
        return any(text.startswith(tag) or tag.startswith(text) for tag in tags)


def _value_of(text: str, schema: object) -> str:
    """A value as JSON: a text where the schema wants one, else what it says, a text where that is nothing."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind != "string":
        try:
            return json.dumps(json.loads(text, parse_constant=_no_constant))
        except (ValueError, RecursionError):
            pass
    return json.dumps(text)


def _no_constant(name: str) -> None:
    raise ValueError(name)


class PythonReader:
    """[f(a=1, b="x"), g()], as Python writes calls; of arguments by name, which are literals."""

    _BEGIN = re.compile(r"\[\s*([A-Za-z_][\w.]*\s*)?")

    def __init__(self, tools: Tools) -> None:
        self.done = self.broken = False
        self._tools, self._text, self._open, self._quote, self._escaped = tools, "", list[str](), "", False

    def feed(self, c: str) -> list[Part]:
        if not self._text and c.isspace():
            return []
        self._text += c
        self._bracket(c)
        if "(" not in self._text and not self._BEGIN.fullmatch(self._text):
            self.broken = True
        if self.broken or self._open:
            self.broken = self.broken or len(self._text) > MOST_CHARACTERS
            return []
        calls = _python_calls(self._text)
        self.broken = calls is None or any(name not in self._tools for name, _ in calls)
        self.done = not self.broken
        return [] if self.broken or calls is None else [part for name, a in calls for part in ((name, ""), (None, a))]

    def _bracket(self, c: str) -> None:
        """Keep count of the brackets that are open, but for those in strings."""
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
            self.broken = not self._open or self._open.pop() != c


def _python_calls(text: str) -> list[tuple[str, str]] | None:
    """Names and arguments, as JSON, of a list of calls; None for what is none."""
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_python_call(one) for one in tree.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _python_call(node: ast.expr) -> tuple[str, str]:
    """Raises ValueError for what is no call with arguments by name."""
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        raise ValueError("no call")
    arguments = {str(k.arg): _literal(k.value) for k in node.keywords}
    return ast.unparse(node.func), json.dumps(arguments, allow_nan=False)


def _literal(node: ast.expr) -> Any:
    """The value of a literal, of which true, false and null are ones too."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        return {str(ast.literal_eval(k)): _literal(v) for k, v in zip(node.keys, node.values, strict=True) if k}
    return ast.literal_eval(node)
