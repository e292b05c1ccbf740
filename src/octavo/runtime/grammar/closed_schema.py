"""JSON schemas whose objects have the keys that they name, and others only where they say that there may be some.

`properties` without `additionalProperties` allows any other key. Who writes that, as pydantic does, means the keys that
are listed: it counts as `additionalProperties: false`. Schemas that one value is held to together, as those of `allOf`
and what stands beside a `$ref`, allow the keys that any of them names.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Any

from octavo.runtime.grammar.json_schema import path_of, referred
from octavo.runtime.grammar.schema_values import bounded, never_null, require_exact

Schema = Mapping[str, Any]

MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
INNER = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties"})
"""Keywords with schemas of other values, by name or not. What others have, as `default` and `enum`, stays as it is."""
PARTS = MAPS | INNER | {"allOf", "anyOf", "oneOf"}
WORDS = frozenset({"title", "description", "default", "examples", "$comment"})
SAYS = frozenset({"properties", "required", "patternProperties", "additionalProperties", "minProperties"})
"""Keywords that one value's keys depend on."""
SETTLES = frozenset({"additionalProperties", "unevaluatedProperties", "const", "enum"})
"""Those that tell of keys which `properties` does not name."""
MOST_BRANCHES = 256
"""The most schemas of a `oneOf` that are compared, each with each."""


def closed(schema: Schema) -> dict[str, Any]:
    """A schema of the same values, but that objects have no keys that it does not name, where it names some.

    Titles, descriptions and the like, which hold a value to nothing, are left out. It has new definitions at its
    root where a part is referred to as one of several that hold together, or lies where no definitions do, as those of
    OpenAPI's `components`.
    """
    return _Closing(schema).whole()


