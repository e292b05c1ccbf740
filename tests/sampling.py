"""Parameters of which a default run takes some; the rest are slow tests, which `pytest -m ''` runs too.

`some` and `slow` tell it of single values; `@pytest.mark.few(n)` keeps n of all the cases of a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def some(values: Iterable[Any], n: int) -> list[Any]:
    """All values as parameters; `n` of them, evenly spread, run by default."""
    found: Sequence[Any] = list(values)
    return [value if kept else slow(value) for value, kept in zip(found, spread(len(found), n), strict=True)]


def spread(count: int, n: int) -> list[bool]:
    """Which of `count` are `n` that are evenly spread."""
    kept = {round(i * (count - 1) / max(n - 1, 1)) for i in range(min(n, count))}
    return [i in kept for i in range(count)]


def slow(value: Any) -> Any:
    """A value, or a tuple of several, as a parameter of a slow test."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
