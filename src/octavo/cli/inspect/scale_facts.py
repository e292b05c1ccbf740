"""`octavo inspect MODEL --scales TENSOR`: the scales and minima of a tensor, in numbers and as a picture."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.cli.columns import print_columns
from octavo.cli.plain import printable
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.formats import QTensor
    from octavo.formats.spec import AnyArray, BlockFormat
    from octavo.io.gguf import GGUFFile

BINS = 48
PERCENTILES = (1, 50, 99)
BARS = " ▁▂▃▄▅▆▇█"
PART = 1 << 24
"""Values that are unpacked at a time."""

WHAT = {
    "d": "scale of {super} values", "sc": "scale of {group} values, in units of d", "dmin": "minimum of {super} values",
    "m": "minimum of {group} values, in units of dmin", "scale": "d * sc", "minimum": "dmin * m",
}


def scales(file: GGUFFile, name: str) -> dict[str, Any]:
    """What `--json` has: the tensor, how its values are made, and a row for each of its scales and minima.

    Raises UsageError for a tensor that is not there.
    """
    if name not in file.tensors:
        near = get_close_matches(name, file.tensors, 3, 0.4) or list(file.tensors)[:3]
        raise UsageError(
            f"no tensor {name!r} in {file.path} (allowed: {', '.join(map(printable, near))}, or others of --tensors)"
        )
    tensor = file.tensor(name)
    fmt = tensor.format
    report: dict[str, Any] = {
        "tensor": name, "type": fmt.name, "shape": list(tensor.shape), "super": fmt.super, "group": fmt.group,
        "value": "the number as it is stored", "parts": [],
    }
    if fmt.number is not None:
        return report
    found = _planes(tensor)
    report["value"] = _formula(fmt, found)
    report["parts"] = [_row(part, _what(part, fmt), values) for part, values in found.items()]
    return report


def _planes(tensor: QTensor) -> dict[str, AnyArray]:
    """d, sc, dmin and m where the format has them, and of two levels their products."""
    from octavo.formats import QTensor, unpack

    stored, k = tensor.stored(), tensor.shape[-1]
    rows = tensor.size // k if k else 0
    parts: dict[str, list[AnyArray]] = {}
    step = max(1, PART // max(k, 1))
    for start in range(0, rows, step):
        data = stored.rows(slice(start, min(start + step, rows)))
        planes = unpack(QTensor(tensor.format, (len(data), k), data, tensor.name))
        found = {name: getattr(planes, name) for name in ("d", "sc", "dmin", "m")}
        for level, scale, of in (("scale", "d", "sc"), ("minimum", "dmin", "m")):
            one, two = found[scale], found[of]
            if one is not None and two is not None:
                wide = np.repeat(one, two.shape[-1] // one.shape[-1], axis=-1)
                found[level] = wide * two.astype(np.float32)
        for name, values in found.items():
            if values is not None:
                parts.setdefault(name, []).append(values.reshape(-1))
    return {name: np.concatenate(values) for name, values in parts.items()}


def _formula(fmt: BlockFormat, found: dict[str, AnyArray]) -> str:
    scale = "d * sc" if "sc" in found else "d"
    if fmt.has_zero:
        return f"{scale} * (code - m)"
    minimum = " - dmin * m" if "m" in found else " - dmin" if "dmin" in found else ""
    return f"{scale} * code{minimum}"


def _what(part: str, fmt: BlockFormat) -> str:
    if part == "m" and fmt.has_zero:
        return f"zero point of {fmt.group} values"
    return WHAT[part].format(super=fmt.super, group=fmt.group)


def _row(name: str, what: str, values: AnyArray) -> dict[str, Any]:
    """Numbers of a part, and how many lie where between its least and its greatest; of the finite ones."""
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    row: dict[str, Any] = {
        "name": name, "what": what, "type": values.dtype.name, "count": len(wide), "zeros": int((wide == 0).sum()),
        "not_finite": len(wide) - len(finite),
    }
    if not len(finite):
        return row | {"least": None, "greatest": None, "mean": None, "percentiles": {}, "histogram": []}
    at = {f"{p}%": float(v) for p, v in zip(PERCENTILES, np.percentile(finite, PERCENTILES), strict=True)}
    counts, _ = np.histogram(finite, BINS)
    ends = {"least": float(finite.min()), "greatest": float(finite.max()), "mean": float(finite.mean())}
    return row | ends | {"percentiles": at, "histogram": counts.tolist()}


def show(report: dict[str, Any]) -> None:
    """A table of the parts, and a picture of each."""
    shape = " x ".join(map(str, report["shape"]))
    print(f"{printable(report['tensor'])}: {report['type']}, {shape}; a value is {report['value']}")
    if not report["parts"]:
        print("A tensor of plain numbers has no scales.")
        return
    numbers = ("count", "least", *(f"{p}%" for p in PERCENTILES), "greatest", "mean", "zeros")
    cells = [
        (r["name"], r["what"], f"{r['count']:,}", *map(_number, (r["least"], *r["percentiles"].values(), r["greatest"],
         r["mean"])), f"{r['zeros']:,}")
        for r in report["parts"] if r["least"] is not None
    ]
    print_columns(("", "", *numbers), cells, numbers)
    for row in report["parts"]:
        if row["not_finite"]:
            print(f"{row['name']}: {row['not_finite']:,} of {row['count']:,} are NaN or Inf")
        if row["histogram"]:
            most = max(row["histogram"])
            bars = "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in row["histogram"])
            print(f"\n{row['name']:>8} {bars}\n{'':>8} {_number(row['least']):<{BINS // 2}}"
                  f"{_number(row['greatest']):>{BINS - BINS // 2}}")


def _number(value: float) -> str:
    return f"{value:.4g}"
