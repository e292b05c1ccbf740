"""JSON schemas: which are too large to be compiled, and which allow no value of finite length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any
from urllib.parse import unquote

from octavo.errors import GrammarError

MOST_CHARACTERS = 100_000
MOST_PROPERTIES = 1000
"""The most properties of an object: the time of compiling grows with their square."""
MOST_DEPTH = 60

NOTES = frozenset({"$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples"})
"""Keywords that hold a value to nothing."""

Needs = list[list[Any]]
"""Schemas that a value depends on: of each list at least one has to have a value of finite length."""


def read_schema(given: str | Mapping[str, Any] | bool) -> dict[str, Any]:
    """A schema, as text or as data. Raises GrammarError for what is none or is too large."""
    try:
        text = given if isinstance(given, str) else json.dumps(given, allow_nan=False)
        if len(text) > MOST_CHARACTERS:
            raise GrammarError(f"the JSON schema has {len(text)} characters (allowed: up to {MOST_CHARACTERS})")
        schema = json.loads(text, parse_constant=_no_number, parse_int=whole_number)
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"it is nested more than {MOST_DEPTH} levels deep" if isinstance(error, RecursionError) else str(error)
        raise GrammarError(f"the JSON schema is not valid JSON: {reason}") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError(f"the JSON schema is {text[:40]} (allowed: an object, or true)")
    if (fault := not_plain(schema)) is not None:
        raise GrammarError(f"the JSON schema is not valid JSON: {shown_fault(*fault)}")
    _require_small(schema, 0)
    return schema


def require_finite(schema: dict[str, Any]) -> None:
    """Raise GrammarError for a schema that no value of finite length is valid for."""
    if not _has_finite_value(schema):
        raise GrammarError("the JSON schema has no finite value: it needs itself, without an end")


def not_plain(value: Any) -> tuple[tuple[str | int, ...], str] | None:
    """The first place in data with what no JSON that is sent on can have, and what that is; None where all is plain.

    That is half of a surrogate pair, also in a key, a number that is not finite, and a whole one of over 64 bits.
    """
    left: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while left:
        place, one = left.pop()
        if isinstance(one, dict | list):
            inner = one.items() if isinstance(one, dict) else enumerate(one)
            if isinstance(one, dict) and not all(map(_is_text, one)):
                return place, "a key has a lone surrogate, which is not valid text"
            left += reversed([((*place, key), part) for key, part in inner])
        elif isinstance(one, str) and not _is_text(one):
            return place, "a lone surrogate is not valid text"
        elif isinstance(one, float) and not isfinite(one):
            return place, "the number is too large"
        elif isinstance(one, int) and not -(1 << 63) <= one < 1 << 64:
            return place, "the number has more than 64 bits"
    return None


def shown_fault(place: Sequence[str | int], words: str) -> str:
    """What is wrong at a place in data, in one line."""
    shown = ".".join(json.dumps(str(part), ensure_ascii=False)[1:-1][:40] for part in place[:12])
    return f"{shown}: {words}" if shown else words


def whole_number(digits: str) -> int:
    """A number from JSON; of one that is too large only that it is."""
    return int(digits[:40])


def _is_text(text: object) -> bool:
    if not isinstance(text, str) or text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _require_small(value: Any, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise GrammarError(f"the JSON schema is nested more than {MOST_DEPTH} levels deep")
    if isinstance(value, dict):
        if len(value) > MOST_PROPERTIES:
            raise GrammarError(f"the JSON schema has an object of {len(value)} keys (allowed: {MOST_PROPERTIES})")
        for one in value.values():
            _require_small(one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            _require_small(one, depth + 1)


def _has_finite_value(root: dict[str, Any]) -> bool:
    """Whether a value of finite length may be valid, as far as references tell: the least fixed point of `_needs`.

    A schema has one once as many of its needs are met as it has. Each is met once, by the first of its schemas that has
    one, so that the time grows with the text.
    """
    unmet, needed_by, open_ = dict[int, int](), dict[int, list[list[int]]](), [root]
    while open_:
        schema = open_.pop()
        if id(schema) in unmet:
            continue
        needs = [any_of for any_of in _needs(schema, root) if all(isinstance(one, dict) for one in any_of)]
        unmet[id(schema)] = len(needs)
        for any_of in needs:
            need = [id(schema)]  # empty once it is met
            for one in any_of:
                needed_by.setdefault(id(one), []).append(need)
            open_ += any_of
    finite = [key for key, n in unmet.items() if not n]
    while finite:
        for need in needed_by.pop(finite.pop(), ()):
            if need:
                key = need.pop()
                unmet[key] -= 1
                if not unmet[key]:
                    finite.append(key)
    return not unmet[id(root)]


def _needs(schema: dict[str, Any], root: Any) -> Iterator[list[Any]]:
    """The schemas that a value of this one depends on. What is not a schema is for the compiler to refuse."""
    if "enum" in schema or "const" in schema:
        return
    if isinstance(ref := schema.get("$ref"), str):
        yield [referred(ref, root)]
    for name in ("anyOf", "oneOf"):
        if isinstance(several := schema.get(name), list) and several:
            yield several
    if isinstance(several := schema.get("allOf"), list):
        yield from ([one] for one in several)
    kind = schema.get("type")
    if kind in ("object", ["object"]):
        required, properties = schema.get("required"), schema.get("properties")
        others = schema.get("additionalProperties", True)
        for name in required if isinstance(required, list) else []:
            yield [properties.get(name, others) if isinstance(properties, dict) and isinstance(name, str) else others]
    elif kind in ("array", ["array"]):
        first, least = schema.get("prefixItems"), schema.get("minItems", 0)
        first = first if isinstance(first, list) else []
        if isinstance(least, int) and least > 0:
            yield from ([one] for one in first[:least])
            if least > len(first):
                yield [schema.get("items", True)]


def referred(ref: str, root: Any) -> Any:
    """What a reference within the schema refers to; True, which any value is valid for, where that is not known."""
    if (path := path_of(ref)) is None:
        return True
    found = root
    for key in path:
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return True
    return found


def path_of(ref: str) -> list[str] | None:
    """The keys that a reference goes through, from the root; None for one by another name."""
    place, *parts = unquote(ref).split("/")
    return [part.replace("~1", "/").replace("~0", "~") for part in parts] if place == "#" else None


def without_reference(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """A schema that is a reference to a part of `root` with that part's keywords instead; others as they are.

    Without a `root` it is a reference to a part of itself. One whose reference leads nowhere or back to itself, or that
    has other words for what that part says, stays as it is.
    """
    found, seen = schema, list[Any]()
    while isinstance(ref := found.get("$ref"), str):
        target = referred(ref, schema if root is None else root)
        merged = joined(target, {key: one for key, one in found.items() if key != "$ref"})
        if merged is None or any(target is one for one in seen):
            return schema
        found = merged
        seen.append(target)
    return found


def joined(target: Any, beside: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a reference refers to, or one of several schemas, with the keywords beside it, None if they contradict."""
    if not isinstance(target, dict):
        return None
    out = dict(target)
    for key, value in beside.items():
        there = out.get(key, value)
        if key in NOTES or there == value:
            out[key] = value
        elif key == "required" and isinstance(there, list) and isinstance(value, list):
            out[key] = [*there, *(one for one in value if one not in there)]
        elif key == "properties" and isinstance(there, dict) and isinstance(value, dict) and not there.keys() & value:
            out[key] = {**there, **value}
        else:
            return None
    return out
