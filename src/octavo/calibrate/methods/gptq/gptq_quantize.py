"""`gptq`: rows of floats to packed blocks of any format, so that what a product gives changes least.

An encoder makes each weight's own error small. Here errors of a row may be large where they cancel: what counts is
tr(E H E^T), the squared change of the product's outputs over the calibration text, with H the mean of x x^T over its
inputs x. This is GPTQ (Frantar et al., arXiv 2210.17323) with scales from the importance-weighted encoders, for every
row of the format table that gives each value a level of its own; scales and codes are then gone through again by
coordinate descent (as QuantEase does with codes, arXiv 2309.01885).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octavo.backends.cores import threads_of
from octavo.calibrate.hessian.damping import Order
from octavo.calibrate.hessian.factor import Factor, factorize, solve
from octavo.calibrate.hessian.hessian import weighed
from octavo.calibrate.methods.gptq.gptq_rows import LEAST_GAIN, ROWS, GptqRows, encoded
from octavo.calibrate.methods.gptq.sweep import sweep
from octavo.calibrate.row_batches import made_in_parts
from octavo.calibrate.torch_arrays import is_tensor
from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import BlockFormat, Planes, decode
from octavo.formats.group import row_named
from octavo.formats.spec import F32, AnyArray
from octavo.quantizers.encoding.encoder import rows_of
from octavo.quantizers.matrix_tiles import TILE, run_tiles, spans

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.calibrate.hessian.torch_hessian import TorchFactor

Matrix = npt.NDArray[np.floating[Any]]

ROUNDS = 3
"""Times that scales and codes are gone through again."""
DAMP = 0.01
"""The share of the mean diagonal that is added to the diagonal."""
SLAB, TILES = 1 << 20, 4
"""Values of rows that are made at a time, at least, and tiles of rows for each thread."""


def gptq(
    weight: npt.ArrayLike | Tensor,
    hessian: npt.ArrayLike | Tensor,
    row: str | BlockFormat,
    *,
    importance: npt.ArrayLike | None = None,
    cross: npt.ArrayLike | Tensor | None = None,
    order: Order = "act",
    damp: float = DAMP,
    rounds: int = ROUNDS,
    factor: Factor | TorchFactor | None = None,
    threads: int | None = None,
) -> GptqRows:
    """Rows [N, K] in the format `row`, errors making up for each other under `hessian` [K, K].

    hessian     the mean (or sum) of x x^T over the inputs x of the product; symmetric, positive semidefinite
    row         a format of the table, or a row of groups by its name, as "Q4_K" or "GROUP4_128_Z_F16"
    importance  float32 [K], of the encoder that chooses scales; default: the diagonal of `hessian`
    cross       [K, K], the mean of x~ x^T with x~ the inputs that the quantized model has and x those of the original:
                then `hessian` is of x~, and what W x gives is approximated (Qronos, arXiv 2505.11695)
    order       columns with the largest diagonal first, or as they lie; groups stay where they are either way
    damp        added to the diagonal, over its mean; ten times as much while the factorization fails, up to 1
    rounds      times that scales and codes are gone through again after GPTQ's sweep; 0: GPTQ alone
    factor      what `factorize` makes of `hessian`, `order` and `damp`, for weights that share them

    Where `hessian` is a tensor of torch the work is done on its device, by kernels in Triton; `cross` and `factor` (a
    `TorchFactor`) are then there as well, and `weight` may be. The codes are the same but for values that lie halfway
    between two levels, which sums in another order tip, and what follows in their rows.

    Columns whose diagonal is 0 met no activation, and cost nothing. Bytes do not depend on `threads`. Raises
    QuantFormatError for a format whose codes are not each a value's own level (IQ1 to IQ3, floats), UsageError
    for shapes and numbers that do not fit, NonFiniteError for NaN or Inf.
    """
    from octavo.calibrate.methods.gptq.gptq_tiles import grid_of

    fmt = row_named(row) if isinstance(row, str) else row
    if grid_of(fmt) is None:
        raise QuantFormatError(
            f"GPTQ does not apply to {fmt.name} (allowed: formats with one level or table entry per value)"
        )
    if order not in ("act", "natural") or rounds < 0 or not damp >= 0:
        raise UsageError(
            f"order {order!r}, rounds {rounds}, damp {damp} (allowed: act or natural, 0 or more, 0 or more)"
        )
    if is_tensor(hessian):
        from octavo.calibrate.methods.gptq import torch_gptq

        return torch_gptq.gptq(weight, hessian, fmt, importance, cross, order, damp, rounds, factor, threads)
    rows, h = _finite(rows_of(weight, fmt), "weight"), _square(hessian, "hessian", np.shape(weight)[-1])
    factor = factorize(h, order, damp) if factor is None else factor
    assert isinstance(factor, Factor)
    target = rows if cross is None else _corrected(rows, h, _square(cross, "cross", len(h)), factor.added)
    weights = np.asarray(h.diagonal() if importance is None else importance, np.float32)
    made = _RowQuantizer(fmt, factor, weights, None if target is rows else h, rounds, threads)
    parts = row_parts(len(rows), len(h), threads)
    return _joined(made_in_parts(parts, lambda part: made.rows(rows[part], target[part])))


def row_parts(n: int, k: int, threads: int | None) -> list[slice]:
    """Rows [N, K] that are made at a time: a dozen arrays of their size are there beside them."""
    tiles = max(TILES * threads_of(threads), SLAB // (ROWS * max(k, 1)))
    return spans(n, ROWS * tiles) or [slice(0, 0)]


@dataclass(frozen=True, eq=False)
class _RowQuantizer:
    """Makes rows of a weight, some at a time: what becomes of one does not depend on others.

    hessian  what errors are found by where the rows that are aimed at are others than the weight's
    """

    fmt: BlockFormat
    factor: Factor
    importance: F32
    hessian: Matrix | None
    rounds: int
    threads: int | None

    def rows(self, rows: F32, target: F32) -> GptqRows:
        """Rows [N, K] of the weight, to come near to `target`."""
        fmt, damping = self.fmt, self.factor.damping
        plain = encoded(rows, fmt, self.importance, self.threads)
        start = plain if self.hessian is None else encoded(target, fmt, self.importance, self.threads)
        if not rows.size:
            none = np.zeros(len(rows), np.float32)
            return GptqRows(plain, fmt, none, none, 0.0, 0, damping)
        found = sweep(target, start, fmt, self.factor, self.rounds, threads_of(self.threads))
        before = found.before if self.hessian is None else _errors(target, plain, fmt, self.hessian)
        better = found.after < before * np.float32(1 - LEAST_GAIN)
        after, planes = np.where(better, found.after, before), _chosen(better, found.planes, plain)
        return GptqRows(planes, fmt, before, after, found.bound, int(better.sum()), damping)


def _joined(parts: list[GptqRows]) -> GptqRows:
    """Rows one after the other."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    names = [name for name, x in vars(first.planes).items() if x is not None]
    planes = Planes(**{name: np.concatenate([getattr(part.planes, name) for part in parts]) for name in names})
    before, after = (np.concatenate([getattr(part, name) for part in parts]) for name in ("before", "after"))
    bound, kept = sum(part.bound for part in parts), sum(part.kept for part in parts)
    return GptqRows(planes, first.format, before, after, bound, kept, first.damping)


