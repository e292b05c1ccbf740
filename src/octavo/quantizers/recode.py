"""A tensor from one format to another, a few rows at a time, and how far the result is from what it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from octavo.errors import NonFiniteError, QuantFormatError
from octavo.formats import BlockFormat, QTensor, dequantize
from octavo.formats.spec import F32, U8, AnyArray
from octavo.io.gguf import scan_non_finite
from octavo.io.gguf.metadata import shown
from octavo.quantizers.encoder import encode

SLAB = 1 << 22
"""Values that are held as float32 at a time."""

Advance = Callable[[int], None]
"""Told how many values were done since it was last told."""


@dataclass(frozen=True)
class Recoded:
    """`error` is relative: the root of sum w (x - x')^2 / sum w x^2, where w are the importance weights or 1."""

    tensor: QTensor
    error: float


def recode(
    tensor: QTensor,
    fmt: BlockFormat,
    *,
    importance: F32 | None = None,
    threads: int | None = None,
    advance: Advance = lambda values: None,
) -> Recoded:
    """`tensor` in the format `fmt`; `importance` is float32 [K], or [E, K] for experts [E, N, K].

    Beside the result it needs memory for `SLAB` values (or one row). Raises NonFiniteError naming the tensor and the
    place of a NaN or Inf, QuantFormatError for a value beyond the format's range.
    """
    k = tensor.shape[-1]
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    out = np.empty((len(rows), fmt.row_bytes(k)), dtype=np.uint8)
    wrong = right = 0.0
    for part, weights in _slabs(tensor.shape, importance):
        values = dequantize(QTensor(tensor.format, (part.stop - part.start, k), rows[part]))
        _require_finite(values, part.start, tensor)
        out[part] = _encoded(values, fmt, weights, threads, tensor.name)
        lost, there = _errors(values, out[part], fmt, weights)
        wrong, right = wrong + lost, right + there
        advance(values.size)
    if not math.isfinite(wrong):
        raise QuantFormatError(f"tensor {shown(tensor.name)}: values beyond the range of {fmt.name}")
    packed = out.reshape(*tensor.shape[:-1], out.shape[-1])
    error = math.sqrt(wrong / right) if right else math.inf if wrong else 0.0
    return Recoded(QTensor(fmt, tensor.shape, packed, tensor.name), error)


def checked_copy(tensor: QTensor, advance: Advance = lambda values: None) -> QTensor:
    """The tensor as it is. Raises NonFiniteError naming it where it holds NaN or Inf."""
    if tensor.format.name not in ("I8", "I16", "I32", "I64") and (bad := scan_non_finite(tensor)):
        raise NonFiniteError(f"tensor {shown(tensor.name)}: {bad} of {tensor.size} values are NaN or Inf")
    advance(tensor.size)
    return tensor


def _slabs(shape: tuple[int, ...], importance: F32 | None) -> Iterator[tuple[slice, F32 | None]]:
    """Slices of the rows, none across experts, with the importance of their columns."""
    n, k = (1, *shape)[-2:]
    step = max(1, SLAB // k)
    for expert in range(math.prod(shape[:-2])):
        weights = importance if importance is None or importance.ndim == 1 else importance[expert]
        for start in range(0, n, step):
            yield slice(expert * n + start, expert * n + min(start + step, n)), weights


def _encoded(values: F32, fmt: BlockFormat, weights: F32 | None, threads: int | None, name: str) -> U8:
    try:
        return encode(values, fmt, importance=weights, threads=threads)
    except QuantFormatError as error:
        raise QuantFormatError(f"tensor {shown(name)}: {error}") from None


def _errors(values: F32, packed: U8, fmt: BlockFormat, weights: F32 | None) -> tuple[float, float]:
    """The weighted sums of squares of what was lost, and of the values."""
    got = dequantize(QTensor(fmt, values.shape, packed))
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(got, values, out=got)
        return _square_sum(got, weights), _square_sum(values, weights)


def _square_sum(x: AnyArray, weights: F32 | None) -> float:
    total = _dot(x) if weights is None else float(np.einsum("nk,nk->k", x, x) @ weights.astype(np.float64))
    return total if math.isfinite(total) or x.dtype == np.float64 else _square_sum(x.astype(np.float64), weights)


def _dot(x: AnyArray) -> float:
    flat = x.reshape(-1)
    return float(np.dot(flat, flat))


def _require_finite(values: F32, first_row: int, tensor: QTensor) -> None:
    """Raises NonFiniteError at the first NaN or Inf of rows that begin at `first_row`."""
    if math.isfinite(float(values.sum(dtype=np.float64))):
        return
    finite = np.isfinite(values)
    if finite.all():
        return
    row, column = np.unravel_index(int(finite.argmin()), values.shape)
    place = [int(i) for i in np.unravel_index(first_row + int(row), tensor.shape[:-1])] if len(tensor.shape) > 1 else []
    raise NonFiniteError(f"tensor {shown(tensor.name)}: {values[row, column]} at {[*place, int(column)]}")