class _Closing:
    """made  new definitions by what they are of: a reference, and whether it holds together with others"""

    def __init__(self, root: Schema) -> None:
        self._root, self._targets = root, dict[str, Any]()
        self._made = dict[tuple[str, bool], str]()
        taken = _object(root, "$defs")
        self._names_left = (name for n in count() if (name := f"new-{n}") not in taken)

    def whole(self) -> dict[str, Any]:
        found: dict[str, Any] = self._closed(self._root, ())
        made = dict[tuple[str, bool], Any]()
        while left := self._made.keys() - made.keys():
            for ref, held in left:
                target = self._referred(ref)
                made[ref, held] = self._left_open(target) if held else self._closed(target, ())
        if made:
            found["$defs"] = {**_object(found, "$defs"), **{self._made[key]: one for key, one in made.items()}}
        return found

    def _closed(self, schema: Any, others: Sequence[Schema]) -> Any:
        """A schema with the keys that it names, and those of others that the same value is held to."""
        if not isinstance(schema, Mapping):
            if schema is not True or not others:
                return schema
            schema = {}
        choices = [key for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
        if len(choices) == 1:
            return self._closed_choice(schema, choices[0], others)
        parts = _list(schema, "allOf")
        if not others and not SAYS & schema.keys() and len(parts) + ("$ref" in schema) < 2:
            alone = {"allOf": [self._closed(one, ()) for one in parts]} if parts else {}
            return {**self._inner(schema), **alone}
        found = self._left_open(schema)
        names = self._names(schema, [*others, *self._parts(schema)])
        if names is not None:
            own = _object(found, "properties")
            found["properties"] = {**own, **dict.fromkeys((name for name in names if name not in own), True)}
            found["additionalProperties"] = False
        return found

    def _closed_choice(self, schema: Schema, key: str, others: Sequence[Schema]) -> dict[str, Any]:
        """The same where a value is valid for one of several schemas: each has the keys of what stands beside, too."""
        beside = {name: value for name, value in schema.items() if name != key}
        held = [*others, *(one for one in self._parts(beside) if SAYS & one.keys())]
        if key == "oneOf" and not self._are_apart(schema[key], {name for one in held for name in _named(one)}):
            return dict(self._left_open(schema))
        rest: dict[str, Any] = self._left_open(beside) if held else self._inner(beside)
        return {**rest, key: [self._closed(one, held) for one in schema[key]]}

    def _left_open(self, schema: Any) -> Any:
        """A schema that allows other keys as it does, but closed ones for the values within."""
        if not isinstance(schema, Mapping):
            return schema
        found = self._inner(schema)
        for key in ("allOf", "anyOf", "oneOf"):
            if isinstance(several := schema.get(key), list):
                found[key] = [self._left_open(one) for one in several]
        ref = schema.get("$ref")
        if isinstance(ref, str) and isinstance(self._referred(ref), Mapping):
            found["$ref"] = self._defined(ref, held=True)
        return found

    def _defined(self, ref: str, *, held: bool) -> str:
        """A reference to the new definition of what `ref` refers to."""
        if (ref, held) not in self._made:
            self._made[ref, held] = next(self._names_left)
        return f"#/$defs/{self._made[ref, held]}"

    def _inner(self, schema: Schema) -> dict[str, Any]:
        """A schema with closed ones for the values within, and without words that hold a value to nothing."""
        found = bounded({key: value for key, value in schema.items() if key not in WORDS})
        for key, value in found.items():
            if key in MAPS and isinstance(value, Mapping):
                named = never_null if key == "patternProperties" else str
                found[key] = {named(name): self._closed(one, ()) for name, one in value.items()}
            elif key in INNER:
                several = isinstance(value, list)
                found[key] = [self._closed(one, ()) for one in value] if several else self._closed(value, ())
            elif key == "pattern" and isinstance(value, str):
                found[key] = never_null(value)
            elif key in ("const", "enum"):
                require_exact(key, value)
            elif key == "$ref" and isinstance(value, str) and self._is_elsewhere(value):
                found[key] = self._defined(value, held=False)
        return found

    def _is_elsewhere(self, ref: str) -> bool:
        """Whether a reference is to a schema that is none of the definitions, nor a part of others."""
        path = deque(path_of(ref) or ())
        while path and path[0] in PARTS:
            by_name = path.popleft() in MAPS
            if path and (by_name or path[0].isdecimal()):
                path.popleft()
        return bool(path) and isinstance(self._referred(ref), Mapping)

    def _referred(self, ref: str) -> Any:
        if ref not in self._targets:
            self._targets[ref] = referred(ref, self._root)
        return self._targets[ref]

    def _parts(self, schema: Any) -> Iterator[Schema]:
        """A schema, and all that its values are held to, or may be."""
        left, seen = deque([schema]), set[int]()
        while left:
            one = left.popleft()
            if not isinstance(one, Mapping) or id(one) in seen:
                continue
            seen.add(id(one))
            yield one
            for key in ("allOf", "anyOf", "oneOf"):
                left.extend(_list(one, key))
            left.extend([one.get("then"), one.get("else"), *_object(one, "dependentSchemas").values()])
            if isinstance(ref := one.get("$ref"), str):
                left.append(self._referred(ref))

    @staticmethod
    def _names(schema: Schema, parts: Sequence[Schema]) -> list[str] | None:
        """The keys that parts name, of which the schema is one; None where others are allowed, or nothing is said."""
        found = [one["properties"] for one in parts if "properties" in one]
        if (
            not found
            or not all(isinstance(one, Mapping) for one in found)
            or any(SETTLES & one.keys() for one in parts)
        ):
            return None
        names = dict.fromkeys(name for one in parts for name in _named(one))
        least = max((n for one in parts if isinstance(n := one.get("minProperties"), int)), default=0)
        by_pattern = [one for one in parts if "patternProperties" in one]
        if any(one is not schema for one in by_pattern) or (least > len(names) and not by_pattern):
            return None
        return [*names]

    def _are_apart(self, several: Sequence[Any], beside: Set[str]) -> bool:
        """Whether a value that is valid for one of several closed schemas is not for another as it stands.

        beside  keys that are named for all of them
        """
        if len(several) > MOST_BRANCHES:
            return False
        found = [_Branch.of([*self._parts(one)], beside) for one in several]
        return all(a is b or a.excludes(b) for a in found for b in found)


@dataclass(frozen=True, slots=True)
class _Branch:
    """What tells values of a schema from those of others: types, keys, and the values that required ones may have."""

    types: Set[str]
    names: Set[str]
    required: Mapping[str, Set[str]]

    @classmethod
    def of(cls, parts: Sequence[Schema], beside: Set[str]) -> _Branch:
        required = {name: frozenset[str]() for one in parts for name in _texts(one.get("required"))}
        for one in parts:
            required |= {name: _values(part) for name, part in _object(one, "properties").items() if name in required}
        types = next((_types(one["type"]) for one in parts if "type" in one), frozenset[str]())
        return cls(types, {*beside, *(name for one in parts for name in _named(one))}, required)

    def excludes(self, other: _Branch) -> bool:
        """Whether values of the other one, if it is closed, are none of this one."""
        if self.types and other.types and not self.types & other.types:
            return True
        theirs = other.required
        return any(
            name not in other.names or (values and theirs.get(name) and not values & theirs[name])
            for name, values in self.required.items()
        )


def _list(schema: Schema, key: str) -> list[Any]:
    return found if isinstance(found := schema.get(key), list) else []


def _object(schema: Schema, key: str) -> Mapping[str, Any]:
    return found if isinstance(found := schema.get(key), Mapping) else {}


def _texts(given: Any) -> list[str]:
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []


def _named(schema: Schema) -> list[str]:
    """The keys that a schema names."""
    lists = (schema.get("required"), *_object(schema, "dependentRequired").values())
    return [*_object(schema, "properties"), *(name for one in lists for name in _texts(one))]


def _values(schema: Any) -> frozenset[str]:
    """The values that are all that a schema lists; none where it lists none."""
    found = schema.get("enum", [schema["const"]] if "const" in schema else ()) if isinstance(schema, Mapping) else ()
    return frozenset(map(json.dumps, found if isinstance(found, list) else ()))


def _types(given: Any) -> frozenset[str]:
    """Types by name; an integer is a number, too."""
    found = frozenset([given] if isinstance(given, str) else _texts(given))
    return found | {"integer"} if "number" in found else found
