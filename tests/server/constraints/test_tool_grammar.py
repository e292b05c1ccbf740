"""Grammars of calls in each format: what a model that knows nothing writes under them is a call."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any, Literal

import jsonschema
import pytest

from octavo.runtime.grammar.grammar import Grammar
from octavo.runtime.output.thinking import MARKERS, Thinking
from octavo.runtime.scheduler.constraint import Constraint
from octavo.server.constraints.tool_choice import or_json, tools_grammar
from octavo.server.constraints.tool_parameters import ANYTHING, Tool
from octavo.server.generation.output_parser import OutputParser
from octavo.server.tool_calls.formats import FORMATS, GENERIC, ToolFormat
from octavo.server.tool_calls.tools import ToolUse
from octavo.text import Tokenizer
from tests.runtime.grammar.grammar_walk import allowed_tokens, grammars_of, walk
from tests.sampling import some
from tests.server.calls import KNOWN, PLAIN, called, read, require_valid
from tests.server.generation.test_output_parser import Result
from tests.text.vocabularies import CONTROL, USER_DEFINED, byte_level

THINK, SEED_THINK = MARKERS[0], MARKERS[4]
SPECIAL = dict.fromkeys(("<|im_end|>", "[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>"), CONTROL)
MARKED = Tokenizer.from_metadata(byte_level([], special=SPECIAL, eos_token_id=256))

IN_FORMATS = [
    *((form, PLAIN) for form in (*FORMATS, GENERIC)), *((form, MARKED) for form in FORMATS if form.opens[0] in SPECIAL),
]
OF_EACH_MARKER = [*IN_FORMATS[: len(FORMATS) + 1], *some(IN_FORMATS[len(FORMATS) + 1 :], 4)]
"""By default each format with markers of text, and a few with markers that are tokens."""


@pytest.mark.few(8)
@pytest.mark.parametrize(("form", "tokenizer"), OF_EACH_MARKER, ids=lambda p: getattr(p, "name", ""))
def test_a_reply_that_has_to_be_a_call_is_one(form: ToolFormat, tokenizer: Tokenizer) -> None:
    """In each format, by a model that knows nothing, with markers that are text or tokens."""
    grammars, use = grammars_of(tokenizer), ToolUse(form, KNOWN, "required")
    ended = 0
    for seed in range(12):
        grammar = use.grammar(tokenizer)
        assert grammar is not None
        tokens = walk(grammars.constraint(grammar), tokenizer, Random(seed), 450)
        if tokens is None:
            continue
        if (ended := ended + 1) > 4:
            break
        thinking = MARKERS[-1] if form.thinks[0] else None
        detail, found = OutputParser(tokenizer, (), thinking, use.parser(), use.call_id()), Result()
        found.take([*detail.push([t for t in tokens if t not in tokenizer.stop_ids]), *detail.finish()])
        require_valid(found.calls)
        assert found.content.strip() == ""
    assert ended > 3


@pytest.mark.few(8)
@pytest.mark.parametrize(("form", "tokenizer"), OF_EACH_MARKER, ids=lambda p: getattr(p, "name", ""))
def test_a_call_that_a_reply_opens_is_one(form: ToolFormat, tokenizer: Tokenizer) -> None:
    """Text before it is free, and so is text after it; control tokens are, too."""
    use, ended = ToolUse(form, KNOWN, "auto", several=False), 0
    grammar = use.grammar(tokenizer)
    for seed in range(12):
        constraint = grammars_of(tokenizer).constraint(grammar)
        begun = tokenizer.encode(f"Let me see: <tool {{1}}\n{form.opens[0]}", add_special=False)
        for token in begun:
            assert token in allowed_tokens(constraint, tokenizer)
            constraint.accept(token)
        rng, tokens = Random(seed), list(begun)
        while not (done := tokenizer.stop_ids <= allowed_tokens(constraint, tokenizer)) and len(tokens) < 450:
            tokens += step(constraint, tokenizer, rng)
        if not done:
            continue
        if (ended := ended + 1) > 4:
            break
        found = Result()
        detail = OutputParser(tokenizer, (), MARKERS[-1] if form.thinks[0] else None, use.parser(), use.call_id())
        found.take([*detail.push(tokens), *detail.finish()])
        require_valid(found.calls)
        assert form.thinks[0] or found.content == "Let me see: <tool {1}"
    assert ended > 3


NESTED = {
    "type": "object", "required": ["list", "inner", "choice"], "additionalProperties": False,
    "properties": {
        "list": {"type": "array", "items": {"type": "string", "maxLength": 4}},
        "inner": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "any": {}}},
        "choice": {"enum": ["a", 1, None]},
    },
}


def test_values_in_values_between_marks() -> None:
    """Lists and objects of Gemma 4 are held to their schemas."""
    (form,) = (form for form in FORMATS if form.mark)
    use, ended = ToolUse(form, [Tool("f", NESTED)], "required"), 0
    for seed in range(12):
        grammar = use.grammar(PLAIN)
        assert grammar is not None
        tokens = walk(grammars_of(PLAIN).constraint(grammar), PLAIN, Random(seed), 450)
        if tokens is not None:
            detail, found = OutputParser(PLAIN, (), None, use.parser(), use.call_id()), Result()
            found.take([*detail.push([t for t in tokens if t not in PLAIN.stop_ids]), *detail.finish()])
            assert found.calls
            for _, arguments in found.calls:
                jsonschema.validate(json.loads(arguments), NESTED)
            ended += 1
    assert ended > 3


CHOICES: list[Any] = [
    {"type": "string", "enum": ["C", "F"]}, {"type": "string", "const": "C"}, {"const": "C"}, {"enum": ["C", 1]},
    {"type": ["integer", "null"]}, {"type": "array", "maxItems": 0}, {"type": "object", "additionalProperties": False},
]


@pytest.mark.few(6)
@pytest.mark.parametrize("form", [*FORMATS, GENERIC], ids=lambda form: form.name)
def test_a_value_that_is_one_of_a_few(form: ToolFormat) -> None:
    """Texts have no quotation marks where a format writes texts without."""
    for one in CHOICES:
        if form.mark and "maxItems" in one:
            continue
        schema = {"properties": {"a": one}, "required": ["a"], "additionalProperties": False}
        _, arguments = called(form, Tool("f", schema, strict=True))
        jsonschema.validate(json.loads(arguments), schema)


def read_back(
    form: ToolFormat, schema: dict[str, Any], key: str, value: Any, choice: Literal["auto", "required"] = "required"
) -> Any:
    """Arguments of a call that a model writes as its format has it, under a grammar of the schema."""
    text = f"{form.mark}{value}{form.mark}" if form.mark and isinstance(value, str) else json.dumps(value)
    text = value if form.raw and isinstance(value, str) else text
    return read(
        form, schema, form.parameter.replace("KEY", key).replace("VALUE", text) or json.dumps({key: value}), choice
    )


@pytest.mark.parametrize("form", [*FORMATS, GENERIC], ids=lambda form: form.name)
def test_objects_in_calls_have_the_keys_that_are_named(form: ToolFormat) -> None:
    one = {"type": "object", "properties": {"b": {"type": "integer"}, "none": {"type": "object", "properties": {}}}}
    schema = {"type": "object", "properties": {"a": one}}

    def takes(key: str, value: Any) -> bool:
        text = json.dumps(value, separators=(",", ":"))
        text = text.replace('"', "") if form.mark else text
        arguments = form.parameter.replace("KEY", key).replace("VALUE", text) or json.dumps({key: value})
        try:
            return read(form, schema, arguments) == {key: value}
        except AssertionError:
            return False

    assert [takes("a", {"b": 1}), takes("a", {"none": {}}), takes("a", {})] == [True] * 3
    assert [takes("a", {"c": 1}), takes("a", {"none": {"b": 1}}), takes("c", {})] == [False] * 3


VALUES = ["a < b\nc", '<a href="x">\n</a>', "a<", "{x}[],: |> <|", " a ", "12", "x</parameter", ""]


@pytest.mark.few(6)
@pytest.mark.parametrize("form", some([*FORMATS, GENERIC], 4), ids=lambda form: form.name)
def test_texts_end_where_a_model_ends_them(form: ToolFormat) -> None:
    """A text may have what the tag after it begins with, and tags of other names."""
    for value in VALUES:
        for more in ({}, {"minLength": 1}, {"maxLength": 40}):
            if ("maxLength" in more and "<" in value) or ("minLength" in more and not value):
                continue
            schema = {"type": "object", "properties": {"a": {"type": "string", **more}}, "required": ["a"]}
            assert read_back(form, schema, "a", value) == {"a": value}
            assert read_back(form, schema, "a", value, "auto") == {"a": value}


def test_a_text_between_marks_that_are_tokens() -> None:
    (form,) = (form for form in FORMATS if form.mark)
    tokenizer = Tokenizer.from_metadata(byte_level([], special={**SPECIAL, form.mark: CONTROL}, eos_token_id=256))
    use = ToolUse(form, [Tool("f", {"properties": {"a": {"type": "string"}}, "required": ["a"]})], "required")
    for value in VALUES:
        constraint = grammars_of(tokenizer).constraint(use.grammar(tokenizer))
        begin, end = form.call.replace("NAME", "f").split("ARGUMENTS")
        for token in tokenizer.encode(f"{begin}a:{form.mark}{value}{form.mark}{end}", add_special=False):
            assert token in allowed_tokens(constraint, tokenizer)
            constraint.accept(token)


@pytest.mark.parametrize("form", [*FORMATS, GENERIC], ids=lambda form: form.name)
def test_parameters_of_which_nothing_is_said_are_any(form: ToolFormat) -> None:
    """Calls were held to have none, in formats whose arguments are not JSON."""
    for value in (1, *VALUES[:2]):
        if form.mark or form.raw or not isinstance(value, str):
            assert read_back(form, ANYTHING, "a", value) == {"a": value}


def step(constraint: Constraint, tokenizer: Tokenizer, rng: Random) -> list[int]:
    """A token that may come, rather one that closes something."""
    allowed = sorted(allowed_tokens(constraint, tokenizer) - tokenizer.stop_ids)
    soon = [i for i in allowed if tokenizer.token_bytes(i)[:1] in (b'"', b"}", b"]", b"<")]
    token = rng.choice(soon if soon and rng.random() < 0.5 else allowed)
    constraint.accept(token)
    return [token]


@pytest.mark.parametrize(("name", "begun"), [("llama3", '{"name": "weather"'), ("pythonic", "[weather(")])
def test_a_call_without_a_marker(name: str, begun: str) -> None:
    """It is one from where its name is known; a reply that only looks like it is text."""
    (form,) = (f for f in FORMATS if f.name == name)
    grammar = ToolUse(form, KNOWN, "auto").grammar(PLAIN)
    for text, free in ((begun, False), (begun[:5], True), (f"See {begun}", True), (begun.replace("wea", "x"), True)):
        constraint = grammars_of(PLAIN).constraint(grammar)
        for token in PLAIN.encode(text, add_special=False):
            constraint.accept(token)
        assert (PLAIN.stop_ids <= allowed_tokens(constraint, PLAIN)) == free


def test_calls_after_thinking() -> None:
    """What stands in thinking is held to nothing."""
    grammar = ToolUse(GENERIC, KNOWN, "auto").grammar(PLAIN)
    constraint = grammars_of(PLAIN).constraint(grammar, Thinking("<think>", "</think>", begun=True))
    for token in PLAIN.encode("<tool_call>x</think>\n<tool_call>", add_special=False):
        constraint.accept(token)
    assert {PLAIN.texts[i] for i in allowed_tokens(constraint, PLAIN)} == {"Ċ"}


_MARKERS = dict.fromkeys((text for one in (THINK, SEED_THINK) for text in (one.start, one.end)), USER_DEFINED)
THINKING = {
    name: Tokenizer.from_metadata(byte_level(merges, special={"<|im_end|>": CONTROL, **_MARKERS}, eos_token_id=eos))
    for name, merges, eos in (("bytes", [], 256), ("merged", ["Ċ Ċ"], 257))
}
AFTER_THINKING = {  # what templates of models that think write between thinking and a call, and after a closed block
    "hermes": (THINK, ["\n</think>\n\n", "</think>\n", "</think>"], ["\n\n", "\n", ""]),
    "xml": (THINK, ["\n</think>\n\n", "</think>\n", "</think>\n\n\n\n"], ["\n\n", " \n"]),
    "glm": (THINK, ["</think>\n", "</think>", "\n</think>\n\n"], ["\n", ""]),
    "seed_oss": (SEED_THINK, ["</seed:think>\n", "</seed:think>\n\n", "</seed:think>"], ["\n", ""]),
}


@pytest.mark.parametrize("tokenizer", THINKING.values(), ids=THINKING)
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", AFTER_THINKING)
def test_a_call_that_has_to_be_after_thinking(name: str, named: bool, tokenizer: Tokenizer) -> None:
    """Line ends may come before it."""
    (form,) = (form for form in FORMATS if form.name == name)
    thinking, ends, gaps = AFTER_THINKING[name]
    tool = Tool("f", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    use = ToolUse(form, [tool, Tool("now", {})], tool if named else "required")
    arguments = form.parameter.replace("KEY", "a").replace("VALUE", "1") or '{"a": 1}'
    call = form.call.replace("NAME", "f").replace("ARGUMENTS", arguments)
    replies = [(replace(thinking, begun=True), f"Hm.{end}{call}", "Hm.") for end in ends]
    replies += [(thinking, f"{thinking.start}Hm.{end}{call}", "Hm.") for end in ends]
    replies += [(replace(thinking, ended=True), f"{gap}{call}", "") for gap in gaps]
    for state, text, thought in replies:
        tokens = tokenizer.encode(text, add_special=False, parse_special=True)
        constraint = grammars_of(tokenizer).constraint(use.grammar(tokenizer), state)
        for i, token in enumerate(tokens):
            assert token in allowed_tokens(constraint, tokenizer), tokenizer.decode(tokens[: i + 1])
            constraint.accept(token)
        assert tokenizer.stop_ids <= allowed_tokens(constraint, tokenizer)
        detail, found = OutputParser(tokenizer, (), state, use.parser(), use.call_id()), Result()
        found.take([*detail.push(tokens), *detail.finish()])
        assert (found.reasoning, found.content, found.calls) == (thought, "", [("f", '{"a": 1}')])


def test_a_named_call_is_one_call() -> None:
    grammar = tools_grammar(
        GENERIC, [Tool("now", {"type": "object", "additionalProperties": False})], PLAIN, several=False
    )
    tokens = walk(grammars_of(PLAIN).constraint(grammar), PLAIN, Random(1))
    assert tokens is not None
    assert "".join(PLAIN.decode(tokens).split()) == '<tool_call>{"name":"now","arguments":{}}</tool_call>'


def test_calls_or_json() -> None:
    grammar = or_json(tools_grammar(GENERIC, KNOWN, PLAIN, several=True), Grammar.json_schema({"enum": ["x"]}))
    found = {walked[0] for i in range(20) if (walked := walk(grammars_of(PLAIN).constraint(grammar), PLAIN, Random(i)))}
    assert {PLAIN.texts[i] for i in found} == {'"', "<"}
