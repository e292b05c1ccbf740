"""What some rows of a tensor say: how weights, codes and scales lie, and what the width of the codes must cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.evals.report.findings import EDGES, I64, CodeSteps, Distribution
from octavo.formats import BlockFormat, Planes, QTensor, dequantize, unpack
from octavo.formats.spec import F32

F64 = npt.NDArray[np.float64]

SAMPLE = 1 << 18
"""Values of a tensor that histograms and trials are made of; rows evenly spaced."""


class TensorSample(NamedTuple):
    """What was found in some rows; `bad` of their values are NaN or Inf, and `estimate` is `estimated_error`."""

    weights: Distribution
    codes: I64 | None
    steps: CodeSteps | None
    estimate: float
    bad: int


def some_rows(tensor: QTensor) -> QTensor:
    """Rows of a tensor as a matrix: all of them up to `SAMPLE` values, else as many as that, evenly spaced."""
    k = tensor.shape[-1]
    data = tensor.data.reshape(-1, tensor.data.shape[-1])
    rows = np.unique(np.linspace(0, len(data) - 1, max(1, min(len(data), SAMPLE // k))).astype(np.int64))
    return QTensor(tensor.format, (len(rows), k), np.ascontiguousarray(data[rows]), tensor.name)


def look(rows: QTensor) -> TensorSample:
    """Weights, and codes and scales of a block format."""
    values = dequantize(rows)
    finite = np.isfinite(values)
    bad = values.size - int(np.count_nonzero(finite))
    weights = weights_of(values[finite] if bad else values.reshape(-1))
    fmt = rows.format
    if fmt.is_float:
        return TensorSample(weights, None, None, 0.0, bad)
    planes = unpack(rows)
    codes = np.bincount(planes.q.reshape(-1), minlength=1 << fmt.bits)
    step = scales(planes, fmt) * np.median(widths(fmt))
    estimate = 0.0 if bad else estimated_error(planes, fmt, values)
    return TensorSample(weights, codes, steps_of(step), estimate, bad)


def weights_of(values: F32) -> Distribution:
    """How finite values lie."""
    rms = float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0
    with np.errstate(over="ignore"):
        counts = np.histogram(values / rms if rms else values, EDGES)[0]
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    return Distribution(rms, largest, counts, values.size - int(counts.sum()))


def scales(planes: Planes, fmt: BlockFormat) -> F64:
    """The magnitude of each group's scale [groups], both levels multiplied."""
    assert planes.d is not None
    scale = np.abs(planes.d.astype(np.float64))
    if planes.sc is not None:
        scale = np.repeat(scale, fmt.super // fmt.group, axis=-1) * np.abs(planes.sc)
    return scale.reshape(-1)


def steps_of(steps: F64) -> CodeSteps:
    """How steps lie; NaN and Inf are left out."""
    steps = steps[np.isfinite(steps)]
    used = steps[steps > 0]
    low, median, high = (float(p) for p in np.percentile(used, (5, 50, 95))) if used.size else (0.0, 0.0, 0.0)
    return CodeSteps(low, median, high, 1 - used.size / steps.size if steps.size else 0.0)


def widths(fmt: BlockFormat) -> F64:
    """How wide the interval is that each code stands for, in units of its scale: 1, or by a table."""
    levels = fmt.code(np.arange(1 << fmt.bits, dtype=np.uint8)).astype(np.float64)
    points, inverse = np.unique(levels, return_inverse=True)
    gaps = np.diff(points)
    before, after = np.append(gaps[:1], gaps), np.append(gaps, gaps[-1:])  # the outer codes as wide as their one gap
    return ((before + after) / 2)[inverse]


def estimated_error(planes: Planes, fmt: BlockFormat, values: F32) -> float:
    """The relative error if what was rounded was spread evenly over codes' intervals: step^2 / 12 (Bennett 1948)."""
    step2 = scales(planes, fmt) ** 2
    width2 = widths(fmt) ** 2
    if (width2 == width2[0]).all():
        lost = float(step2.sum()) * fmt.group * width2[0] / 12
    else:
        lost = float(step2 @ width2[planes.q].reshape(-1, fmt.group).sum(axis=1)) / 12
    power = float(np.square(values, dtype=np.float64).sum())
    return (lost / power) ** 0.5 if power else 0.0
