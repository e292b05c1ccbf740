"""Reports of `octavo inspect` as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from octavo.cli.plain import printable


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """Print a report of `octavo.cli.inspect`."""
    console = console or Console(highlight=False, soft_wrap=True)
    name = report["metadata"].get("general.name")
    console.print(f"[bold]{escape(printable(name or report['path']))}[/bold]")
    bpw = report["bits_per_weight"]
    facts = {
        "file": report["path"] + (f" and {len(report['files']) - 1} more" if len(report["files"]) > 1 else ""),
        **({"GGUF version": report["version"]} if report["version"] else {"layout": "safetensors"}),
        "parameters": f"{report['parameters']:,} in {report['tensor_count']} tensors",
        "size": f"{size(report['bytes'])}" + (f", {bpw:.2f} bits per weight" if bpw else ""),
    }
    for key, value in facts.items():
        console.print(f"{key:<13} {escape(printable(value))}")
    console.print()
    console.print(_metadata(report["metadata"]))
    console.print(_types(report))
    if "tensors" in report:
        console.print(_tensors(report["tensors"]))
    for line in report.get("graph", ()):
        console.print(escape(line), overflow="ignore", no_wrap=True)
    if report.get("non_finite") == {}:
        console.print("No NaN or Inf in any tensor.")


def size(nbytes: float) -> str:
    """Bytes as people read them: 15.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def _table(*headings: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return table


def _metadata(metadata: dict[str, Any]) -> Table:
    table = _table("metadata", "value")
    for key, value in metadata.items():
        table.add_row(escape(printable(key)), escape(_shown(value)))
    return table


def _shown(value: Any, most: int = 120) -> str:
    if isinstance(value, dict):
        first = ", ".join(_shown(v, 16) for v in value["first"])
        return f"{value['length']:,} values: {first}, ..."
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _types(report: dict[str, Any]) -> Table:
    table = _table("type", "tensors", "parameters", "size", "share", "bits/weight",
                   numbers=("tensors", "parameters", "size", "share", "bits/weight"))  # fmt: skip
    for row in report["types"]:
        share = f"{row['bytes'] / report['bytes']:.1%}"
        table.add_row(row["type"], str(row["tensors"]), f"{row['parameters']:,}", size(row["bytes"]), share,
                      f"{row['bits_per_weight']:.4g}")  # fmt: skip
    return table


def _tensors(rows: list[dict[str, Any]]) -> Table:
    offsets = all(row["offset"] is not None for row in rows)
    table = _table("tensor", "type", "shape", "size", *(["offset"] if offsets else []), numbers=("size", "offset"))
    for row in rows:
        shape = " x ".join(str(d) for d in row["shape"])
        offset = [f"{row['offset']:,}"] if offsets else []
        table.add_row(escape(printable(row["name"])), row["type"], shape, size(row["bytes"]), *offset)
    return table
