"""Objects have the keys that a schema names, and others where it says so, and stay valid for it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import GrammarError
from octavo.runtime import Grammar
from octavo.runtime.grammar import closed_schema
from octavo.runtime.grammar.closed_schema import closed
from octavo.runtime.grammar.grammar import Grammars
from octavo.text import Tokenizer
from tests.runtime import tiny
from tests.runtime.grammar.grammar_walk import allowed_tokens, text_of, walk
from tests.runtime.grammar.test_grammar import LEAVES

BYTES = Grammars(Tokenizer.from_metadata(tiny.TOKENIZER))
INT: dict[str, Any] = {"type": "integer"}


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required]}


def takes(schema: Any, value: Any) -> bool:
    """Whether a reply of the schema may be a value."""
    return takes_text(schema, json.dumps(value, separators=(",", ":")))


def takes_text(schema: Any, text: str) -> bool:
    constraint, tokenizer = BYTES.constraint(Grammar.json_schema(schema)), BYTES.tokenizer
    for token in tokenizer.encode(text, add_special=False):
        if token not in allowed_tokens(constraint, tokenizer):
            return False
        constraint.accept(token)
    return constraint.stopped or bool(tokenizer.stop_ids & allowed_tokens(constraint, tokenizer))


A, B, BASE = obj(a=INT), obj(b=INT), {"$ref": "#/$defs/base"}
DEFS = {"$defs": {"base": obj("a", a=INT)}}
KINDS = [obj("kind", kind={"const": k, "type": "string"}, **{k: INT}) for k in "xy"]
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "unset": (A, [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
    "none": (obj(), [{}], [{"a": 1}]),
    "without a type": ({"properties": {"a": INT}}, [{"a": 1}, 3, "x"], [{"b": 1}]),
    "false": ({**A, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
    "true": ({**A, "additionalProperties": True}, [{"a": 1, "b": 1}, {"b": "x"}], [{"a": "x"}]),
    "of a schema": ({**A, "additionalProperties": INT}, [{"a": 1, "b": 1}], [{"b": "x"}]),
    "no properties": ({"type": "object"}, [{"b": 1}], [3]),
    "dictionaries": ({"type": "object", "additionalProperties": A}, [{"x": {"a": 1}}], [{"x": {"b": 1}}]),
    "within true": (obj(o={**obj(i=A), "additionalProperties": True}),
                    [{"o": {"i": {"a": 1}, "z": 1}}], [{"o": {"i": {"b": 1}}}]),
    "lists": ({"type": "array", "items": A}, [[{"a": 1}]], [[{"b": 1}]]),
    "first items": ({"type": "array", "prefixItems": [A]}, [[{"a": 1}]], [[{"b": 1}]]),
    "deep": (obj(o=obj(o=obj(a=INT))), [{"o": {"o": {"a": 1}}}], [{"o": {"o": {"b": 1}}}, {"o": {"b": 1}}]),
    "definitions": ({**DEFS, **obj(o=BASE)}, [{"o": {"a": 1}}], [{"o": {"a": 1, "b": 1}}]),
    "a reference": ({**DEFS, **BASE}, [{"a": 1}], [{"a": 1, "b": 1}]),
    "one of allOf": ({**DEFS, "allOf": [BASE], "default": {"z": 1}}, [{"a": 1}], [{"a": 1, "b": 1}]),
    "allOf": ({"allOf": [A, B]}, [{"a": 1, "b": 1}, {"b": 1}], [{"c": 1}, {"a": 1, "c": 1}, {"a": "x"}]),
    "allOf of references": ({**DEFS, "allOf": [BASE, B]}, [{"a": 1, "b": 1}], [{"b": 1}, {"a": 1, "c": 1}]),
    "beside a reference": ({**DEFS, **BASE, "properties": {"b": INT}}, [{"a": 1, "b": 1}], [{"a": 1, "c": 1}]),
    "required beside one": ({**DEFS, **BASE, "required": ["b"]}, [{"a": 1, "b": 1}], [{"a": 1}]),
    "both ways": ({**DEFS, **obj(one=BASE, two={"allOf": [BASE, B]})},
                  [{"one": {"a": 1}, "two": {"a": 1, "b": 1}}], [{"one": {"a": 1, "b": 1}}, {"two": {"a": 1, "c": 1}}]),
    "elsewhere": ({"$ref": "#/components/schemas/a", "components": {"schemas": {
        "a": obj(o={"$ref": "#/components/schemas/b"}), "b": A}}},
                  [{"o": {"a": 1}}], [{"o": {"b": 1}}, {"b": 1}]),
    "in a default": ({"$ref": "#/default", "default": A}, [{"a": 1}], [{"b": 1}]),
    "by an anchor": ({"$defs": {"x": {**A, "$anchor": "a"}}, "$ref": "#a"}, [{"a": 1}], [{"b": 1}]),
    "a name that is taken": ({"$defs": {"new-0": obj("c", c=INT), **DEFS["$defs"]},
                              **obj(o={"allOf": [BASE, B]}, p={"$ref": "#/$defs/new-0"})},
                             [{"o": {"a": 1}, "p": {"c": 1}}], [{"p": {"a": 1}}]),
    "of itself": ({"allOf": [obj(next={"$ref": "#"}), B]}, [{"next": {"b": 1}}, {"next": {"next": {}}}],
                  [{"next": {"c": 1}}, {"c": 1}]),
    "one open in allOf": ({"allOf": [{**A, "additionalProperties": True}, B]}, [{"a": 1, "b": 1, "c": 1}],
                          [{"a": "x"}]),
    "anyOf": ({"anyOf": [A, B, {"type": "null"}]}, [{"a": 1}, {"b": 1}, None], [{"a": 1, "b": 1}, {"c": 1}]),
    "beside anyOf": ({**obj("k", k=INT), "anyOf": [A, B]}, [{"k": 1, "a": 1}, {"k": 1, "b": 1}],
                     [{"k": 1, "a": 1, "b": 1}, {"k": 1, "c": 1}, {"a": 1}]),
    "required in anyOf": ({**obj(a=INT, b=INT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
                          [{"a": 1}, {"b": 1}], [{}, {"a": 1, "c": 1}]),
    "oneOf by a key": ({"oneOf": [obj("a", a=INT), obj("b", b=INT)]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}]),
    "oneOf by a value": ({"oneOf": KINDS, "discriminator": {"propertyName": "kind"}},
                         [{"kind": "x", "x": 1}, {"kind": "y"}], [{"kind": "x", "y": 1}, {"kind": "x", "z": 1}]),
    "oneOf by a type": ({"oneOf": [A, {"type": "null"}]}, [{"a": 1}, None], [{"b": 1}]),
    "patterns": ({**A, "patternProperties": {"^x": INT}}, [{"a": 1, "xy": 1}], [{"b": 1}, {"xy": "z"}]),
    "required alone": (obj("a", "b", a=INT), [{"a": 1, "b": [1]}], [{"a": 1}, {"a": 1, "b": 1, "c": 1}]),
    "more than are named": ({**obj("a", a=INT), "minProperties": 2}, [{"a": 1, "b": 1}], [{"a": 1}]),
    "const": ({"properties": {"a": INT}, "const": {"a": 1, "b": 2}}, [{"a": 1, "b": 2}], [{"a": 1}]),
    "enum of objects": (obj(o={"enum": [{"properties": {"a": 1}}]}), [{"o": {"properties": {"a": 1}}}], []),
    "keys that are keywords": (obj("properties", properties=INT, default=A, enum=B),
                               [{"properties": 1, "default": {"a": 1}, "enum": {"b": 1}}],
                               [{"properties": 1, "default": {"b": 1}}, {"properties": 1, "x": 1}]),
}


@pytest.mark.parametrize("name", CASES)
def test_keys_that_objects_have(name: str) -> None:
    schema, taken, refused = CASES[name]
    before = json.dumps(schema)
    for value in taken:
        jsonschema.validate(value, schema)
        assert takes(schema, value), value
    assert not [value for value in refused if takes(schema, value)]
    assert json.dumps(schema) == before


def test_what_looks_like_a_schema_and_is_none_stays_as_it_is() -> None:
    like = {"properties": {"a": {}}}
    for key in ("const", "enum", "x-other", "not"):
        assert closed({key: like, "type": "object"}) == {key: like, "type": "object"}
    assert closed({"default": like, "title": "a", "properties": {"title": {"description": "b"}}}) == {
        "properties": {"title": {}}, "additionalProperties": False}


def test_what_is_no_schema_is_for_the_compiler_to_refuse() -> None:
    keywords = ["properties", "required", "allOf", "anyOf", "oneOf", "$ref", "$defs", "items", "additionalProperties",
                "patternProperties", "minProperties", "dependentRequired", "dependentSchemas", "const", "enum", "type",
                "then"]
    for key in keywords:
        for value in (None, 5, "x", [5, None], {"x": 5}, [[{}]], {"x": [{}]}, -1e308):
            for schema in ({key: value}, {**A, "required": ["b"], key: value}, {"allOf": [{key: value}, A]},
                           {"oneOf": [{key: value}, A]}, {"anyOf": [{key: value}], **A}):
                assert isinstance(closed(schema), dict)


def test_one_of_several_that_a_closed_one_would_not_tell_apart_stays_open() -> None:
    """A key alone would be valid for the first one, too, so that a reply might be valid for both.

    And so would both keys, where what stands beside names one that the other schema then may have.
    """
    for schema in ({"oneOf": [A, obj("b", b=INT)]}, {**A, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}):
        with pytest.raises(GrammarError, match="oneOf"):
            takes(schema, {"b": 1})


def some_schemas() -> st.SearchStrategy[Any]:
    """Schemas within others, held together in all ways, with keys that they require and don't name."""
    return st.recursive(st.sampled_from([*LEAVES, {"$ref": "#/$defs/base"}]), _within, max_leaves=8)


