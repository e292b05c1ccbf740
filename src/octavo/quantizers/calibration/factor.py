"""The triangular factor of a Hessian, which error compensation goes by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.errors import UsageError
from octavo.formats.spec import F32
from octavo.quantizers.tiles import run_tiles, spans

Matrix = npt.NDArray[np.floating[Any]]
Order = Literal["act", "natural"]

MOST_DAMPING = 1.0


@dataclass(frozen=True, eq=False)
class Factor:
    """H + damping * mean(diag H) * I = M^T D M of columns in the order in which they are taken.

    order    int64 [K]
    m        float32 [K, K], unit lower triangular
    weights  float64 [K], D
    hessian  float32 [K, K], the damped one, columns as they lie
    damping  over the mean of the diagonal
    added    what was added to the diagonal
    """

    order: npt.NDArray[np.int64]
    m: F32
    weights: npt.NDArray[np.float64]
    hessian: F32
    damping: float
    added: float


def factorize(hessian: Matrix, order: Order, damp: float) -> Factor:
    """The factor of `hessian` [K, K], columns with the largest diagonal first or as they lie.

    Where there is none, damping is multiplied by 10, up to MOST_DAMPING. Raises UsageError where there is none even so:
    far from positive semidefinite.
    """
    diagonal = hessian.diagonal()
    mean = float(diagonal.mean()) if diagonal.any() else 1.0
    taken = np.argsort(-diagonal, kind="stable") if order == "act" else np.arange(len(hessian))
    damping = damp
    while True:
        damped = hessian + damping * mean * np.eye(len(hessian))
        try:
            upper = upper_root(damped[np.ix_(taken, taken)])
        except np.linalg.LinAlgError:
            damping = max(10 * damping, 1e-6)
            if damping > MOST_DAMPING:
                raise UsageError("hessian is not positive semidefinite (allowed: sums of x x^T)") from None
            continue
        own = np.asarray(upper.diagonal(), np.float64)
        m = np.ascontiguousarray((upper / own).T, np.float32)
        return Factor(taken.astype(np.int64), m, own**2, damped.astype(np.float32), damping, damping * mean)


def upper_root(h: Matrix) -> Matrix:
    """The upper triangular A with A A^T = h, for a symmetric positive definite h [K, K]. Raises LinAlgError."""
    lower = np.array(h[::-1, ::-1], order="C")
    _cholesky(lower)
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
