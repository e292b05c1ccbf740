"""Grammars of calls: in which a reply can be nothing but calls of the tools that there are, as a model writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from octavo.errors import GrammarError
from octavo.runtime.grammar.grammar import Grammar
from octavo.server.constraints.lark import escaped, pattern, quoted
from octavo.server.constraints.tool_parameters import Tool, by_name, raw_rule, schema_of, written
from octavo.server.constraints.tool_values import MarkedValues, PythonValues, json_value, require_written
from octavo.server.tool_calls.formats import GENERIC, ToolFormat
from octavo.text import Tokenizer


def tools_grammar(form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer, *, several: bool) -> Grammar:
    """A grammar of one call or, with `several`, of one or more. Raises GrammarError for a schema that is none."""
    writer = _CallWriter(form, tools, tokenizer)
    thinks = "thinking? " if form.thinks[0] else ""
    return Grammar("calls", f"start: {thinks}{writer.section(several)}\n{writer.rules()}")


def arguments_grammar(form: ToolFormat, tool: Tool, tokenizer: Tokenizer) -> Grammar:
    """A grammar of a call's arguments alone. Raises GrammarError for a schema that is none."""
    return Grammar("calls", f"start: arguments0\n{_CallWriter(form, [tool], tokenizer).rules()}")


def or_json(calls: Grammar, answer: Grammar, form: ToolFormat = GENERIC) -> Grammar:
    """Either calls, or an answer that is JSON of a schema."""
    first, rest = calls.text.removeprefix("start: ").split("\n", 1)
    thinks = "thinking? " if form.thinks[0] else ""
    value = f"{quoted(form.answers)} " if form.answers else ""
    value += json_value(json.loads(answer.text))
    rules = f"calls: {first.removeprefix(thinks)}\nanswer: {value}\n{rest}"
    return Grammar("calls", f"start: {thinks}(calls | answer)\n{rules}")


def text_or_calls(form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer, *, several: bool) -> Grammar:
    """A grammar of any text, in which what begins as a call is one. Raises GrammarError for a schema that is none."""
    writer = _CallWriter(form, tools, tokenizer)
    opened = [f"opened{i}" for i in range(len(form.opens))]
    rules = [f"{name}: {writer.opened(m)}\n" for name, m in zip(opened, form.opens, strict=True)]
    start = f"({' | '.join(opened)}){'*' if several else '?'} free TEXT?"
    if form.bare:
        rules += [writer.bare_calls(several)]
        start = f"(bare free TEXT? | {start})"
    ids = sorted({*tokenizer.special_ids} - tokenizer.stop_ids - set(map(tokenizer.special_id, form.opens)))
    free = f"(TEXT? <[{_ranges(ids)}]>)*" if ids else '""'
    return Grammar("reply", f"start: {start}\nfree: {free}\nTEXT: /(?s:.+)/\n{''.join(rules)}{writer.rules()}")


class _CallWriter:
    """Writes Lark's rules of calls of some tools."""

    def __init__(self, form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer) -> None:
        self.form, self.tools, self._tokenizer = form, tools, tokenizer
        self._parameters: list[str] = []
        self._arguments = [self._arguments_of(tool) for tool in tools]

    def rules(self) -> str:
        """What all other rules are made of: arguments, calls and thinking."""
        rules = [f"arguments{i}: {text}\n" for i, text in enumerate(self._arguments)] + self._parameters
        rules.append(f"call: {self._calls(self.form.call)}\n")
        begin, end = self.form.thinks
        if begin:
            rules.append(f"thinking: {self.text(begin)} thought\nthought[lazy]: {pattern('', end)}\n")
        if self.form.raw:
            rules.append(raw_rule(self.form))
        if self.form.mark:
            rules.append(f"mark: {self.text(self.form.mark)}\n")
            rules += MarkedValues.rules(self.form.mark, self._tokenizer.special_id(self.form.mark))
        if self.form.literals:
            rules += PythonValues.rules()
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
        return f"free {name} {rest}\n{name}[lazy]: {pattern('(?s:.*)', marker)}"

    def bare_calls(self, several: bool) -> str:
        """Calls that a reply begins with and no marker opens: those whose beginning tells the name of a tool."""
        (before, after), call = self.form.around, self.form.call
        begin, rest = call.split("NAME", 1)
        more = self._more(several)
        rules = []
        for i, tool in enumerate(self.tools):
            words = f"{before}{begin}{tool.name}{rest[0]}".split(" ")
            head = r"\s*".join(escaped(word) for word in words)
            rules.append(f"bare{i}: bare_head{i} {self._call(rest[1:], i)}\n"
                         rf"bare_head{i}[lazy]: /\s*{head}/" "\n")
        first = " | ".join(f"bare{i}" for i in range(len(rules)))
        return f"bare: ({first}) {more} {self.text(after)}\n{''.join(rules)}"

    def _list(self, call: str, several: bool) -> str:
        return f"{call} {self._more(several)}"

    def _more(self, several: bool) -> str:
        """Calls after the first one."""
        joint = self.form.joint
        return f"({self.text(joint)} call)*" if several and joint is not None else ""

    def _calls(self, whole: str) -> str:
        return " | ".join(self._call(whole, i) for i in range(len(self.tools)))

    def _call(self, whole: str, i: int) -> str:
        """A call of a tool, as it is written."""
        parts = {"NAME": quoted(self.tools[i].name), "ARGUMENTS": f"arguments{i}"}
        return " ".join(parts.get(part) or self.text(part) for part in _CALL_PART.split(whole) if part)

    def _arguments_of(self, tool: Tool) -> str:
        try:
            schema = schema_of(tool)
            if not self.form.parameter:
                return json_value(schema)
            require_written(schema)
            return by_name(tool, self.form, self._parameters) or '""'
        except GrammarError as error:
            raise GrammarError(f"tool {tool.name!r}: {error}") from None

    def text(self, whole: str) -> str:
        """A text in which there may be control tokens, which a grammar's text never is; NUMBER is any."""
        parts = []
        for part in _PART.split(whole):
            token = self._tokenizer.special_id(part)
            if part == "NUMBER":
                parts.append("/[0-9]{1,3}/")
            elif part:
                parts.append(written(self.form, part) if token is None else f"<[{token}]>")
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
