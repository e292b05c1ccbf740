"""docs/gguf.md states the limits that the reader has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.io.gguf import ValueType, header_limits

PAGE = (Path(__file__).parents[2] / "docs" / "gguf.md").read_text()


def row(label: str) -> list[int]:
    line = next(x for x in PAGE.splitlines() if x.startswith(f"| {label}"))
    return [int(n) for n in re.findall(r"\d+", line)]


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("metadata pairs", [header_limits.MAX_KEYS]),
        ("tensors, in a set together", [header_limits.MAX_TENSORS]),
        ("shards", [header_limits.MAX_SHARDS]),
        ("bytes of a key", [header_limits.MAX_KEY_BYTES, header_limits.MAX_NAME_BYTES]),
        ("bytes of a value", [header_limits.MAX_VALUE_BYTES]),
        ("strings in arrays", [header_limits.MAX_STRINGS, header_limits.MAX_INNER_ARRAYS]),
        ("depth of arrays", [header_limits.MAX_DEPTH]),
        ("dimensions, each 1 or more", [1, 1, header_limits.MAX_DIMS]),
        ("alignment", [header_limits.MIN_ALIGNMENT, header_limits.MAX_ALIGNMENT]),
    ],
)
def test_limits(label: str, values: list[int]) -> None:
    assert row(label) == values


def test_value_types() -> None:
    names = next(x for x in PAGE.splitlines() if x.startswith("| type | u8")).strip("| ").split(" | ")[1:]
    assert [n.upper() for n in names] == [t.name for t in sorted(ValueType)]
