"""The report of a quantization as text."""

from __future__ import annotations

import sys
from collections import Counter
from math import prod

from octavo.cli.columns import print_columns
from octavo.cli.plain import printable
from octavo.quantizers.job.report import Report, TensorRow
from octavo.quantizers.job.source import FLOATS
from octavo.sizes import size


def show(report: Report) -> None:
    """Print a row for each tensor, and what all come to."""
    headings = ("tensor", "shape", "from", "to", "size", "relative error")
    print_columns(headings, map(_cells, report.rows), ("size", "relative error"))
    for scaled in report.scaled:
        if scaled.setting is not None:
            gain = f"{scaled.before:.3g} -> {scaled.after:.3g}"
            print(f"{printable(scaled.fold)}: {scaled.how} with {scaled.setting:.3g}, mean square error {gain}")
    for given in report.inputs:
        cut = f"{given.cut_off:,} of {given.values:,} values cut off"
        how = f"scale {given.scale:.4g}, {cut}" if given.used else "a scale for each token"
        how += "" if given.scheme == report.preset else f", {given.scheme}"
        gain = f"{given.before:.3%} -> {given.after:.3%}, of tokens {given.dynamic:.3%}"
        names = printable(", ".join(given.names))
        print(f"{names}: inputs up to {given.largest:.4g}, {how}, relative error {gain}")
    if any(row.weighted and row.before is None for row in report.rows):
        print("* weighted by importance")
    if any(row.before is not None for row in report.rows):
        print("^ of what products give over the calibration text, after the encoder's alone")
    if report.memory is not None and report.disk is not None and report.seconds is not None:
        takes = f"{size(report.memory)} of memory, {size(report.disk)} of disk, about {report.seconds:,.0f} s"
        print(f"the method takes {takes}")
    what = "would be" if report.dry_run else "is"
    kind, layout = (report.preset, "") if report.layout is None else (_types(report), f" of {report.layout}")
    print(
        f"{printable(report.target)} {what} {kind}: {size(report.nbytes)}, from"
        f" {size(report.source_bytes)}{layout}; {report.bits_per_weight:.2f} bits per weight"
    )

    if report.nbytes >= report.source_bytes:
        print(
            f"octavo: that is no smaller than {printable(report.source)}: the preset saves nothing here",
            file=sys.stderr,
        )


def _types(report: Report) -> str:
    """The types of a report's matrices, that of the most values first, and how many quantized ones are exact."""
    values: Counter[str] = Counter()
    for row in report.rows:
        values[row.type] += prod(row.shape) if len(row.shape) > 1 else 0
    quantized = [row for row in report.rows if row.source_type not in FLOATS]
    exact = sum(bool(row.exact) for row in quantized)
    types = ", ".join(kind for kind, count in values.most_common() if count)
    return f"{types} ({exact} of {len(quantized)} quantized tensors exactly)"


def _cells(row: TensorRow) -> tuple[str, ...]:
    shape = " x ".join(str(d) for d in row.shape)
    kind = row.type if row.type != row.source_type else ""
    error = "" if row.error is None else f"{row.error:.3%}{'*' if row.weighted else ''}"
    error = error if row.before is None else f"{row.before:.3%} -> {row.error:.3%}^"
    error = "exact" if row.exact else error
    error = error if row.how is None else f"{error} {row.how}"
    return printable(row.name), shape, row.source_type, kind, size(row.nbytes), error
