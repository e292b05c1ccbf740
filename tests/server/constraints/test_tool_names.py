"""What tools and their parameters may be called, and the schemas of these: kept to, or refused by name."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

import jsonschema
import pytest

from octavo.errors import GrammarError
from octavo.server.constraints.tool_choice import tools_grammar
from octavo.server.constraints.tool_parameters import Tool
from octavo.server.http.api_errors import ApiError
from octavo.server.routes.schema import ToolFunction
from octavo.server.tool_calls.formats import FORMATS, GENERIC, ToolFormat, format_of
from octavo.server.tool_calls.marked_reader import MARK
from octavo.server.tool_calls.tools import tool_use
from octavo.text import ChatTemplate
from tests.server.calls import ENDLESS, PARAMETERS, PLAIN, called
from tests.server.live_server import Server
from tests.server.routes.test_chat import ASK

OF_NAMES = ["get-weather", "ns.now", "a:1", "functions.f", "1", "x" * 128]
OF_KEYS = ["user-id", "from", "@type", "a b", "1a"]


@pytest.mark.few(6)
@pytest.mark.parametrize("form", [*FORMATS, GENERIC], ids=lambda form: form.name)
def test_names_that_no_identifier_has(form: ToolFormat) -> None:
    """What a tool may be called is read as it was written, and so are parameters that Python has no words for."""
    for name, key in zip_longest(OF_NAMES, OF_KEYS, fillvalue="f"):
        schema = {"properties": {key: {"type": "integer"}}, "required": [key], "additionalProperties": False}
        found, arguments = called(form, Tool(name, schema))
        assert (found, list(json.loads(arguments))) == (name, [key])


@pytest.mark.parametrize("name", ['a"b', "a<b", "a b", "é", "a/b", "x" * 129, "a\n"])
def test_names_that_a_tool_may_not_have(server: Server, name: str) -> None:
    """No call of it could be read."""
    tool = {"type": "function", "function": {"name": name}}
    status, error = server.refused("/v1/chat/completions", {"messages": ASK, "tools": [tool]})
    assert (status, error["param"]) == (400, "tools")
    allowed = "1 to 128 letters of a-z, A-Z, 0-9 and _ . : -"
    assert error["message"] == f"the name of a tool is {name!r} (allowed: {allowed})"


ODD_KEYS = ["a:b", "a,b", 'a"b', "a<b", "a>b", "a=b", "a[b]", " a", "", "a\nb", '<|"|>', "VALUE", "a\\b"]
UNCARRIED = {
    "glm": {"a<b", " a", "", '<|"|>'}, "minimax_m2": {'a"b', " a", "", "a\nb", '<|"|>'}, "gemma4": {'<|"|>'},
    "seed_oss": {"a>b", " a", "", "a\nb", '<|"|>'}, "xml": {"a>b", " a", "", "a\nb", '<|"|>'},
    "pythonic": {"a,b", 'a"b', "a=b", "a[b]", " a", "", '<|"|>'},
}
"""What can't be told apart from what is around it, in formats whose arguments are not JSON."""


@pytest.mark.few(6)
@pytest.mark.parametrize("form", [*FORMATS, GENERIC], ids=lambda form: form.name)
def test_names_of_parameters_come_back_or_are_refused(form: ToolFormat) -> None:
    template = ChatTemplate("".join(("{# tools tool_calls ", *form.tells[:1], form.also, " #}")))
    assert format_of(template.source) is form
    for key in ODD_KEYS:
        schema = {"properties": {key: {"type": "integer"}}, "required": [key], "additionalProperties": False}
        given = [{"name": "weather", "parameters": schema}]
        if key in UNCARRIED.get(form.name, ()):
            with pytest.raises(ApiError) as refused:
                tool_use(template, given, None, None, True)
            assert (refused.value.status, refused.value.param) == (400, "tools")
            assert f"tool 'weather': its parameter {key!r} can't be written" in refused.value.message
        else:
            assert tool_use(template, given, None, None, True) is not None
            assert list(json.loads(called(form, Tool("weather", schema))[1])) == [key]


@pytest.mark.parametrize("name", UNCARRIED)
def test_optional_parameters_are_refused_with_a_way_out(name: str) -> None:
    """A request with one is refused as a whole, and says that its parameter is an optional one."""
    (form,) = (form for form in FORMATS if form.name == name)
    template = ChatTemplate("".join(("{# tools tool_calls ", *form.tells[:1], form.also, " #}")))
    schema = {"properties": {"a": {}, MARK: {"type": "integer"}}, "required": ["a"]}
    with pytest.raises(ApiError) as refused:
        tool_use(template, [{"name": "f", "parameters": schema}], None, None, True)
    begin = f"tool 'f': its optional parameter {MARK!r} can't be written in calls as this model writes them"
    advice = "and the model is told of it: leave it out of the tool, or give it another name"
    assert refused.value.message == f"{begin}, {advice} (allowed: {form.allowed})"


