"""Which formats stand for others: those whose kernels are specialised alike are one class of layout."""

from __future__ import annotations

from typing import Any

from octavo.bench.cases import WEIGHTS
from octavo.formats import by_name


def layout_class(name: str) -> tuple[Any, ...]:
    """What kernels are specialised on for a format."""
    fmt = by_name(name)
    return (fmt.bits, fmt.group, fmt.super > fmt.group, fmt.has_min, fmt.has_zero, fmt.table is not None,
            fmt.codebook is not None, fmt.base3, fmt.number is not None)


FIRST = {name for i, name in enumerate(WEIGHTS) if layout_class(name) not in map(layout_class, WEIGHTS[:i])}
"""The first format of each class, which tests run by default: so a row that is added is run, too."""
