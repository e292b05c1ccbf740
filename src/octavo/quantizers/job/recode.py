"""A tensor from one format to another, a few rows at a time, and how far the result is from what it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import numpy as np

from octavo.errors import NonFiniteError, QuantFormatError, shown
from octavo.formats import BlockFormat, QTensor, dequantize
from octavo.formats.scalars import INTEGER
from octavo.formats.spec import F32, U8, AnyArray
from octavo.io.gguf import scan_non_finite
from octavo.quantizers.encoding.encoder import encode
from octavo.quantizers.job.ahead import Inline

SLAB = 1 << 20
"""Values that are held as float32 at a time."""
BEHIND = 2
"""Slabs whose errors are not measured yet, at most."""


@dataclass(frozen=True)
class Slab:
    """Rows of a tensor as float32 [rows, K], and the importance [K] of their columns."""

    rows: slice
    values: F32
    weights: F32 | None


@dataclass
class Recoded:
    """A tensor in its new format. What each slab lost may still be being worked out; `error` waits for it."""

    tensor: QTensor
    weighted: bool
    _lost: list[Future[tuple[float, float]]] = field(default_factory=list)

    @property
    def error(self) -> float:
        """The root of sum w (x - x')^2 / sum w x^2, where w are the importance weights or 1.

        Raises QuantFormatError where a value is beyond the format's range.
        """
        sums = [future.result() for future in self._lost]
        wrong, right = (math.fsum(column) for column in zip(*sums, strict=True))
        if not math.isfinite(wrong):
            problem = f"values beyond the range of {self.tensor.format.name}"
            raise QuantFormatError(f"tensor {shown(self.tensor.name)}: {problem}")
        return math.sqrt(wrong / right) if right else math.inf if wrong else 0.0


def recode(tensor: QTensor, fmt: BlockFormat, *, importance: F32 | None = None, threads: int | None = None) -> Recoded:
    """`tensor` in the format `fmt`; `importance` is float32 [K], or [E, K] for experts [E, N, K].

    Beside the result it needs memory for `SLAB` values (or one row). Raises NonFiniteError naming the tensor and the
    place of a NaN or Inf, QuantFormatError for a value beyond the format's range.
    """
    slabs = read_slabs(tensor, importance)
    return recode_slabs(slabs, tensor.name, tensor.shape, fmt, Inline(), threads=threads)


def recode_slabs(
    slabs: Iterator[Slab],
    name: str,
    shape: tuple[int, ...],
    fmt: BlockFormat,
    checker: Executor,
    *,
    threads: int | None = None,
    advance: Callable[[int], None] = lambda values: None,
) -> Recoded:
    """The tensor whose slabs come next in `slabs`, in the format `fmt`; `checker` measures what is lost.

    `advance` is told how many values were done since it was last told.
    """
    out = np.empty((math.prod(shape[:-1]), fmt.row_bytes(shape[-1])), dtype=np.uint8)
    made = Recoded(QTensor(fmt, shape, out.reshape(*shape[:-1], out.shape[-1]), name), False)
    done = 0
    while done < len(out):
        slab = next(slabs)
        out[slab.rows] = _encoded(slab, fmt, threads, name)
        made.weighted = slab.weights is not None
        made._lost.append(checker.submit(_errors, slab, out[slab.rows], fmt))
        if len(made._lost) > BEHIND:  # so that slabs don't pile up where measuring takes longer than encoding
            made._lost[-BEHIND - 1].result()
        advance(slab.values.size)
        done = slab.rows.stop
    return made


def read_slabs(tensor: QTensor, importance: F32 | None = None, scale: F32 | None = None) -> Iterator[Slab]:
    """A tensor's rows as float32, some at a time, none across experts. Raises NonFiniteError at a NaN or Inf.

    scale  what they are multiplied by, float32 [1], or [E] for experts [E, N, K]
    """
    n, k = (1, *tensor.shape)[-2:]
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, SLAB // k)
    for expert in range(math.prod(tensor.shape[:-2])):
        weights = importance if importance is None or importance.ndim == 1 else importance[expert]
        for start in range(0, n, step):
            part = slice(expert * n + start, expert * n + min(start + step, n))
            values = dequantize(QTensor(tensor.format, (part.stop - part.start, k), rows[part]))
            if scale is not None:
                values = values * scale[expert]
            _require_finite(values, part.start, tensor)
            yield Slab(part, values, weights)


def checked_copy(tensor: QTensor) -> QTensor:
    """The tensor as it is. Raises NonFiniteError naming it where it holds NaN or Inf."""
    if tensor.format.number is not INTEGER and (bad := scan_non_finite(tensor)):
        raise NonFiniteError(f"tensor {shown(tensor.name)}: {bad} of {tensor.size} values are NaN or Inf")
    return tensor


def _encoded(slab: Slab, fmt: BlockFormat, threads: int | None, name: str) -> U8:
    try:
        return encode(slab.values, fmt, importance=slab.weights, threads=threads)
    except QuantFormatError as error:
        raise QuantFormatError(f"tensor {shown(name)}: {error}") from None


def _errors(slab: Slab, packed: U8, fmt: BlockFormat) -> tuple[float, float]:
    """The weighted sums of squares of what was lost, and of the values."""
    got = dequantize(QTensor(fmt, slab.values.shape, packed))
    with np.errstate(invalid="ignore"):
        np.subtract(got, slab.values, out=got)
    return _square_sum(got, slab.weights), _square_sum(slab.values, slab.weights)


def _square_sum(x: AnyArray, weights: F32 | None) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        total = _dot(x) if weights is None else float(np.einsum("nk,nk->k", x, x) @ weights.astype(np.float64))
    return total if math.isfinite(total) or x.dtype == np.float64 else _square_sum(x.astype(np.float64), weights)


def _dot(x: AnyArray) -> float:
    flat = x.reshape(-1)
    return float(np.dot(flat, flat))


def _require_finite(values: F32, first_row: int, tensor: QTensor) -> None:
    """Raises NonFiniteError at the first NaN or Inf of rows that begin at `first_row`."""
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(_dot(values)):
            return
    finite = np.isfinite(values)
    if finite.all():
        return
    row, column = np.unravel_index(int(finite.argmin()), values.shape)
    place = [int(i) for i in np.unravel_index(first_row + int(row), tensor.shape[:-1])] if len(tensor.shape) > 1 else []
    raise NonFiniteError(f"tensor {shown(tensor.name)}: {values[row, column]} at {[*place, int(column)]}")
