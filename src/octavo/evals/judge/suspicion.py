"""Which of several files of a model look broken: by what they predict, by their weights, and by what they say of
themselves.

Rounding to a bit more leaves about a quarter of the divergence, whatever the format: KL * 4^bits is nearly the same for
plain 2 to 6 bits of a model, and methods change it by a factor of 3 or so. A file that is WORSE bits worse by it than
the others (whose weights alone are rounded, the engine's noise taken off), or has a tensor that is much further from
the base's than its others of that type, is told.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.evals.report.findings import some_rows
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers.job.job_source import FLOATS

WORSE = 1.25
"""Bits that a file is worth less than the median of those beside it, from where it is told."""
FAR = 3.0
"""Times the median error of tensors of its type, from where a tensor is told."""
LEAST_ERROR = 0.02
"""Relative error below which no tensor is told."""
FOLDED = 0.5
"""Median relative error of a file's tensors from which its weights are others than the base's: scaled, rotated, ..."""
MANY = 0.2
"""The same of the share of its norms that are others."""
LEAST_KL = 1e-9


def worth(kl: Sequence[float], bits: Sequence[float]) -> list[float | None]:
    """Bits a weight that each file is worth more than it has, against the median of all; None where one is alone.

    kl    mean divergences, above 0
    bits  a weight of the body
    """
    if len(kl) < 3:
        return [None] * len(kl)
    scores = [math.log(max(x, LEAST_KL)) / math.log(4) + b for x, b in zip(kl, bits, strict=True)]
    middle = statistics.median(scores)
    return [middle - score for score in scores]


def odd_settings(file: GGUFFile, base: GGUFFile) -> list[str]:
    """What the two say otherwise of what they compute, as text: "rope.base 10000.0, the base 100000.0"."""
    mine, theirs = (read_model(f).hparams for f in (file, base))
    if type(mine) is not type(theirs):
        return [f"architecture {mine.arch}, the base {theirs.arch}"]
    return _differences(mine, theirs)


def odd_tensors(file: GGUFFile, base: GGUFFile, most: int = 3) -> list[str]:
    """The `most` tensors that are furthest from the base's, beyond what their type explains, and how far.

    Rows are sampled. Files whose weights are not the base's (rotated, folded, in another order) have none.
    """
    errors: dict[str, dict[str, float]] = {}
    for name, info in file.tensors.items():
        if name not in base.tensors or base.tensors[name].shape != info.shape:
            continue
        kind = info.type_name if info.type_name not in FLOATS else "floats"
        errors.setdefault(kind, {})[name] = relative_error(file, base, name)
    found: dict[str, tuple[float, float]] = {}
    quantized = [e for kind, of in errors.items() if kind != "floats" for e in of.values()]
    moved = [e > LEAST_ERROR for e in errors.get("floats", {}).values()]
    if (quantized and statistics.median(quantized) > FOLDED) or sum(moved) > MANY * len(moved):
        return []
    for of in errors.values():
        middle = statistics.median(of.values())
        found |= {n: (e, middle) for n, e in of.items() if not e <= max(FAR * middle, LEAST_ERROR)}
    worst = sorted(found, key=lambda name: -found[name][0])
    said = [f"{n} is {found[n][0]:.0%} off, others of its type {found[n][1]:.1%}" for n in worst[:most]]
    return said if len(worst) <= most else [*said, f"and {len(worst) - most} more tensors"]


def relative_error(file: GGUFFile, base: GGUFFile, name: str) -> float:
    """sqrt(sum (x' - x)^2 / sum x^2) over rows of a tensor; Inf where it holds NaN or Inf and the base does not."""
    mine, theirs = (dequantize(some_rows(f.tensor(name))).astype(np.float64) for f in (file, base))
    power = float((theirs**2).sum())
    lost = float(((mine - theirs) ** 2).sum())
    if not math.isfinite(lost):
        return math.inf
    return math.sqrt(lost / power) if power else float(lost > 0)


def _differences(mine: Any, theirs: Any, within: str = "") -> list[str]:
    """Fields of two records, and of records in them, that are not the same."""
    found = []
    for field in dataclasses.fields(mine):
        a, b = getattr(mine, field.name), getattr(theirs, field.name)
        if dataclasses.is_dataclass(a) and type(a) is type(b):
            found += _differences(a, b, f"{within}{field.name}.")
        elif not _alike(a, b):
            found.append(f"{within}{field.name} {a!r}, the base {b!r}")
    return found


def _alike(mine: object, theirs: object) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        return math.isclose(mine, theirs, rel_tol=1e-5)
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        return mine.keys() == theirs.keys() and all(_alike(mine[key], theirs[key]) for key in mine)
    return bool(np.all(mine == theirs))
