"""The report of a quantization as text."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from math import prod

from octavo.cli.columns import print_columns
from octavo.cli.plain import printable
from octavo.quantizers.job.job_report import Report, TensorRow
from octavo.quantizers.job.job_source import FLOATS
from octavo.quantizers.mix.presets import PRESETS
from octavo.sizes import size

BLOCK = re.compile(r"blk\.(\d+)\.")


def show(report: Report) -> None:
    """Print a row for the tensors of all blocks that were treated alike, and what all come to."""
    headings = ("tensor", "shape", "from", "to", "size", "relative error")
    print_columns(headings, map(_cells, _alike(report.rows)), ("size", "relative error"))
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
        print("^ relative error of the layer's outputs over the calibration text: rounded -> by the method")
    quantized = [row for row in report.rows if row.error is not None]
    if len({row.weighted for row in quantized}) == 1:
        total = sum(prod(row.shape) * row.error**2 for row in quantized if row.error is not None)
        total = (total / sum(prod(row.shape) for row in quantized)) ** 0.5
        tensors = "1 tensor" if len(quantized) == 1 else f"{len(quantized)} tensors"
        print(f"relative error of {tensors}: {total:.3%} (root mean square over their values)")
    what = "would be" if report.dry_run else "is"
    kind, layout = (_preset(report), "") if report.layout is None else (_types(report), f" of {report.layout}")
    print(
        f"{printable(report.target)} {what} {kind}: {size(report.nbytes)} of tensors, from"
        f" {size(report.source_bytes)}{layout}; {report.bits_per_weight:.2f} bits per weight"
    )
    if report.nbytes >= report.source_bytes and report.preset not in (*FLOATS, "COPY"):
        print(
            f"octavo: that is not smaller than {printable(report.source)}: the preset saves nothing here",
            file=sys.stderr,
        )


def _preset(report: Report) -> str:
    """The preset's name, with the types of quantized tensors where none of them is of the type that the name says."""
    base = next((preset.base for preset in PRESETS if preset.name == report.preset), None)
    types = {row.type: None for row in report.rows if row.type not in FLOATS}
    return report.preset if base is None or base in (*types, *FLOATS) else f"{report.preset} (as {', '.join(types)})"


def _types(report: Report) -> str:
    """The types of a report's matrices, that of the most values first, and how many quantized ones are exact."""
    values: Counter[str] = Counter()
    for row in report.rows:
        values[row.type] += prod(row.shape) if len(row.shape) > 1 else 0
    quantized = [row for row in report.rows if row.source_type not in FLOATS]
    exact = sum(bool(row.exact) for row in quantized)
    types = ", ".join(kind for kind, count in values.most_common() if count)
    return f"{types} ({exact} of {len(quantized)} quantized tensors exactly)"


def _alike(rows: Sequence[TensorRow]) -> list[list[TensorRow]]:
    """The tensors of all blocks with one name, shape, types and treatment, in the order of the first."""
    found: dict[object, list[TensorRow]] = {}
    for row in rows:
        name = BLOCK.sub("blk.", row.name, count=1)
        treated = row.error is None, row.weighted, row.exact, row.before is None, row.how
        found.setdefault((name, row.shape, row.source_type, row.type, *treated), []).append(row)
    return list(found.values())


def _name(rows: Sequence[TensorRow]) -> str:
    """The name of a tensor, or of those of several blocks: `blk.0-2,5.attn_v.weight`."""
    if len(rows) == 1:
        return rows[0].name
    runs: list[list[int]] = []
    for block in sorted(int(match[1]) for row in rows if (match := BLOCK.match(row.name))):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    blocks = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return BLOCK.sub(f"blk.{blocks}.", rows[0].name, count=1)


def _cells(rows: Sequence[TensorRow]) -> tuple[str, ...]:
    row = rows[0]
    shape = " x ".join(str(d) for d in row.shape)
    kind = row.type if row.type != row.source_type else ""
    after = _range([r.error for r in rows if r.error is not None])
    error = f"{after}*" if after and row.weighted else after
    error = error if row.before is None else f"{_range([r.before for r in rows if r.before is not None])} -> {after}^"
    error = "exact" if row.exact else error
    error = error if row.how is None else f"{error} {row.how}"
    return printable(_name(rows)), shape, row.source_type, kind, size(sum(r.nbytes for r in rows)), error


def _range(errors: Sequence[float]) -> str:
    """The least and the largest of relative errors; "" for none."""
    if not errors:
        return ""
    least, most = f"{min(errors):.3%}", f"{max(errors):.3%}"
    return least if least == most else f"{least} to {most}"
