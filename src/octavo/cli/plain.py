"""Values from files as output that is plain: JSON that every parser reads, text without control characters."""

from __future__ import annotations

import json
import math
import sys
from typing import Any


def to_json(value: Any) -> str:
    """`value` as one line of JSON; NaN and Inf, which JSON lacks, are the strings "nan", "inf" and "-inf".

    Characters that standard output can't show are escaped.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return json.dumps(_finite(value), ensure_ascii="utf" not in encoding.lower(), allow_nan=False)


def printable(value: Any) -> str:
    """`value` as text; a string with line ends or control characters, which could steer a terminal, is quoted."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def brief(value: Any, most: int = 8) -> Any:
    """Arrays cut to their first values, with how many there are."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return value
    first = [brief(v, most) for v in value[:most]]
    return first if len(value) <= most else {"length": len(value), "first": first}


def few(bad: dict[str, int], most: int = 5) -> str:
    """Tensors with this many values that are NaN or Inf, the first ones by name."""
    named = ", ".join(f"{printable(name)} ({count} values)" for name, count in list(bad.items())[:most])
    return named if len(bad) <= most else f"{named}, and {len(bad) - most} more"
