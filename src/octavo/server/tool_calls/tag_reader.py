"""Calls whose parameters stand between tags, with values as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.server.constraints.plain_values import value_of
from octavo.server.tool_calls.readers import MOST_CHARACTERS, Part, Tools

LONGEST_TAG = 64
"""Characters among which a tag that is awaited begins."""


@dataclass(frozen=True)
class Tags:
    """How a call is written in tags.

    function         the function's name is its first group
    opens_function   what it begins with; "" where the name itself comes first
    parameter        its name and its value are the groups
    opens_parameter  what that begins with
    ends_parameter   what that ends with
    end              ends the call
    edge             stands at both ends of a value, and is not a part of it
    """

    function: re.Pattern[str]
    opens_function: str
    parameter: re.Pattern[str]
    opens_parameter: str
    ends_parameter: str
    end: str
    edge: str = ""

    def awaited(self, named: bool) -> tuple[str, ...]:
        """The tags that may come next."""
        return (self.opens_parameter, self.end) if named else (self.opens_function,)


def _parameter(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


XML = Tags(re.compile(r"\s*<function=([^>\s]+)>"), "<function=",
           _parameter(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>"), "<parameter=", "</parameter>",
           "</function>", edge="\n")
"""<function=f><parameter=a>\\n1\\n</parameter></function>"""
SEED = replace(XML, edge="")
"""<function=f><parameter=a>1</parameter></function>"""
GLM = Tags(re.compile(r"\s*([^<>\s]+)\s*(?=<)"), "",
           _parameter(r"\s*<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*?)</arg_value>"), "<arg_key>", "</arg_value>",
           "</tool_call>")
"""f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"""
INVOKE = Tags(re.compile(r'\s*<invoke name="([^">\s]+)">'), "<invoke name=",
              _parameter(r'\s*<parameter name="([^"\n]+)">(.*?)</parameter>'), "<parameter name=", "</parameter>",
              "</invoke>")
"""<invoke name="f"><parameter name="a">1</parameter></invoke>"""


class TagReader:
    """A call in tags; values of parameters are as they are, not JSON."""

    def __init__(self, tools: Tools, tags: Tags = XML) -> None:
        self.done = self.broken = False
        self._tools, self._tags, self._text, self._count = tools, tags, "", 0
        self._properties: Mapping[str, Any] | None = None
        self._parameters: Mapping[str, Any] = {}

    def feed(self, c: str) -> list[Part]:
        self._text += c
        if c != ">":
            n = len(self._text)
            self.broken = n > MOST_CHARACTERS or (n < LONGEST_TAG and not self._may_begin())
            return []
        parts = self._begin() if self._properties is None else []
        if self.broken or not self._text or self._properties is None:
            return parts
        return parts + self._tag(self._properties)

    def _tag(self, properties: Mapping[str, Any]) -> list[Part]:
        """What a tag that is complete comes to."""
        if self._text.lstrip() == self._tags.end:
            self.done = True
            return [(None, "}" if self._count else "{}")]
        closed = self._text.endswith(self._tags.ends_parameter)  # a look at all of a long value takes long
        found = self._tags.parameter.fullmatch(self._text) if closed else None
        if found is None:
            self.broken = not self._may_begin()
            return []
        self._text = ""
        self._count += 1
        name, edge = found[1].strip(), self._tags.edge
        value = value_of(found[2].removeprefix(edge).removesuffix(edge), properties.get(name), self._parameters)
        return [(None, f"{'{' if self._count == 1 else ', '}{json.dumps(name)}: {value}")]

    def _begin(self) -> list[Part]:
        found = self._tags.function.match(self._text)
        if found is None or found[1] not in self._tools:
            self.broken = True
            return []
        self._text = self._text[found.end() :]
        self._parameters = self._tools[found[1]]
        properties = self._parameters.get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        return [(found[1], "")]

    def _may_begin(self) -> bool:
        """Whether the text may go on to what is awaited."""
        text = self._text.lstrip()
        if self._properties is None and not self._tags.opens_function:
            name = re.split(r"[\s<]", text, maxsplit=1)
            return name[0] in self._tools if len(name) > 1 else any(tool.startswith(text) for tool in self._tools)
        awaited = self._tags.awaited(self._properties is not None)
        return any(text.startswith(tag) or tag.startswith(text) for tag in awaited)
