"""Tables of text: columns side by side, the same on a terminal and in a pipe, no line wrapped or padded at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.cli.plain import printable


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


def kernel_name(name: str, most: int = 60) -> str:
    """A kernel's name as C++ has it, without its result and its arguments, and cut if those of templates are long."""
    name, depth = name.removeprefix("void ").replace("(anonymous namespace)::", ""), 0
    for i, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and not depth:
            name = name[:i]
            break
    return name if len(name) <= most else f"{name[: most - 3]}..."


def show_counters(rows: Iterable[Mapping[str, Any]], *names: str) -> None:
    """The table of a GPU's counters: what names a row, and `bench.counters.measures` of it."""
    numbers = ("launches", "us", "DRAM MB", "of f16", "L1 MB", "of DRAM", "occupancy", "tensor", "integer", "matrix")
    cells = []
    for row in rows:
        named = {**row, "kernel": kernel_name(row["kernel"])}
        of_f16 = f"{row['dram_bytes'] / row['f16_bytes']:.2f}" if row.get("f16_bytes") else ""
        shares = ("" if row[n] is None else f"{row[n]:.1%}" for n in ("dram_share", "occupancy", "tensor_share"))
        cells.append((
            *(printable(named[name]) for name in names), str(row["launches"]), f"{row['seconds'] * 1e6:.1f}",
            f"{row['dram_bytes'] / 1e6:.2f}", of_f16, f"{row['l1_bytes'] / 1e6:.2f}", *shares,
            f"{row['integer']:.1%}", f"{row['matrix']:.1%}",
        ))
    print_columns((*names, *numbers), cells, numbers)
