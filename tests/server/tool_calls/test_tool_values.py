"""Values of parameters in formats that have texts as they are, and parameters that a call leaves out."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any, Literal

import jsonschema
import pytest

from octavo.errors import GrammarError
from octavo.server.constraints.plain_values import MOST_SCHEMAS, value_of
from octavo.server.constraints.tool_choice import tools_grammar
from octavo.server.constraints.tool_parameters import Tool
from octavo.server.generation.output_parser import OutputParser
from octavo.server.tool_calls.formats import FORMATS, ToolFormat
from octavo.server.tool_calls.tools import ToolUse
from tests.runtime.grammar.grammar_walk import allowed_tokens, grammars_of
from tests.sampling import slow, some
from tests.server.calls import PLAIN, called, read
from tests.server.generation.test_output_parser import Result

RAW = [form for form in FORMATS if form.raw]
DEFS = {"Unit": {"type": "string", "enum": ["C", "F"], "title": "Unit"}, "Text": {"type": "string"},
        "Deep": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"$ref": "#/$defs/Numbers"}]},
        "Numbers": {"type": "array", "items": {"type": "integer"}}}
NULL, TEXT = {"type": "null"}, {"type": "string"}

WRITTEN: list[tuple[dict[str, Any], str, Any]] = [
    ({"anyOf": [TEXT, NULL], "default": None, "title": "A"}, "it's \"x\"\n", "it's \"x\"\n"),
    ({"anyOf": [TEXT, NULL]}, "12", "12"),
    ({"anyOf": [TEXT, NULL]}, "null", None),
    ({"anyOf": [TEXT, NULL]}, "None", None),
    ({"anyOf": [TEXT, NULL]}, "null and void", "null and void"),
    ({"anyOf": [{**TEXT, "maxLength": 6}, NULL]}, "a\nb", "a\nb"),
    ({"anyOf": [{**TEXT, "maxLength": 2}, NULL]}, "null", None),
    ({"anyOf": [{**TEXT, "minLength": 6}, NULL]}, "null", None),
    ({"anyOf": [{**TEXT, "minLength": 6}, NULL]}, "nullable", "nullable"),
    ({"anyOf": [{**TEXT, "minLength": 2}, NULL]}, "null", None),
    ({"oneOf": [NULL, TEXT]}, "a", "a"),
    ({"type": ["string", "null"]}, "true", "true"),
    ({"type": ["null", "string"]}, "null", None),
    ({"type": ["string", "null"], "enum": ["C", None]}, "C", "C"),
    ({"type": ["string", "null"], "enum": ["C", None]}, "null", None),
    ({"anyOf": [{"enum": ["None", "C"]}, NULL]}, "None", "None"),
    ({"enum": ["C", "12"]}, "12", "12"),
    ({"const": "C"}, "C", "C"),
    ({"$ref": "#/$defs/Text"}, "null", "null"),
    ({"$ref": "#/$defs/Text", "description": "What."}, "a b", "a b"),
    ({"$ref": "#/$defs/Unit"}, "C", "C"),
    ({"allOf": [{"$ref": "#/$defs/Unit"}], "default": "C"}, "F", "F"),
    ({"anyOf": [{"$ref": "#/$defs/Unit"}, NULL]}, "F", "F"),
    ({"anyOf": [{"$ref": "#/$defs/Unit"}, NULL]}, "null", None),
    ({"anyOf": [{"$ref": "#/$defs/Deep"}, NULL]}, "F", "F"),
    ({"anyOf": [{"$ref": "#/$defs/Deep"}, NULL]}, "[1, 2]", [1, 2]),
    ({"$ref": "#/properties/b"}, "x", "x"),
    ({"anyOf": [{"const": "auto", "type": "string"}, {"type": "integer"}]}, "auto", "auto"),
    ({"anyOf": [{"const": "auto", "type": "string"}, {"type": "integer"}]}, "12", 12),
    ({"type": ["string", "integer"]}, "a", "a"),
    ({"type": ["string", "integer"]}, "12", 12),
    ({"type": ["string", "integer"]}, "true", "true"),
    ({"type": ["string", "integer"]}, "null", "null"),
    ({"anyOf": [TEXT, {"type": "array", "items": TEXT}]}, '["a", "b"]', ["a", "b"]),
    ({"type": ["integer", "null"]}, "null", None),
    ({"description": "Anything."}, "a b", "a b"),
    ({"description": "Anything."}, "[1]", [1]),
    (TEXT, "null", "null"),
    (TEXT, "True", "True"),
    ({"type": "boolean"}, "true", True),
    ({"type": ["string", "boolean"]}, "True", True),
    ({"anyOf": [TEXT, {"type": "boolean"}, NULL]}, "False", False),
    ({"type": ["string", "integer"]}, "True", "True"),
    ({"enum": ["True", True]}, "True", "True"),
    ({"enum": ["C", "True"]}, "True", "True"),
    ({"description": "Anything."}, "True", "True"),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("form", RAW, ids=lambda form: form.name)
def test_values_are_read_as_a_model_writes_them(form: ToolFormat) -> None:
    """Texts have no quotation marks where a parameter may be null, or is a reference to a text."""
    for one, text, value in WRITTEN:
        schema = {"type": "object", "properties": {"a": one, "b": TEXT}, "required": ["a"], "$defs": DEFS}
        jsonschema.validate({"a": value}, schema)
        for choice in ("required", "auto"):
            assert written(form, schema, {"a": text}, choice) == {"a": value}, (one, text)


WORDS: list[tuple[dict[str, Any], str, Any]] = [
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "False", False),
    ({"type": "boolean"}, "true", True),
    ({"type": ["boolean", "null"]}, "None", None),
    ({"anyOf": [{"type": "integer"}, NULL], "default": None}, "None", None),
    ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Flag"}]}, "False", False),
    ({"enum": [True, 1]}, "True", True),
]
OF_TEXTS: list[tuple[dict[str, Any], str, Any]] = [
    ({"enum": ["auto", True]}, "True", True),
    ({"enum": ["auto", None]}, "None", None),
    ({"type": ["string", "boolean"]}, "False", False),
    ({"anyOf": [{**TEXT, "maxLength": 2}, NULL]}, "None", None),
    ({"anyOf": [{**TEXT, "minLength": 6}, NULL]}, "None", None),
]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("form", [form for form in FORMATS if form.words], ids=lambda form: form.name)
def test_words_of_python(form: ToolFormat, strict: bool) -> None:
    """Templates of Qwen3-Coder and Seed-OSS write earlier calls with them, and models do as these do."""
    assert {"xml", "seed_oss", "pythonic"} == {form.name for form in FORMATS if form.words}
    for one, text, value in [*WORDS, *(OF_TEXTS if form.raw else ())]:
        schema = {"type": "object", "properties": {"a": one}, "required": ["a"], "additionalProperties": False}
        schema["$defs"] = {"Flag": {"type": "boolean"}}
        jsonschema.validate({"a": value}, schema)
        assert read(form, schema, arguments_of(form, {"a": text}), strict=strict) == {"a": value}, (one, text)


TEXTS = {"type": "array", "items": TEXT}
POINT = {"type": "object", "properties": {"x": {"type": "number"}, "on": {"type": "boolean"}, "to": {"type": "null"}},
         "required": ["x"], "additionalProperties": False}
TREE = {
    "type": "object",
    "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    "required": ["of"],
}
LITERALS: list[tuple[dict[str, Any], str, Any]] = [
    (TEXTS, "['a', \"b's\"]", ["a", "b's"]),
    (TEXTS, "['\\'', '\\n\\\\', '\\xe9', 'é\\u20ac', 'x, [y']", ["'", "\n\\", "é", "é€", "x, [y"]),
    (TEXTS, '["a", \'b\']', ["a", "b"]),
    (TEXTS, "[]", []),
    ({"anyOf": [TEXTS, NULL]}, "['a']", ["a"]),
    ({"anyOf": [TEXTS, NULL]}, "None", None),
    (POINT, "{'x': 1.5, 'on': True, 'to': None}", {"x": 1.5, "on": True, "to": None}),
    (POINT, "{'x': -2}", {"x": -2}),
    ({"type": "array", "items": POINT}, "[{'x': 1, 'on': False}, {'x': 2}]", [{"x": 1, "on": False}, {"x": 2}]),
    ({"$ref": "#/$defs/Tree"}, "{'of': [{'of': []}, {'of': []}]}", {"of": [{"of": []}, {"of": []}]}),
    ({"type": "array", "items": {"enum": ["it's", 1, None]}}, "[\"it's\", 1, None]", ["it's", 1, None]),
    ({"type": "array", "items": {**TEXT, "maxLength": 2}}, "['ab', '']", ["ab", ""]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "{'a b': 1, 'c': 2}", {"a b": 1, "c": 2}),
    ({"type": "object"}, "{'a': [1, {'b': None}], 'c': 'd'}", {"a": [1, {"b": None}], "c": "d"}),
    ({"type": "array"}, "[True, 'a', [2.5]]", [True, "a", [2.5]]),
]


@pytest.mark.parametrize(
    ("choice", "strict"), some([("required", True), ("required", False), ("auto", True), ("auto", False)], 1)
)
def test_lists_and_objects_of_python(choice: Literal["required", "auto"], strict: bool) -> None:
    """Seed-OSS's template writes those of earlier calls as Python does, and its models do so, too."""
    (form,) = (form for form in FORMATS if form.literals)
    assert form.name == "seed_oss"
    for one, text, value in LITERALS:
        schema = {"type": "object", "properties": {"a": one}, "required": ["a"], "$defs": {"Tree": TREE}}
        jsonschema.validate({"a": value}, schema)
        for as_it_is in (text, json.dumps(value)):
            assert read(form, schema, arguments_of(form, {"a": as_it_is}), choice, strict=strict) == {"a": value}


