"""The report of a quantization as text."""

from __future__ import annotations

from octavo.cli.columns import print_columns
from octavo.cli.facts import size
from octavo.cli.plain import printable
from octavo.quantizers.job.report import Report, TensorRow


def show(report: Report) -> None:
    """Print a row for each tensor, and what all come to."""
    headings = ("tensor", "shape", "from", "to", "size", "relative error")
    print_columns(headings, map(_cells, report.rows), ("size", "relative error"))
    if any(row.weighted for row in report.rows):
        print("* weighted by importance")
    what = "would be" if report.dry_run else "is"
    print(
        f"{printable(report.target)} {what} {report.preset}: {size(report.nbytes)}, from"
        f" {size(report.source_bytes)}; {report.bits_per_weight:.2f} bits per weight"
    )


def _cells(row: TensorRow) -> tuple[str, ...]:
    shape = " x ".join(str(d) for d in row.shape)
    kind = row.type if row.type != row.source_type else ""
    error = "" if row.error is None else f"{row.error:.3%}{'*' if row.weighted else ''}"
    return printable(row.name), shape, row.source_type, kind, size(row.nbytes), error
