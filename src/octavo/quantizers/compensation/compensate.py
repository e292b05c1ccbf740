"""`compensate`: rows of floats to packed blocks of any format, so that what a product gives changes least.

An encoder makes each weight's own error small. Here errors of a row may be large where they cancel: what counts is
tr(E H E^T), the squared change of the product's outputs over the calibration text, with H the mean of x x^T over its
inputs x. This is GPTQ (Frantar et al., arXiv 2210.17323) with scales from the importance-weighted encoders, for every
row of the format table that gives each value a level of its own; scales and codes are then gone through again by
coordinate descent (as QuantEase does with codes, arXiv 2309.01885).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.backends.cores import threads_of
from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import BlockFormat, Planes, QTensor, decode, dequantize, pack, quantize_reference, unpack
from octavo.formats.group import row_named
from octavo.formats.spec import F32, U8, AnyArray
from octavo.quantizers.calibration.factor import Factor, Order, factorize
from octavo.quantizers.compensation.sweep import sweep
from octavo.quantizers.encoding.encoder import ENCODABLE, encode, rows_of

Matrix = npt.NDArray[np.float64]

ROUNDS = 3
"""Times that scales and codes are gone through again."""
DAMP = 0.01
"""Of the mean diagonal, added to the diagonal."""
LEAST_GAIN = 1e-5
"""Of a row's error: what compensation must gain at least to be taken."""


@dataclass(frozen=True, eq=False)
class Compensated:
    """Rows in a format, and what they lose.

    packed   uint8 [N, bytes of a row]
    before   float32 [N]: e^T H e of each row as the encoder alone leaves it
    after    float32 [N]: of what is in `packed`; nowhere above `before`
    bound    what nearest levels can't exceed with these scales while no value is beyond the last level, damping
             included (Babai's bound of the lattice of H): the sum over all rows, before anything is refitted
    kept     rows that compensation made better; the others are the encoder's
    damping  that was added to the diagonal, over its mean
    """

    packed: U8
    before: F32
    after: F32
    bound: float
    kept: int
    damping: float


def compensate(
    weight: npt.ArrayLike,
    hessian: npt.ArrayLike,
    row: str | BlockFormat,
    *,
    importance: npt.ArrayLike | None = None,
    cross: npt.ArrayLike | None = None,
    order: Order = "act",
    damp: float = DAMP,
    rounds: int = ROUNDS,
    factor: Factor | None = None,
    threads: int | None = None,
) -> Compensated:
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

    Columns whose diagonal is 0 met no activation, and cost nothing. Bytes do not depend on `threads`. Raises
    QuantFormatError for a format whose codes are not each a value's own level (IQ1 to IQ3, TQ1_0, floats), UsageError
    for shapes and numbers that do not fit, NonFiniteError for NaN or Inf.
    """
    from octavo.quantizers.compensation.planes import grid_of

    fmt = row_named(row) if isinstance(row, str) else row
    if grid_of(fmt) is None:
        raise QuantFormatError(
            f"{fmt.name}: errors are not made up for in it (allowed: formats with one level or table entry a value)"
        )
    rows, h = _finite(rows_of(weight, fmt), "weight"), _square(hessian, "hessian", np.shape(weight)[-1])
    if order not in ("act", "natural") or rounds < 0 or not damp >= 0:
        raise UsageError(
            f"order {order!r}, rounds {rounds}, damp {damp} (allowed: act or natural, 0 or more, 0 or more)"
        )
    factor = factorize(h, order, damp) if factor is None else factor
    target = rows if cross is None else _corrected(rows, h, _square(cross, "cross", len(h)), factor.added)
    weights = np.asarray(h.diagonal() if importance is None else importance, np.float32)
    plain = _encoded(rows, fmt, weights, threads)
    start = plain if target is rows else _encoded(target, fmt, weights, threads)
    if not rows.size:
        none = np.zeros(len(rows), np.float32)
        return Compensated(pack(plain, fmt), none, none, 0.0, 0, factor.damping)
    found = sweep(target, start, fmt, factor, rounds, threads_of(threads))
    before = found.before if target is rows else _errors(target, plain, fmt, h)
    better = found.after < before * np.float32(1 - LEAST_GAIN)
    packed = np.where(better[:, None], pack(found.planes, fmt), pack(plain, fmt))
    after = np.where(better, found.after, before)
    return Compensated(packed, before, after, found.bound, int(better.sum()), factor.damping)


def _square(matrix: npt.ArrayLike, name: str, k: int) -> Matrix:
    values = np.asarray(matrix, np.float64)
    if values.shape != (k, k):
        raise UsageError(f"{name} of shape {values.shape} for rows of {k} values (allowed: ({k}, {k}))")
    _finite(values, name)
    if name == "hessian" and (values.diagonal() < 0).any():
        at = int((values.diagonal() < 0).argmax())
        raise UsageError(f"hessian is {values[at, at]:g} at column {at} of its diagonal (allowed: 0 or more)")
    return values


def _finite(values: AnyArray, name: str) -> AnyArray:
    finite = np.isfinite(values)
    if not finite.all():
        row, column = (int(i) for i in np.unravel_index(finite.argmin(), values.shape))
        raise NonFiniteError(f"{name}: {values[row, column]} at row {row}, column {column}")
    return values


def _corrected(rows: F32, hessian: Matrix, cross: Matrix, damping: float) -> F32:
    """The weights that give from quantized inputs, as nearly as can be, what `rows` give from the original ones.

    W* = W E[x x~^T] H^-1; the damping holds them to W where there is little to go by.
    """
    right = cross.T + damping * np.eye(len(cross))
    return np.asarray(np.linalg.solve(hessian + damping * np.eye(len(cross)), (rows @ right).T).T, np.float32)


def _encoded(rows: F32, fmt: BlockFormat, weights: F32, threads: int | None) -> Planes:
    """What the format's own encoder makes of rows, errors weighted."""
    if fmt.name in ENCODABLE:
        packed = encode(rows, fmt, importance=weights, threads=threads)
        return unpack(QTensor(fmt, rows.shape, packed))
    return _searched(rows, fmt, weights)


SHRINKS = np.linspace(1.0, 0.55, 16, dtype=np.float32)
"""Parts of a group's range that its levels may span."""


def _searched(rows: F32, fmt: BlockFormat, weights: F32) -> Planes:
    """Rows by the format's plain encoder, each group clipped to the part of its range that leaves the least error."""
    groups = rows.reshape(len(rows), -1, fmt.group)
    low, high = groups.min(axis=2, keepdims=True, initial=0), groups.max(axis=2, keepdims=True, initial=0)
    weighing = weights.reshape(1, -1, fmt.group)
    best, clipped = np.full(groups.shape[:2], np.inf, np.float32), groups
    for shrink in SHRINKS:
        tried = np.clip(groups, low * shrink, high * shrink)
        got = dequantize(quantize_reference(tried.reshape(rows.shape), fmt)).reshape(groups.shape)
        error = (weighing * np.square(got - groups)).sum(axis=2)
        clipped = np.where((error < best)[..., None], tried, clipped)
        best = np.minimum(error, best)
    return unpack(quantize_reference(clipped.reshape(rows.shape), fmt))


def _errors(target: F32, plain: Planes, fmt: BlockFormat, hessian: Matrix) -> F32:
    """e^T H e of each row of what the encoder made, against the weights that are aimed at."""
    off = target - decode(plain, fmt)
    return np.asarray(np.einsum("nk,nk->n", off @ hessian, off), np.float32)
