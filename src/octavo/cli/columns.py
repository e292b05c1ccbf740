"""Tables of text: columns side by side, the same on a terminal and in a pipe, no line wrapped or padded at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> list[str]:
    """The lines of a table; columns whose heading is in `numbers` are aligned to the right."""
    table = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(headings))]
    right = [heading in numbers for heading in headings]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]


def print_columns(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table."""
    print("\n".join(columns(headings, rows, numbers)))