def test_names_within_values_between_marks() -> None:
    (form,) = (form for form in FORMATS if form.mark)
    inner = {"type": "object", "properties": {"a:b": {"type": "integer"}}, "required": ["a:b"]}
    for value in (inner, {"type": "array", "items": inner}):
        found = json.loads(called(form, Tool("f", {"properties": {"x": value}, "required": ["x"]}))[1])
        assert all(one.keys() == {"a:b"} for one in (found["x"] if "items" in value else [found["x"]]))
    wrong = {"properties": {"x": {"items": {"properties": {form.mark: {}}}}}}
    with pytest.raises(ApiError, match="its optional parameter"):
        tool_use(ChatTemplate(f"{{# tools tool_calls {form.tells[0]} #}}"), [{"name": "f", "parameters": wrong}], None,
                 None, True)


REFERENCE = {"$ref": "#/$defs/Where", "$defs": {"Where": PARAMETERS}}


def referred(schema: dict[str, Any]) -> dict[str, Any]:
    """Parameters as a request's tool has them."""
    found = ToolFunction(name="f", parameters=schema).parameters
    assert found is not None
    return found


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("form", [*FORMATS, GENERIC], ids=lambda form: form.name)
def test_parameters_that_are_a_reference(form: ToolFormat, strict: bool) -> None:
    """They are those of the schema that it leads to."""
    _, arguments = called(form, Tool("f", referred(REFERENCE), strict))
    jsonschema.validate(json.loads(arguments), PARAMETERS)


def test_references_within_what_a_reference_leads_to() -> None:
    """And what stands beside it counts, too."""
    parts = {"Where": {"$ref": "#/$defs/Place"}, "Day": {"type": "integer"}, "Place": {
        "type": "object", "required": ["day"], "properties": {"day": {"$ref": "#/$defs/Day"}}}}
    beside = {"properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    given = {"$ref": "#/$defs/Where", "$defs": parts, **beside}
    for form in (GENERIC, *(form for form in FORMATS if form.parameter and not form.mark)):
        found = json.loads(called(form, Tool("f", referred(given)))[1])
        assert found.keys() == {"day", "n"}
        assert all(isinstance(one, int) for one in found.values())


@pytest.mark.parametrize("schema", [
    {"$ref": "#"}, {"$ref": "#/$defs/X"}, {"$ref": "https://x.org/y"}, {"$ref": 1}, {"type": "object"},
    {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}, "type": "array"},
    {"$ref": "#/$defs/A", "$defs": {"A": True}},
], ids=str)
def test_references_that_stay_as_they_are(schema: dict[str, Any]) -> None:
    """They lead nowhere or back, or what stands beside them contradicts; the grammar's compiler tells of them."""
    assert referred(schema) == schema


def test_templates_are_told_what_a_reference_leads_to(server: Server) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": REFERENCE}}
    prompt = server.post("/apply-template", messages=ASK, tools=[tool])["prompt"]
    (line,) = (line for line in prompt.splitlines() if line.startswith('{"name": "f"'))
    assert json.loads(line.removesuffix("<|im_end|>"))["parameters"] == {**PARAMETERS, "$defs": {"Where": PARAMETERS}}


UNWRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("gemma4", {"not": {"type": "integer"}}),
    ("gemma4", {"allOf": [{"type": "integer"}, {"minimum": 1}]}),
    ("gemma4", {"type": "array", "minItems": 2}),
    ("gemma4", {"type": "string", "pattern": "[0-9]"}),
    ("xml", {"type": "string", "pattern": "[0-9]"}),
    ("glm", {"type": "string", "format": "date"}),
]


@pytest.mark.parametrize(("name", "one"), UNWRITTEN)
def test_strict_tools_whose_schemas_a_format_has_no_words_for(name: str, one: dict[str, Any]) -> None:
    (form,) = (form for form in FORMATS if form.name == name)
    wrong, keyword = {"type": "object", "properties": {"a": one}}, next(key for key in one if key != "type")
    with pytest.raises(GrammarError, match=f"tool 'f': {keyword} can't be kept to"):
        tools_grammar(form, [Tool("f", wrong, strict=True)], PLAIN, several=False)
    tools_grammar(form, [Tool("f", wrong)], PLAIN, several=False)


def test_tools_that_no_grammar_holds(server: Server) -> None:
    """Calls of a tool whose schema can't be kept to are held to less; a strict one is refused."""
    for strict in (False, True):
        body: dict[str, Any] = {"messages": ASK, "max_tokens": 2, "tools": [
            {"type": "function", "function": {"name": "f", "parameters": ENDLESS, "strict": strict}}]}
        if strict:
            status, error = server.refused("/v1/chat/completions", body)
            assert (status, error["param"]) == (400, "tools")
        else:
            assert server.post("/v1/chat/completions", **body)["usage"]["completion_tokens"] > 0


UNKEPT = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


@pytest.mark.parametrize("more", [
    {}, {"tool_choice": "required"}, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
], ids=str)
def test_a_strict_tool_that_can_not_be_kept_to_is_named(server: Server, more: dict[str, Any]) -> None:
    """With what is wrong, and no lines of a grammar that nobody wrote."""
    loose = {"type": "function", "function": {"name": "loose", "parameters": UNKEPT}}
    strict = {"type": "function", "function": {"name": "weather", "parameters": UNKEPT, "strict": True}}
    body = {"messages": ASK, "tools": [loose, strict], **more}
    _, error = server.refused("/v1/chat/completions", body)
    assert (error["param"], error["message"]) == ("tools", "tool 'weather' is strict: Unimplemented keys: [\"not\"]")
