"""Sizes as people read them."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """Bytes as people read them: 15.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"
