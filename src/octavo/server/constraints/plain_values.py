"""Values that calls have as they are, texts without quotation marks: what a schema allows, and what is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from octavo.runtime.grammar.json_schema import joined, without_reference
from octavo.server.tool_calls.literals import literal

Schema = Mapping[str, Any]

MOST_SCHEMAS = 64
"""That are looked at for one value: references may come together as often as two to the power of their number."""
WORDS: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}
"""How Python writes values that JSON has other words for; some templates write them so in earlier calls."""
NULLS = ("null", "None")
"""How null is written."""
_READ = {**dict.fromkeys(NULLS), **WORDS}
"""Words that are read as such beside texts, too."""
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list, "object": dict,
    "null": NoneType,
}


@dataclass(slots=True)
class Plain:
    """What a value may be: a text, valid for one of several schemas, or another value for one of others, or null.

    The schemas have no references, no `anyOf` and `oneOf`, and one type or the values that are all they allow.
    """

    texts: list[Schema] = field(default_factory=list)
    others: list[Schema] = field(default_factory=list)
    null: bool = False

    @property
    def options(self) -> list[str]:
        """Texts that are listed."""
        return [option for one in self.texts for option in listed(one) or ()]

    def allows(self, value: bool | None) -> bool:
        """Whether a value may be this."""
        return self.null if value is None else any(_fits(value, one) for one in self.others)

    def add(self, schema: Schema) -> bool:
        """Take a schema; False for one that tells no type."""
        options, kind = listed(schema), schema.get("type")
        if options is not None:
            self._add_options(schema, [one for one in options if kind is None or _is_of_type(one, kind)])
            return True
        for one in kind if isinstance(kind, list) else [kind]:
            if one == "null":
                self.null = True
            elif isinstance(one, str):
                (self.texts if one == "string" else self.others).append({**schema, "type": one})
            else:
                return False
        return True

    def _add_options(self, schema: Schema, options: Sequence[Any]) -> None:
        rest = {key: value for key, value in schema.items() if key not in ("enum", "const", "type")}
        self.null = self.null or None in options
        if texts := [one for one in options if isinstance(one, str)]:
            self.texts.append({**rest, "type": "string", "enum": texts})
        if others := [one for one in options if one is not None and not isinstance(one, str)]:
            self.others.append({**rest, "enum": others})


def listed(schema: Schema) -> Sequence[Any] | None:
    """The values that are all that a schema allows; None where it doesn't list them."""
    found = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return found if isinstance(found, list) else None


def plain(schema: object, root: Schema) -> Plain | None:
    """What values a schema within `root` allows; None where that can't be told."""
    found, left = Plain(), [schema]
    for _ in range(MOST_SCHEMAS):
        if not left:
            return found
        one = left.pop()
        one = without_reference(one, root) if isinstance(one, Mapping) else {}
        several = _several(one)
        if several is None or "$ref" in one or not (several or found.add(one)):
            return None
        left += several
    return None


def _several(schema: Schema) -> list[dict[str, Any]] | None:
    """The schemas of which a value has to be valid for one, with what is said beside them; [] for a single one.

    None where they contradict that, or a value has to be valid for several.
    """
    key = next((key for key in ("anyOf", "oneOf", "allOf") if key in schema), None)
    if key is None:
        return []
    choices, beside = schema[key], {name: value for name, value in schema.items() if name != key}
    if not isinstance(choices, list) or not choices or (key == "allOf" and len(choices) > 1):
        return None
    found = [joined(one, beside) for one in choices]
    return [one for one in found if one is not None] if None not in found else None


def value_of(text: str, schema: object, root: Schema | None = None) -> str:
    """A value as JSON: a text where the schema, which is a part of `root`, allows nothing else, else what it says.

    It is a text, too, where it says nothing, or, beside texts, nothing that the schema allows. Python's words
    are read where the schema tells that it allows what they mean, and its lists and dictionaries, which no JSON is,
    where it allows lists or objects.
    """
    found = plain(schema, root or {})
    allowed = found if found is not None and found.texts else None
    word = text if allowed is not None else text.strip()
    if found is not None and word in _READ and word not in found.options and found.allows(_READ[word]):
        return json.dumps(_READ[word])
    if allowed is None or (allowed.others and text not in allowed.options):
        try:
            value = json.loads(text, parse_constant=_no_constant)
            read = json.dumps(value, allow_nan=False)  # 1e999 is not a number in JSON
        except (ValueError, RecursionError):
            return _literal(text, found.others if found is not None else ())
        if allowed is None or isinstance(value, str) or any(_fits(value, one) for one in allowed.others):
            return read
    return json.dumps(text)


def _literal(text: str, schemas: Sequence[Schema]) -> str:
    """A list or an object, as Python writes it, where one of the schemas is of such, else a text; as JSON."""
    if any(one.get("type") in ("array", "object") for one in schemas):
        with suppress(ValueError, TypeError, RecursionError):
            value = literal(text.strip())
            if isinstance(value, list | dict) and any(_fits(value, one) for one in schemas):
                return json.dumps(value, allow_nan=False)
    return json.dumps(text)


def _fits(value: Any, schema: Schema) -> bool:
    """Whether a value is one that a schema lists, or of its type."""
    options = listed(schema)
    if options is not None:
        return json.dumps(value) in map(json.dumps, options)
    return _is_of_type(value, schema.get("type"))


def _is_of_type(value: Any, kind: object) -> bool:
    """Whether a value is of a type of JSON schemas, or one of several."""
    if isinstance(kind, list):
        return any(_is_of_type(value, one) for one in kind)
    types = _KINDS.get(kind, ()) if isinstance(kind, str) else ()
    return isinstance(value, types) and (kind == "boolean" or not isinstance(value, bool))


def _no_constant(name: str) -> None:
    raise ValueError(name)
