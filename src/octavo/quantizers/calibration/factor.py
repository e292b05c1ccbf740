"""The triangular factor of a Hessian's inverse, which error compensation goes by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.quantizers.calibration.tiles import run_tiles, spans

Matrix = npt.NDArray[np.floating[Any]]
Order = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Factor:
    """U with U^T U = inverse of (H + damping * mean(diag H) * I), H's rows and columns in `order`.

    upper    [K, K], upper triangular
    order    int64 [K]: the column of H that column j of `upper` is for
    damping  what it took for H to have one
    """

    upper: Matrix
    order: Order
    damping: float


def upper_root(h: Matrix) -> Matrix:
    """The upper triangular A with A A^T = h, for a symmetric positive definite h [K, K]. Raises LinAlgError."""
    lower = np.array(h[::-1, ::-1], order="C")
    _cholesky(lower)
    return np.ascontiguousarray(lower[::-1, ::-1])


def inverse_factor(h: Matrix) -> Matrix:
    """The upper triangular U with U^T U = inverse of a symmetric positive definite h [K, K].

    With J the order reversed, J h J = L L^T gives h = (J L J)(J L J)^T, so U = J L^-1 J: one Cholesky decomposition and
    the inverse of a triangle, in place of the two decompositions of GPTQ (arXiv 2210.17323). Raises LinAlgError where h
    is not positive definite.
    """
    lower = np.array(h[::-1, ::-1], order="C")
    inverses = _cholesky(lower)
    _invert(lower, inverses)
    return np.ascontiguousarray(lower[::-1, ::-1])


def _cholesky(a: Matrix) -> list[Matrix]:
    """Replace a [K, K], whose lower half is read, by L with L L^T = a; inverses of L's blocks on the diagonal."""
    inverses: list[Matrix] = []
    panels = spans(len(a))
    for j in panels:
        run_tiles(partial(_subtract, a, i, j) for i in panels if i.start >= j.start)
        run_tiles([partial(_factor_block, a, j, inverses)])
        run_tiles(partial(_divide, a, i, j, inverses[-1]) for i in panels if i.start > j.start)
    return inverses


def _subtract(a: Matrix, i: slice, j: slice) -> None:
    """Take from a tile what the columns before it account for."""
    if j.start:
        a[i, j] -= a[i, : j.start] @ a[j, : j.start].T


def _factor_block(a: Matrix, j: slice, inverses: list[Matrix]) -> None:
    """Replace a block on the diagonal by its factor, and add that one's inverse to `inverses`."""
    block = np.linalg.cholesky(a[j, j])
    if not np.isfinite(block).all():
        raise np.linalg.LinAlgError("a block of the matrix has no finite factor")
    inverses.append(np.tril(np.linalg.inv(block)))
    a[j, j], a[j, j.stop :] = block, 0


def _divide(a: Matrix, i: slice, j: slice, inverse: Matrix) -> None:
    a[i, j] = a[i, j] @ inverse.T


def _invert(lower: Matrix, inverses: list[Matrix]) -> None:
    """Replace a lower triangle by its inverse, row of blocks by row of blocks."""
    panels = spans(len(lower))
    for i, inverse in zip(panels, inverses, strict=True):
        row = lower[i, : i.start].copy()
        run_tiles(partial(_inverted, lower, row, i, j, inverse) for j in panels if j.start < i.start)
        lower[i, i] = inverse


def _inverted(lower: Matrix, row: Matrix, i: slice, j: slice, inverse: Matrix) -> None:
    """Tile i, j of the inverse, of a `row` of the triangle and what is inverted above it."""
    lower[i, j] = -inverse @ (row[:, j.start :] @ lower[j.start : i.start, j])