def test_lists_of_python_that_a_strict_schema_does_not_allow() -> None:
    """Where Python's could not be held to it they are JSON."""
    (form,) = (form for form in FORMATS if form.literals)
    two = {"type": "array", "items": TEXTS, "minItems": 2}
    for one, text in ((two, "[['a'], ['b']]"), (TEXTS, "['a', 1]"), (POINT, "{'y': 1}"), (POINT, "{}")):
        schema = {"type": "object", "properties": {"a": one}, "required": ["a"]}
        with pytest.raises(AssertionError):
            read(form, schema, arguments_of(form, {"a": text}), strict=True)
    schema = {"type": "object", "properties": {"a": two, "b": TEXTS}, "required": ["a"]}
    given = arguments_of(form, {"a": '[["a"], ["b"]]', "b": "['c']"})
    assert read(form, schema, given, strict=True) == {"a": [["a"], ["b"]], "b": ["c"]}


@pytest.mark.parametrize("text", [
    "['a'", "[__import__('os')]", "[print(1)]", "{'a', 'b'}", "[b'a']", "[1e999]", "[...]", "['a' 'b'", "[" * 5000,
    "[" * 300 + "'a'" + "]" * 300, "[" + "-" * 9000 + "1]", "[a for a in 'b']", "[1 + 2j]", "[" + "9" * 9000 + "]",
], ids=lambda text: text[:20])
def test_what_is_no_list_of_python_is_a_text(text: str) -> None:
    assert value_of(text, {"type": "array"}) == json.dumps(text)


