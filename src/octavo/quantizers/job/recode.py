"""A tensor from one format to another, a few rows at a time, and how far the result is from what it was."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, ParamSpec, TypeVar

import numpy as np

from octavo.backends.cores import threads_of
from octavo.errors import NonFiniteError, QuantFormatError, shown
from octavo.formats import BlockFormat, QTensor, dequantize
from octavo.formats.scalars import INTEGER
from octavo.formats.spec import F32, U8, AnyArray
from octavo.io.gguf import scan_non_finite
from octavo.quantizers.encoding.encoder import encode

T = TypeVar("T")
P = ParamSpec("P")
SLAB = 1 << 18
"""Values that are held as float32 at a time by each thread."""
EACH = 4
"""Slabs for each thread that are done before they are wanted, at most: threads have work while others are written."""


class InlineExecutor(Executor):
    """An executor without threads: what is submitted is done at once."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def workers(threads: int) -> Executor:
    """An executor with `threads` threads; with one, it works in the calling thread."""
    return InlineExecutor() if threads == 1 else ThreadPoolExecutor(threads, "octavo-quantize")


class Pipeline(Generic[T]):
    """What calls give, in order, while `executor` works on those after it.

    calls  each with the size of what it gives
    room   of the sizes that are asked for ahead; the last of them may be larger than what is left

    Whoever stops early shuts the executor down with `cancel_futures`.
    """

    def __init__(self, calls: Iterator[tuple[int, Callable[[], T]]], executor: Executor, room: int) -> None:
        self._calls, self._executor, self._room = calls, executor, room
        self._waiting: deque[tuple[int, Future[T]]] = deque()
        self._ahead = 0
        self._fill()

    def _fill(self) -> None:
        while self._ahead < self._room and self._submit():
            pass

    def _submit(self) -> bool:
        size, call = next(self._calls, (0, None))
        if call is None:
            return False
        self._waiting.append((size, self._executor.submit(call)))
        self._ahead += size
        return True

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._waiting and not self._submit():
            raise StopIteration
        size, first = self._waiting.popleft()
        self._ahead -= size
        self._fill()
        return first.result()


@dataclass(frozen=True)
class Slab:
    """Rows of a tensor in their new format, uint8 [rows, bytes of a row], and sums w (x - x')^2 and w x^2."""

    rows: slice
    packed: U8
    wrong: float
    right: float


@dataclass(frozen=True)
class Recoded:
    """A tensor in its new format; `wrong` and `right` are the sums of its slabs."""

    tensor: QTensor
    weighted: bool
    wrong: float
    right: float

    @property
    def error(self) -> float:
        """The root of sum w (x - x')^2 / sum w x^2, where w are the importance weights or 1."""
        return math.sqrt(self.wrong / self.right) if self.right else math.inf if self.wrong else 0.0


def recode(tensor: QTensor, fmt: BlockFormat, *, importance: F32 | None = None, threads: int | None = None) -> Recoded:
    """`tensor` in the format `fmt`; `importance` is float32 [K], or [E, K] for experts [E, N, K].

    Beside the result it needs memory for a few `SLAB` values (or rows) for each thread. Raises NonFiniteError naming
    the tensor and the place of a NaN or Inf, QuantFormatError for a value beyond the format's range.
    """
    count = min(threads_of(threads), math.ceil(tensor.size / SLAB)) or 1
    stored, executor = tensor.stored(), workers(count)
    of_each = threads if count == 1 else 1  # a tensor of one slab is encoded by all threads
    try:
        calls = slabs_of(lambda: stored, tensor.shape, fmt, importance, threads=of_each)
        slabs = Pipeline(calls, executor, room(count))
        return joined(slabs, tensor.name, tensor.shape, fmt, weighted=importance is not None)
    finally:
        executor.shutdown(cancel_futures=True)


def slabs_of(
    load: Callable[[], QTensor],
    shape: tuple[int, ...],
    fmt: BlockFormat,
    importance: F32 | None = None,
    scale: F32 | None = None,
    *,
    threads: int | None = 1,
) -> Iterator[tuple[int, Callable[[], Slab]]]:
    """What makes each slab of a tensor, with its values, none across experts; `load` gives the tensor.

    scale    what values are multiplied by, float32 [1], or [E] for experts [E, N, K]
    threads  that encode one

    A call raises as `recode` does.
    """
    n, k = (1, *shape)[-2:]
    step = max(1, SLAB // k)
    for expert in range(math.prod(shape[:-2])):
        weights = importance if importance is None or importance.ndim == 1 else importance[expert]
        times = None if scale is None else scale[expert]
        for start in range(0, n, step):
            rows = slice(expert * n + start, expert * n + min(start + step, n))
            yield (rows.stop - rows.start) * k, partial(_slab, load, rows, fmt, weights, times, threads)


def room(threads: int) -> int:
    """How many values `workers` threads are given ahead."""
    return 0 if threads == 1 else EACH * threads * SLAB


def joined(
    slabs: Iterator[Slab], name: str, shape: tuple[int, ...], fmt: BlockFormat, *, weighted: bool,
    advance: Callable[[int], None] = lambda values: None,
) -> Recoded:
    """The tensor whose slabs come next. `advance` is told how many values were done since it was last told.

    Raises QuantFormatError where a value is beyond the format's range.
    """
    out = np.empty((math.prod(shape[:-1]), fmt.row_bytes(shape[-1])), dtype=np.uint8)
    done, sums = 0, list[tuple[float, float]]()
    while done < len(out):
        slab = next(slabs)
        out[slab.rows] = slab.packed
        sums.append((slab.wrong, slab.right))
        advance(len(slab.packed) * shape[-1])
        done = slab.rows.stop
    wrong, right = (math.fsum(column) for column in zip(*sums, strict=True))
    if not math.isfinite(wrong):
        raise QuantFormatError(f"tensor {shown(name)}: values beyond the range of {fmt.name}")
    return Recoded(QTensor(fmt, shape, out.reshape(*shape[:-1], out.shape[-1]), name), weighted, wrong, right)


def _slab(
    load: Callable[[], QTensor], rows: slice, fmt: BlockFormat, weights: F32 | None, scale: np.float32 | None,
    threads: int | None,
) -> Slab:
    tensor = load()
    values = dequantize(QTensor(tensor.format, (rows.stop - rows.start, tensor.shape[-1]), tensor.rows(rows)))
    if scale is not None:
        values = values * scale
    _require_finite(values, rows.start, tensor)
    try:
        packed = encode(values, fmt, importance=weights, threads=threads)
    except QuantFormatError as error:
        raise QuantFormatError(f"tensor {shown(tensor.name)}: {error}") from None
    return Slab(rows, packed, *_errors(values, weights, packed, fmt))


def checked_copy(tensor: QTensor) -> QTensor:
    """The tensor as it is. Raises NonFiniteError naming it where it holds NaN or Inf."""
    if tensor.format.number is not INTEGER and (bad := scan_non_finite(tensor)):
        raise NonFiniteError(f"tensor {shown(tensor.name)}: {bad} of {tensor.size} values are NaN or Inf")
    return tensor


def _errors(values: F32, weights: F32 | None, packed: U8, fmt: BlockFormat) -> tuple[float, float]:
    """The weighted sums of squares of what was lost, and of the values."""
    got = dequantize(QTensor(fmt, values.shape, packed))
    with np.errstate(invalid="ignore"):
        np.subtract(got, values, out=got)
    return _square_sum(got, weights), _square_sum(values, weights)


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