def _within(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from("ab")
    object_ = st.fixed_dictionaries({"properties": st.dictionaries(keys, inner, max_size=2)}, optional={
        "type": st.just("object"), "required": st.lists(keys, max_size=2, unique=True)})
    several = st.lists(st.one_of(inner, object_), min_size=1, max_size=2)
    more = st.sampled_from(["allOf", "anyOf"]).flatmap(lambda key: several.map(lambda found: {key: found}))
    return st.one_of(object_, more, st.builds(lambda a, b: {**a, **b}, object_, more))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(schema=some_schemas(), seed=st.integers(0, 1 << 32))
def test_a_reply_is_valid_for_the_schema_as_it_was(schema: Any, seed: int) -> None:
    whole = {**schema, "$defs": {"base": obj("a", a=INT)}}
    try:
        tokens = walk(BYTES.constraint(Grammar.json_schema(whole)), BYTES.tokenizer, Random(seed), 200)
    except GrammarError:  # one that nothing is valid for
        return
    if tokens is not None:
        jsonschema.validate(json.loads(text_of(BYTES.tokenizer, tokens)), whole)


def test_of_many_references_that_hold_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each definition is held to all that follow: that many are looked at, and no more."""
    named, looked = closed_schema._named, 0

    def counted(schema: Any) -> list[str]:
        nonlocal looked
        looked += 1
        return named(schema)

    monkeypatch.setattr(closed_schema, "_named", counted)
    many = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, obj(**{f"k{i}": INT})]} for i in range(100)}
    found = closed({"$ref": "#/$defs/d0", "$defs": {**many, "d100": A}})
    assert found["$defs"]["d90"]["properties"].keys() == {"a", *(f"k{i}" for i in range(90, 100))}
    assert looked <= 2 * 100**2