def test_lists_of_python_are_read_where_a_schema_has_lists() -> None:
    """In all formats that have values as they are."""
    assert value_of("['a', True]", {"type": "array"}) == '["a", true]'
    assert value_of("['a']", {"anyOf": [TEXT, {"type": "array"}]}) == '["a"]'
    assert value_of("{'a': ('b', None)}\n", {"type": "object"}) == '{"a": ["b", null]}'
    for one in (TEXT, {"type": "object"}, {"type": "integer"}, {}):
        assert value_of("['a']", one) == "\"['a']\""


MAYBE = {"anyOf": [{"$ref": "#/$defs/Tree"}, NULL], "default": None}
PARTS = {
    "Unit": {"enum": ["C", "F"]}, "Point": POINT, "Tree": {"type": "object", "properties": {"left": MAYBE}},
}
OPTIONAL: list[tuple[dict[str, Any], str, Any]] = [
    ({"anyOf": [TEXT, NULL], "default": None, "title": "A"}, '<|"|>it\'s<|"|>', "it's"),
    ({"anyOf": [TEXT, NULL]}, "null", None),
    ({"anyOf": [{"type": "integer", "minimum": 3}, NULL]}, "3", 3),
    ({"anyOf": [{"type": "boolean"}, NULL]}, "true", True),
    ({"anyOf": [{"type": "number"}, TEXT, NULL]}, "1.5", 1.5),
    ({"anyOf": [TEXTS, NULL]}, '[<|"|>a<|"|>,<|"|>b<|"|>]', ["a", "b"]),
    ({"type": "array", "items": {"anyOf": [TEXT, NULL]}}, '[<|"|>a<|"|>,null]', ["a", None]),
    ({"anyOf": [{"$ref": "#/$defs/Unit"}, NULL]}, '<|"|>C<|"|>', "C"),
    ({"$ref": "#/$defs/Unit"}, '<|"|>F<|"|>', "F"),
    ({"anyOf": [{"$ref": "#/$defs/Point"}, NULL]}, "{x:1,on:false}", {"x": 1, "on": False}),
    ({"type": "array", "items": {"$ref": "#/$defs/Point"}}, "[{x:1},{x:2}]", [{"x": 1}, {"x": 2}]),
    ({"$ref": "#/$defs/Tree"}, "{left:{left:null}}", {"left": {"left": None}}),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "{a:1,b:2}", {"a": 1, "b": 2}),
    ({"type": ["string", "null"]}, "null", None),
    ({"const": "C"}, '<|"|>C<|"|>', "C"),
]


