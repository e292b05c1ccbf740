"""Reports of `octavo inspect` as text."""

from __future__ import annotations

from typing import Any

from octavo.cli.columns import print_columns
from octavo.cli.inspect.facts import lines
from octavo.cli.plain import printable
from octavo.sizes import size

MORE = "--metadata, --tensors, --scales TENSOR, --graph and --check show more."


def show(report: dict[str, Any]) -> None:
    """Print what people look for in a model, and a row for each type of its tensors."""
    print(report["facts"]["name"])
    bpw = report["bits_per_weight"]
    shown = {
        "file": report["path"] + (f" and {len(report['files']) - 1} more" if len(report["files"]) > 1 else ""),
        **lines(report["facts"]),
        "size": f"{size(report['file_bytes'])}, of which {size(report['bytes'])} in {report['tensor_count']} tensors"
        + (f", {bpw:.2f} bits per weight" if bpw else ""),
        "layout": f"GGUF version {report['version']}" if report["version"] else "safetensors",
    }
    if report.get("quantized_as"):
        shown["quantized as"] = report["quantized_as"]
    if report.get("cache_scales"):
        shown["cache scales"] = f"{report['cache_scales']}, for 8 bits"
    show_facts(shown)
    print()
    numbers = ("tensors", "parameters", "size", "share", "bits/weight")
    rows = [
        (row["type"], str(row["tensors"]), f"{row['parameters']:,}", size(row["bytes"]),
         f"{row['bytes'] / report['bytes']:.1%}", f"{row['bits_per_weight']:.4g}")
        for row in report["types"]
    ]
    print_columns(("type", *numbers), rows, numbers)
    if kernels := report.get("kernels"):  # that multiply by each matrix on the GPU, by numbers of tokens
        tokens = [f"{n} token{'s' * (n > 1)}" for n in kernels[0]["kernels"]]
        print()
        print_columns(("matrix", *tokens), [
            (f"{row['format']} {row['n']:,} x {row['k']:,}", *row["kernels"].values()) for row in kernels
        ])
    print(f"\n{MORE}")


def show_facts(facts: dict[str, Any]) -> None:
    """Print a line for each fact."""
    for key, value in facts.items():
        print(f"{key:<14} {printable(value)}")


def show_parts(metadata: dict[str, Any] | None, tensors: list[dict[str, Any]] | None) -> None:
    """Print the key-value pairs and a row for each tensor, those of them that are given."""
    if metadata is not None:
        print_columns(("metadata", "value"), [(printable(key), _as_text(value)) for key, value in metadata.items()])
    if tensors is not None:
        offsets = ["offset"] if all(row["offset"] is not None for row in tensors) else []
        cells = [
            (printable(row["name"]), row["type"], " x ".join(str(d) for d in row["shape"]), size(row["bytes"]),
             *[f"{row[name]:,}" for name in offsets])
            for row in tensors
        ]
        print_columns(("tensor", "type", "shape", "size", *offsets), cells, ("size", "offset"))


def _as_text(value: Any, most: int = 120) -> str:
    if isinstance(value, dict):
        first = ", ".join(_as_text(v, 16) for v in value["first"])
        return f"{value['length']:,} values: {first}, ..."
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
