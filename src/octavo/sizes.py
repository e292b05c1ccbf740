"""Sizes and counts as people read them."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """Bytes as people read them: 15.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def short_count(n: int) -> str:
    """A number of parameters in a few digits: 7.5M, 596M, 8.0B."""
    for size, letter in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")):
        if n >= size:
            return f"{n / size:.{1 if n < 100 * size else 0}f}{letter}"
    return str(n)