@pytest.mark.parametrize("choice", ["required", slow("auto")])
def test_strict_values_between_marks_that_may_be_null(choice: Literal["required", "auto"]) -> None:
    """Fields of pydantic's models, optional ones and those of other models; strict tools with such were refused."""
    (form,) = (form for form in FORMATS if form.mark)
    for one, text, value in OPTIONAL:
        schema = {"type": "object", "properties": {"a": one}, "required": ["a"], "additionalProperties": False}
        schema["$defs"] = PARTS
        jsonschema.validate({"a": value}, schema)
        assert read(form, schema, arguments_of(form, {"a": text}), choice, strict=True) == {"a": value}, one
        jsonschema.validate(json.loads(called(form, Tool("f", schema, strict=True))[1]), schema)


@pytest.mark.parametrize("name", ["gemma4", "seed_oss"])
def test_definitions_are_not_repeated(name: str) -> None:
    """The grammar of many models within models grows with them, not by their square."""
    (form,) = (form for form in FORMATS if form.name == name)
    sizes = []
    for n in (10, 40):
        point = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "number"}}}
        parts = {f"P{i}": point | {"title": f"P{i}"} for i in range(n)}
        items = {"type": "object", "properties": {f"p{i}": {"$ref": f"#/$defs/P{i}"} for i in range(n)}}
        schema = {"type": "object", "properties": {"all": {"type": "array", "items": items}}, "$defs": parts}
        sizes.append(len(tools_grammar(form, [Tool("f", schema, strict=True)], PLAIN, several=False).text))
    assert sizes[1] < 5 * sizes[0]


def test_definitions_are_where_they_are_referred_to() -> None:
    (form,) = (form for form in FORMATS if form.name == "xml")
    parts = {"Point": {**POINT, "description": "Where it is. " * 300}}
    properties = {f"n{i}": {"type": "integer"} for i in range(60)} | {"at": {"$ref": "#/$defs/Point"}}
    schema = {"type": "object", "properties": properties, "required": ["at"], "$defs": parts}
    assert len(tools_grammar(form, [Tool("f", schema)], PLAIN, several=False).text) < 20_000
    assert written(form, schema, {"n0": "1", "at": '{"x": 2}'}) == {"n0": 1, "at": {"x": 2}}


def test_words_of_python_that_a_schema_does_not_allow() -> None:
    """A grammar has only those that it does, and other formats have none."""
    for form, one, text in [
        *((form, {"type": "boolean"}, "None") for form in RAW),
        *((form, {"enum": [True, 1]}, "False") for form in RAW),
        *((form, {"type": "boolean"}, "True") for form in RAW if not form.words),
    ]:
        schema = {"type": "object", "properties": {"a": one}, "required": ["a"]}
        with pytest.raises(AssertionError):
            written(form, schema, {"a": text})


