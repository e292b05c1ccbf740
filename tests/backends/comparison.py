"""How far the results of an op case on one backend may be from those on another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.bench.cases import OpCase
from octavo.formats.group import row_named
from octavo.formats.spec import AnyArray

PLAIN, QUANTIZED, EXPONENTIAL, FLOAT32, EXACT, STEPS, BYTES = 1e-7, 5e-4, 1e-6, 1e-10, 0.0, 1e-6, 1e-4
"""Tolerances (NMSE): plain numbers; products with quantized activations; exp of a row; attention to a cache of float32,
which is there to be exact; integers; keys that are rounded after rope to so few numbers that one can be the next."""
ROUNDED = {"BF16": 5e-5, "F32": 1e-6}
"""Products whose activations are rounded as the weights are (Triton's interpreter cuts bits off), and of float32 whose
factors become tf32 where a GPU has that: matrices of WIDE rows."""
WIDE = 512

CHAINED = 2
"""Times as much of a whole network, whose inputs and values between are rounded to halves one after the other."""

WORST = 200
"""How often the tolerance a single value's squared error may be."""


def tolerance(case: OpCase) -> float:
    """The most NMSE; of ids, 0."""
    if case.op in ("top_k", "soft_max_top_k"):
        return EXACT
    product = case.op.startswith(("mul_mat", "quantized_", "lora")) or case.op == "numbers"
    if product and not all(row_named(f).is_float for f in case.formats):
        return QUANTIZED
    if case.op == "mul_mat_id_concat" and case.formats == ("F16",):
        return CHAINED * PLAIN
    if product and ("BF16" in case.formats or case.shape.get("n", 0) >= WIDE):
        return max(ROUNDED.get(f, PLAIN) for f in case.formats)
    if case.op == "attention" and case.shape.get("cache") == "f32":
        return FLOAT32
    if case.shape.get("cache") == "int4" and case.op in ("attention", "rope_set_rows"):
        return BYTES
    if case.op == "rope_set_rows" and case.shape.get("cache") in ("int8", "fp8"):
        return STEPS
    return EXPONENTIAL if case.op in ("soft_max", "normalize", "sum_experts") else PLAIN


@dataclass(frozen=True)
class Difference:
    """How far results are from what was expected, and whether that is within the tolerance.

    nmse   mean squared error over the mean square of what was expected
    worst  the largest squared error over the mean square of its row, or of all rows where that is more
    """

    nmse: float
    worst: float
    ok: bool


def compare(case: OpCase, found: Sequence[AnyArray], expected: Sequence[AnyArray]) -> Difference:
    """Hold results to the case's tolerance, step by step; what is not finite, or of another shape, is infinitely off.

    A wrong row among thousands hardly changes the NMSE, so no single value may be far off either (see WORST).
    """
    differences = [_difference(f, e) for f, e in zip(found, expected, strict=True)]
    nmse, worst = (max(d[i] for d in differences) for i in range(2))
    return Difference(nmse, worst, nmse <= tolerance(case) and worst <= WORST * tolerance(case))


def _difference(found: AnyArray, expected: AnyArray) -> tuple[float, float]:
    if found.shape != expected.shape or not np.isfinite(found).all():
        return np.inf, np.inf
    squares, scales = (found.astype(np.float64) - expected) ** 2, expected.astype(np.float64) ** 2
    scale = float(scales.mean()) or 1.0
    worst = squares.max(axis=-1) / np.maximum(scales.mean(axis=-1), scale)
    return float(squares.mean()) / scale, float(worst.max())
