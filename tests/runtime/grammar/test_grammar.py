"""Grammars: whatever the model, a reply is a text of its grammar; and what is not a grammar is refused."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import octavo
from octavo.errors import GrammarError, UsageError
from octavo.runtime import Grammar, Model
from octavo.runtime.grammar.grammar import Grammars
from octavo.text import Tokenizer
from tests.limits import processor_time
from tests.runtime import tiny
from tests.runtime.grammar.grammar_walk import allowed_tokens, text_of, walk
from tests.text.vocabularies import BYTE_TO_CHAR, CONTROL, NORMAL, byte_level, spm

BYTES = Grammars(Tokenizer.from_metadata(tiny.TOKENIZER))


def replies(grammar: Grammar, grammars: Grammars = BYTES, count: int = 8) -> list[str]:
    """Texts of replies that came to an end."""
    tokenizer, found = grammars.tokenizer, []
    for seed in range(count):
        tokens = walk(grammars.constraint(grammar), tokenizer, Random(seed))
        if tokens is not None:
            found.append(text_of(tokenizer, tokens))
    assert found
    return found


DATE = re.compile(r"[0-9]{4}-[0-9]{2}")
GRAMMARS = {
    "regex": (Grammar.regex(r"\d{4}-\d{2}"), DATE),
    "lark": (Grammar.lark('start: year "-" /[0-9]{2}/\nyear: /[0-9]{4}/'), DATE),
    "gbnf": (Grammar.gbnf("root ::= year \"-\" [0-9] [0-9]\nyear ::= [0-9] [0-9] [0-9] [0-9]"), DATE),
    "choice": (Grammar.choice(["a", ' "b"\n', "<|im_end|>", "ö"]), re.compile(r'a| "b"\n|<\|im_end\|>|ö')),
    "empty": (Grammar.regex("a?"), re.compile("a?")),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_reply_is_a_text_of_its_grammar(name: str) -> None:
    grammar, pattern = GRAMMARS[name]
    assert all(pattern.fullmatch(text) for text in replies(grammar))


def test_any_object() -> None:
    assert all(isinstance(json.loads(text), dict) for text in replies(Grammar.json_object()))


def test_a_reply_ends_only_where_its_grammar_does() -> None:
    constraint, tokenizer = BYTES.constraint(Grammar.regex("a{2,3}")), BYTES.tokenizer
    a = tokenizer.encode("a")[0]
    for allowed in ({a}, {a}, {a, tiny.END}):
        assert not constraint.stopped
        assert allowed_tokens(constraint, tokenizer, extra=2) == allowed
        constraint.accept(a)
    assert constraint.stopped


def test_a_text_that_the_tokenizer_would_change_is_made_of_its_tokens_all_the_same() -> None:
    """One that composes letters (NFC) encodes an e and its accent as one letter, which the grammar does not have."""
    e, first, second = (BYTE_TO_CHAR[byte] for byte in "e\u0301".encode())
    merges = [f"{e} {first}", f"{e}{first} {second}"]
    metadata = byte_level(merges, special={"<|im_end|>": CONTROL}, eos_token_id=258, **{"normalizer.nfc": True})
    tokenizer = Tokenizer.from_metadata(metadata)
    text = "xe\u0301y"
    assert tokenizer.decode(tokenizer.encode(text)) == "xéy"
    constraint = Grammars(tokenizer).constraint(Grammar.choice([text]))
    forced = constraint.forced()
    assert b"".join(map(tokenizer.token_bytes, forced)) == text.encode()
    assert len(forced) == 3
    assert tokenizer.token_bytes(forced[1]) == "e\u0301".encode()


def test_what_is_not_allowed_is_not_accepted() -> None:
    constraint, tokenizer = BYTES.constraint(Grammar.regex("ab")), BYTES.tokenizer
    with pytest.raises(GrammarError, match="token 98 is not what the grammar allows"):
        constraint.accept(98)
    with pytest.raises(GrammarError, match="can't be followed"):
        allowed_tokens(constraint, tokenizer)
    with pytest.raises(GrammarError):
        constraint.accept(tokenizer.encode("a")[0])


def names() -> st.SearchStrategy[str]:
    return st.text('ab_ é"\\<', min_size=1, max_size=4)


LEAVES = [
    {"type": "boolean"}, {"type": "null"}, {"type": "integer"}, {"type": "number"}, {"const": {"a": [1.5, "é"]}},
    {"type": "string", "pattern": "^[a-c]+$"}, {"type": "string", "format": "date"},
]


def schemas() -> st.SearchStrategy[Any]:
    """Schemas that a random model soon comes to the end of."""
    leaf = st.one_of(
        st.sampled_from(LEAVES),
        st.builds(_integer, st.integers(-99, 99), st.integers(0, 30)),
        st.builds(_string, st.integers(0, 3), st.integers(0, 4)),
        st.builds(
            lambda values: {"enum": values},
            st.lists(st.one_of(names(), st.integers(-(1 << 53), 1 << 53)), min_size=1, max_size=3),
        ),
    )
    return st.recursive(leaf, _compound, max_leaves=6)


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(_object, st.dictionaries(names(), inner, max_size=3), st.randoms()),
        st.builds(_array, inner, st.integers(0, 2), st.integers(0, 2)),
        st.builds(lambda schemas: {"anyOf": schemas}, several),
    )


def _integer(low: int, more: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": low + more}


def _string(low: int, more: int) -> dict[str, Any]:
    return {"type": "string", "minLength": low, "maxLength": low + more}


def _object(properties: dict[str, Any], rng: Random) -> dict[str, Any]:
    required = [name for name in properties if rng.random() < 0.6]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _array(items: Any, least: int, more: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + more}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(schema=schemas(), seed=st.integers(0, 1 << 32))
def test_a_reply_is_valid_for_its_schema(schema: Any, seed: int) -> None:
    tokens = walk(BYTES.constraint(Grammar.json_schema(schema)), BYTES.tokenizer, Random(seed))
    if tokens is not None:
        jsonschema.validate(json.loads(text_of(BYTES.tokenizer, tokens)), schema)


LIST = {"$ref": "#/$defs/list", "$defs": {"list": {"type": "object", "properties": {
    "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}}, "required": ["next"]}}}
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


def test_schemas_that_refer_to_themselves() -> None:
    for text in replies(Grammar.json_schema(LIST)):
        jsonschema.validate(json.loads(text), LIST)
    for schema in (ENDLESS, {"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}):
        with pytest.raises(GrammarError, match="no finite value"):
            BYTES.constraint(Grammar.json_schema(schema))


def test_references_to_one_of_several() -> None:
    """By its place in a list, and with the escapes that JSON pointers have."""
    item = {"type": "array", "items": {"$ref": "#/anyOf/1"}, "minItems": 2, "maxItems": 2}
    schema = {"anyOf": [item, {"type": "boolean"}]}
    for text in replies(Grammar.json_schema(schema)):
        jsonschema.validate(json.loads(text), schema)
    for own in ("#/anyOf/0", "#/$defs/a~1b"):
        endless = {"type": "array", "items": {"$ref": own}, "minItems": 1}
        with pytest.raises(GrammarError, match="no finite value"):
            BYTES.constraint(Grammar.json_schema({"anyOf": [endless], "$defs": {"a/b": endless}}))


BAD = {
    "no JSON": (lambda: Grammar.json_schema("{"), "not valid JSON"),
    "no number": (lambda: Grammar.json_schema('{"const": NaN}'), "NaN"),
    "no schema": (lambda: Grammar.json_schema("[1]"), "an object"),
    "deep": (lambda: Grammar.json_schema('{"not":' * 5000 + "{}" + "}" * 5000), "levels deep"),
    "quite deep": (lambda: Grammar.json_schema('{"not":' * 80 + "{}" + "}" * 80), "levels deep"),
    "huge": (lambda: Grammar.json_schema({"enum": list(range(10**6))}), "characters"),
    "wide": (lambda: Grammar.json_schema({"properties": {str(i): {} for i in range(2000)}}), "2000 keys"),
    "type": (lambda: Grammar.json_schema({"type": "strin"}), "strin"),
    "keyword": (lambda: Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    "lenient": (lambda: Grammar.json_schema({"uniqueItems": True, "x-guidance": {"lenient": True}}), "uniqueItems"),
    "elsewhere": (lambda: Grammar.json_schema({"$ref": "file:///etc/passwd"}), "not fetch"),
    "nothing": (lambda: Grammar.json_schema({"enum": []}), "is empty"),
    "false": (lambda: Grammar.json_schema(False), "an object, or true"),
    "pattern": (lambda: Grammar.json_schema({"type": "string", "pattern": "(a"}), "unclosed"),
    "regex": (lambda: Grammar.regex("(a"), "unclosed"),
    "look": (lambda: Grammar.regex("(?=a)b"), "look-around"),
    "long": (lambda: Grammar.regex("a" * 300_000), "300000 characters"),
    "unknown": (lambda: Grammar.lark("start: foo"), "foo"),
    "lark": (lambda: Grammar.lark("start: " + "(" * 5000), "deeply nested"),
    "gbnf": (lambda: Grammar.gbnf("root ::= foo"), "foo"),
    "gbnf too": (lambda: Grammar.gbnf("root ::= " + "(" * 5000), "GBNF"),
    "alternatives": (lambda: Grammar.gbnf("root ::= " + " | ".join(f'"a{i}"' for i in range(16_000))), "16001 items"),
    "loop": (lambda: Grammar.gbnf("root ::= root"), "grammar"),
    "no choice": (lambda: Grammar.choice([]), "1 to 1000 strings"),
    "one text": (lambda: Grammar.choice("red"), "1 to 1000 strings"),
}


def test_as_many_optional_properties_as_a_schema_may_have() -> None:
    schema = {"type": "object", "properties": {f"k{i}": {"type": "boolean"} for i in range(1000)}}
    constraint = BYTES.constraint(Grammar.json_schema(schema))
    for token in BYTES.tokenizer.encode('{"k0":true,"k999":false}', add_special=False):
        assert token in allowed_tokens(constraint, BYTES.tokenizer)
        constraint.accept(token)
    assert constraint.stopped


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_grammar(name: str) -> None:
    make, message = BAD[name]
    with processor_time(3), pytest.raises(GrammarError, match=re.escape(message)):
        BYTES.constraint(make())


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", ".*" * 300, "(((a*)*)*)*b", "x{0,5000}(y{0,5000}z){0,1000}"])
def test_patterns_that_take_long_elsewhere(pattern: str) -> None:
    with processor_time(3), suppress(GrammarError):
        constraint = BYTES.constraint(Grammar.regex(pattern))
        for _ in range(3):
            constraint.accept(min(allowed_tokens(constraint, BYTES.tokenizer)))


WORDS = ["▁the", "▁", "the", "▁{", "{", '"', '":', "}", "é", "日", "\n"]
FAMILIES = {
    "byte-level": byte_level(["t h", "th e", "Ġ the"], special={"<|im_end|>": CONTROL}, eos_token_id=259),
    "SentencePiece": spm({w: -1.0 * i for i, w in enumerate(WORDS)}),
    "SentencePiece without a space": spm({w: -1.0 * i for i, w in enumerate(WORDS)}, add_space_prefix=False),
    "an end that the file calls text": byte_level([], special={"</s>": NORMAL}, eos_token_id=256),
    "Unigram": {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": ["<pad>", "</s>", "<unk>", *WORDS, "x", "▁x", "t", "h", "e", "1"],
        "tokenizer.ggml.token_type": [3, 3, 2, *[1] * (len(WORDS) + 6)],
        "tokenizer.ggml.scores": [0.0] * 3 + [-1.0] * (len(WORDS) + 6),
        "tokenizer.ggml.add_space_prefix": True,
    },
    "WordPiece": {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁the", "▁{", "▁}", "{", "}", '"', *"the1▁"],
        "tokenizer.ggml.token_type": [3, 2, 3, 3, *[1] * 11],
        "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.seperator_token_id": 3, "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.mask_token_id": 1,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_each_family_of_tokenizers(family: str) -> None:
    grammars = Grammars(Tokenizer.from_metadata(FAMILIES[family]))
    assert set(replies(Grammar.regex("the"), grammars)) == {"the"}
    assert set(replies(Grammar.regex(" the"), grammars)) == {" the"}
    assert all(re.fullmatch('[{}]"?1*', text) for text in replies(Grammar.regex('[{}]"?1{0,2}'), grammars, 20))


def test_letters_of_several_bytes() -> None:
    for family in ("byte-level", "SentencePiece"):
        grammars = Grammars(Tokenizer.from_metadata(FAMILIES[family]))
        assert set(replies(Grammar.choice(["日é", "</s>ü", "<|im_end|>"]), grammars, 30)) == {
            "日é",
            "</s>ü",
            "<|im_end|>",
        }


SCHEMA = _object({"n": {"type": "integer"}, "ok": {"type": "boolean"}}, Random(3))
ANY = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def test_a_model_follows_it(random_path: str) -> None:
    """With random weights, at a high temperature, in several replies at once and in one."""
    with octavo.load(random_path, device="reference", n_ctx=256, max_sequences=4) as model:
        grammar = Grammar.json_schema(SCHEMA)
        done = model.generate_many(["a", "b", "c", "d"], grammar=grammar, max_tokens=200, seed=1, **ANY)
        for reply in done:
            assert reply.finish_reason in ("stop", "length")
            if reply.finish_reason == "stop":
                jsonschema.validate(json.loads(reply.text), SCHEMA)
        assert any(reply.finish_reason == "stop" for reply in done)
        assert model.generate("x", grammar=Grammar.choice(["yes", "no"]), temperature=2.0).text in ("yes", "no")


def test_what_generate_takes(alphabet: Model) -> None:
    assert alphabet.generate("x", grammar=Grammar.regex("[b-e]+"), max_tokens=3, temperature=0).text == "bcd"
    with pytest.raises(UsageError, match=r"an octavo\.Grammar"):
        alphabet.generate("x", grammar="a")  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="unclosed"):
        alphabet.generate_many(["x"], grammar=Grammar.regex("("))
