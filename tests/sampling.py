"""Parameters of which a default run takes some; the rest are slow tests, which `pytest -m ''` runs too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def some(values: Iterable[Any], n: int) -> list[Any]:
    """All values as parameters; `n` of them, evenly spread, run by default."""
    found: Sequence[Any] = list(values)
    quick = {round(i * (len(found) - 1) / max(n - 1, 1)) for i in range(min(n, len(found)))}
    return [value if i in quick else slow(value) for i, value in enumerate(found)]


def slow(value: Any) -> Any:
    """A value, or a tuple of several, as a parameter of a slow test."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