@pytest.mark.parametrize("form", some((form for form in FORMATS if form.tight), 2), ids=lambda form: form.name)
@pytest.mark.parametrize("choice", [slow("required"), "auto"])
def test_line_ends_that_some_models_do_not_write(form: ToolFormat, choice: Literal["required", "auto"]) -> None:
    """GLM-4.5 and 4.6 end lines around tags, later ones do not; each of them may write calls as it was trained to."""
    shapes: list[dict[str, Any]] = [
        TEXT, {"anyOf": [{**TEXT, "minLength": 6}, NULL]}, {**TEXT, "maxLength": 4}, {"enum": ["null", "x"]},
        {"type": "integer"}, {}, {"type": ["string", "integer"]}, {"type": ["integer", "null"]},
    ]
    for a in shapes:
        schema = {"type": "object", "properties": {"a": a, "b": {"type": "integer"}}, "$defs": DEFS}
        value = "12" if a.get("type") == "integer" else "null"
        for given in ({"a": value, "b": "1"}, {"b": "1"}, {}):
            call = form.call.replace("NAME", "f").replace("ARGUMENTS", arguments_of(form, given))
            several = (call + (form.joint or "") + call).join(form.around)
            found = {text: calls_of(form, schema, text, choice) for text in (several, several.replace("\n", ""))}
            assert len({json.dumps(calls) for calls in found.values()}) == 1
            assert [list(json.loads(arguments)) for _, arguments in found[several]] == [list(given)] * 2
            assert calls_of(form, schema, several.replace("\n<arg_value>", "<arg_value>"), choice) == found[several]


def calls_of(form: ToolFormat, schema: dict[str, Any], text: str, choice: Any) -> list[tuple[str, str]]:
    """Calls of a reply, all of which a grammar of the schema allows."""
    use = ToolUse(form, [Tool("f", schema)], choice)
    tokens = PLAIN.encode(text, add_special=False)
    constraint = grammars_of(PLAIN).constraint(use.grammar(PLAIN))
    for i, token in enumerate(tokens):
        assert token in allowed_tokens(constraint, PLAIN), PLAIN.decode(tokens[:i])
        constraint.accept(token)
    assert allowed_tokens(constraint, PLAIN) & PLAIN.stop_ids
    detail, found = OutputParser(PLAIN, (), None, use.parser(), use.call_id()), Result()
    found.take([*detail.push(tokens), *detail.finish()])
    assert found.content == ""
    return found.calls


def written(form: ToolFormat, schema: dict[str, Any], values: dict[str, str], choice: Any = "required") -> Any:
    """Arguments of a call with values that are written so, under a grammar of the schema."""
    return read(form, schema, arguments_of(form, values), choice)


def arguments_of(form: ToolFormat, values: dict[str, str]) -> str:
    """Arguments as a format writes them, of values that are written so."""
    return form.comma.join(form.parameter.replace("KEY", k).replace("VALUE", v) for k, v in values.items())


STRICT: list[dict[str, Any]] = [
    {"anyOf": [{**TEXT, "maxLength": 3}, NULL]}, {"anyOf": [{**TEXT, "minLength": 6, "maxLength": 8}, NULL]},
    {"anyOf": [{"$ref": "#/$defs/Unit"}, NULL]}, {"$ref": "#/$defs/Deep"}, {"type": ["string", "integer"]},
    {"enum": ["C", 1, None]},
]


@pytest.mark.parametrize("form", RAW, ids=lambda form: form.name)
def test_strict_values_are_valid(form: ToolFormat) -> None:
    """Whatever a model writes that knows nothing."""
    for one in STRICT:
        schema = {"type": "object", "properties": {"a": one}, "required": ["a"], "additionalProperties": False}
        _, arguments = called(form, Tool("f", {**schema, "$defs": DEFS}, strict=True))
        jsonschema.validate(json.loads(arguments), {**schema, "$defs": DEFS})


