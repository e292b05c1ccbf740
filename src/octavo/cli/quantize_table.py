"""The report of a quantization as a table for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from octavo.cli.plain import printable
from octavo.cli.tables import size
from octavo.quantizers.report import Report, TensorRow

WIDTH = 110
"""Columns of a report; where output is no terminal, 80 would fold it."""


def show(report: Report, console: Console | None = None) -> None:
    """Print a row for each tensor, and what all come to."""
    console = console or Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("tensor", "left"), ("shape", "left"), ("from", "left"), ("to", "left")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for heading in ("size", "relative error"):
        table.add_column(heading, justify="right")
    for row in report.rows:
        table.add_row(*_cells(row))
    console.print(table)
    if any(row.weighted for row in report.rows):
        console.print("* weighted by importance")
    what = "would be" if report.dry_run else "is"
    console.print(
        f"{escape(printable(report.target))} {what} {report.preset}: {size(report.nbytes)}, from"
        f" {size(report.source_bytes)}; {report.bits_per_weight:.2f} bits per weight"
    )


def _cells(row: TensorRow) -> list[str]:
    shape = " x ".join(str(d) for d in row.shape)
    kind = row.type if row.type != row.source_type else ""
    error = "" if row.error is None else f"{row.error:.3%}{'*' if row.weighted else ''}"
    return [escape(printable(row.name)), shape, row.source_type, kind, size(row.nbytes), error]