def _chosen(rows: npt.NDArray[np.bool_], yes: Planes, no: Planes) -> Planes:
    """The planes `yes` in the rows that are true, `no` elsewhere."""
    parts = {name: (x, getattr(no, name)) for name, x in vars(yes).items() if x is not None}
    return Planes(**{name: np.where(rows[:, None], *both) for name, both in parts.items()})


def _square(matrix: npt.ArrayLike, name: str, k: int) -> Matrix:
    values = np.asarray(matrix)
    values = values if values.dtype == np.float32 else np.asarray(values, np.float64)
    if values.shape != (k, k):
        raise UsageError(f"{name} of shape {values.shape} for rows of {k} values (allowed: ({k}, {k}))")
    _finite(values, name)
    if name == "hessian" and (values.diagonal() < 0).any():
        at = int((values.diagonal() < 0).argmax())
        raise UsageError(f"hessian is {values[at, at]:g} at column {at} of its diagonal (allowed: 0 or more)")
    return values


def _finite(values: AnyArray, name: str) -> AnyArray:
    if values.size and not (np.isfinite(values.min()) and np.isfinite(values.max())):
        row, column = (int(i) for i in np.unravel_index(np.isfinite(values).argmin(), values.shape))
        raise NonFiniteError(f"{name}: {values[row, column]} at row {row}, column {column}")
    return values


def _corrected(rows: F32, hessian: Matrix, cross: Matrix, damping: float) -> F32:
    """The weights that give from quantized inputs, as nearly as can be, what `rows` give from the original ones.

    W* = W E[x x~^T] H^-1; the damping holds them to W where there is little to go by.
    """
    damped, right = np.array(hessian, np.float64), np.array(cross, np.float64)
    for matrix in (damped, right):
        np.einsum("ii->i", matrix)[...] += damping
    aims = np.empty((len(right), len(rows)))
    run_tiles(partial(_multiply, right, rows[part], aims[:, part]) for part in spans(len(rows), TILE))
    del right
    solve(damped, aims)
    return np.asarray(aims.T, np.float32)


def _multiply(right: Matrix, rows: F32, out: Matrix) -> None:
    out[...] = right @ rows.T


def _errors(target: F32, plain: Planes, fmt: BlockFormat, hessian: Matrix) -> F32:
    """e^T H e of each row of what the encoder made, against the weights that are aimed at."""
    return weighed(target - decode(plain, fmt), hessian).astype(np.float32)
