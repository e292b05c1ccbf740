"""Replies have the values that a schema allows, where llguidance alone would give others."""

from __future__ import annotations

import json
from random import Random

import jsonschema
import pytest

from octavo.errors import GrammarError
from octavo.runtime import Grammar
from octavo.runtime.grammar.schema_values import never_null
from tests.runtime.grammar.grammar_walk import text_of, walk
from tests.runtime.grammar.test_closed_schema import BYTES, INT, obj, takes, takes_text

NUMBERS = ["-1.5", "-1", "-1.0", "-0.5", "-0", "-0.0", "0", "0.0", "1e-9", "0.25", "0.5", "1", "1.0", "1.25", "2", "10"]


@pytest.mark.parametrize("low", [1 << 53, (1 << 53) + 1, (1 << 60) + 1, -(1 << 53) - 1, -(1 << 63), -(1 << 63) + 1])
@pytest.mark.parametrize("high", [(1 << 60) + 999, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_bounds_that_no_double_holds(low: int, high: int) -> None:
    """A reply is within them, though they are moved to the next number that one holds."""
    schema = {**INT, "minimum": low, "maximum": high}
    for seed in range(3):
        assert (
            low
            <= int(
                text_of(
                    BYTES.tokenizer, walk(BYTES.constraint(Grammar.json_schema(schema)), BYTES.tokenizer, Random(seed))
                )
            )
            <= high
        )


@pytest.mark.parametrize("number", [(1 << 53) + 1, -(1 << 53) - 1, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1])
def test_a_value_is_not_another_number(number: int) -> None:
    """Where a reply would have the nearest double, or its grammar ends the process that compiles it."""
    for schema in (
        {"const": number},
        {"enum": ["a", number]},
        {"const": {"a": [number]}},
        obj("a", a={"const": number}),
    ):
        with pytest.raises(GrammarError, match=rf"(const|enum) of the JSON schema has {number} \(allowed: .* 2\*\*53"):
            BYTES.constraint(Grammar.json_schema(schema))
    assert takes({"const": 1 << 53}, 1 << 53)
    assert takes({"enum": [-(1 << 53), str(number)]}, str(number))


@pytest.mark.few(25)
@pytest.mark.parametrize("kind", ["number", "integer"])
@pytest.mark.parametrize("low", [-1, -0.5, 0, 0.25, 1])
@pytest.mark.parametrize("width", [0.25, 0.5, 1, 1.5, None])
def test_bounds_that_do_not_belong_to_what_they_bound(kind: str, low: float, width: float | None) -> None:
    high = {} if width is None else {"exclusiveMaximum": low + width}
    for schema in ({"type": kind, "exclusiveMinimum": low, **high},
                   {"type": kind, "exclusiveMaximum": -low, "minimum": -low - (width or 9)}):
        valid = jsonschema.Draft202012Validator(schema).is_valid
        try:
            assert all(valid(json.loads(text)) for text in NUMBERS if takes_text(schema, text)), schema
        except GrammarError:  # one that nothing is valid for
            assert not [text for text in NUMBERS if valid(json.loads(text))], schema


PATTERNS = ['^[^"]$', "^[^\\\\]$", '^[^<>:"/\\\\|?*]$', "^[^]a]$", '^[^-"]$', '^([^"a]|b)$', '^"[^"\\n]*"$']


@pytest.mark.few(4)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_negated_classes_of_patterns(pattern: str) -> None:
    """Replies may have what is not in the class, but for null characters."""
    for text in [*map(chr, range(1, 128)), '"a"', '"""']:
        wanted = jsonschema.Draft202012Validator({"pattern": pattern}).is_valid(text)
        for schema in ({"type": "string", "pattern": pattern}, {"allOf": [{"type": "string"}, {"pattern": pattern}]}):
            assert takes(schema, text) == wanted, text
        keys = {"type": "object", "patternProperties": {pattern: INT}, "additionalProperties": False}
        assert takes(keys, {text: 1}) == wanted, text


def test_what_is_no_negated_class_stays_as_it_is() -> None:
    for pattern in ("[a^]", r"\[^a]", r"[a\[^b]", "^$"):
        assert never_null(pattern) == pattern
    assert never_null(r"\\[^a][^]b][^-c]") == r"\\[^\x00a][^]\x00b][^\x00\-c]"