@pytest.mark.parametrize("one", [
    {"anyOf": [{**TEXT, "pattern": "a"}, NULL]}, {"anyOf": [{**TEXT, "maxLength": 1}, {**TEXT, "minLength": 3}]},
], ids=str)
def test_strict_texts_that_can_not_be_kept_to(one: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": one}}
    for form in RAW:
        with pytest.raises(GrammarError, match=r"tool 'f': (pattern|anyOf) can't be kept to"):
            tools_grammar(form, [Tool("f", schema, strict=True)], PLAIN, several=False)
        tools_grammar(form, [Tool("f", schema)], PLAIN, several=False)


def test_references_that_come_together_often_are_not_followed() -> None:
    """Each of them twice to the next one; and one that leads to itself."""
    parts: dict[str, Any] = {f"D{i}": {"anyOf": [{"$ref": f"#/$defs/D{i + 1}"}] * 2} for i in range(40)}
    parts["D40"] = TEXT
    assert value_of("12", {"$ref": "#/$defs/D0"}, {"$defs": parts}) == "12"
    assert value_of("12", {"$ref": "#/$defs/D38"}, {"$defs": parts}) == '"12"'
    assert value_of("12", {"anyOf": [{"$ref": "#"}]}, {"anyOf": [{"$ref": "#"}]}) == "12"
    assert value_of("12", {"anyOf": [TEXT] * MOST_SCHEMAS}) == "12"


EDGES = ["a\n", "\na", "\n", "\n\n", "", " a ", "line\nline\n\n"]


@pytest.mark.parametrize("form", RAW, ids=lambda form: form.name)
def test_texts_keep_line_ends_at_their_ends(form: ToolFormat) -> None:
    """One at each end belongs to the marks only where a template writes it there, as Qwen3-Coder's does."""
    for text in EDGES:
        for more in ({}, {"minLength": 1}, {"maxLength": 20}):
            # where line ends belong to the marks, a text of at least this many characters doesn't begin with one
            if "minLength" in more and (not text or (text[0] == "\n" and form.name == "xml")):
                continue
            schema = {"type": "object", "properties": {"a": {**TEXT, **more}}, "required": ["a"]}
            assert written(form, schema, {"a": text}) == {"a": text}


@pytest.mark.parametrize("name", ["pythonic", "gemma4"])
def test_any_optional_parameters_may_be_left_out(name: str) -> None:
    """Those at the beginning too, where no parameter is required; only the first one could be given there."""
    (form,) = (form for form in FORMATS if form.name == name)
    keys = ["a", "b", "c", "d"]
    for required in ([], ["b"]):
        schema = {"type": "object", "properties": {key: {"type": "integer"} for key in keys}, "required": required}
        for n in range(len(keys) + 1):
            for chosen in combinations([key for key in keys if key not in required], n):
                given = {key: i for i, key in enumerate((*required, *chosen))}
                assert written(form, schema, {key: str(value) for key, value in given.items()}) == given
                if form.mark:  # an object within a value
                    inside = {"type": "object", "properties": {"o": schema, "p": schema}}
                    text = "{" + ",".join(f"{key}:{value}" for key, value in given.items()) + "}"
                    assert written(form, inside, {"p": text}) == {"p": given}


@pytest.mark.parametrize("name", ["pythonic", "gemma4"])
def test_parameters_of_calls_that_none_is_twice_in(name: str) -> None:
    (form,) = (form for form in FORMATS if form.name == name)
    schema = {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}}
    begin, _ = form.call.replace("NAME", "f").split("ARGUMENTS")
    constraint = grammars_of(PLAIN).constraint(ToolUse(form, [Tool("f", schema)], "required").grammar(PLAIN))
    one = form.parameter.replace("KEY", "b").replace("VALUE", "1")
    for token in PLAIN.encode(f"{form.around[0]}{begin}{one}{form.comma}", add_special=False):
        assert token in allowed_tokens(constraint, PLAIN)
        constraint.accept(token)
    assert {PLAIN.texts[i] for i in allowed_tokens(constraint, PLAIN)} == {"c"}


def test_many_optional_parameters() -> None:
    """The grammar grows with their number, not by its square."""
    (form,) = (form for form in FORMATS if form.name == "pythonic")
    few, many = (
        tools_grammar(form, [Tool("f", {"properties": {f"k{i:03}": TEXT for i in range(n)}})], PLAIN, several=False)
        for n in (20, 200)
    )
    assert len(many.text) < 12 * len(few.text)
    grammars_of(PLAIN).constraint(many)
