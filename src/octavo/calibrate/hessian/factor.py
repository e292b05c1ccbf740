"""The triangular factor of a Hessian, which GPTQ goes by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt

from octavo.calibrate.hessian.damping import Matrix, Order, more_damping
from octavo.calibrate.torch_arrays import is_tensor
from octavo.formats.spec import F32
from octavo.quantizers.matrix_tiles import TILE, run_tiles, spans

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.calibrate.hessian.torch_hessian import TorchFactor


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


@overload
def factorize(hessian: Matrix, order: Order, damp: float, *, keep: bool = True) -> Factor: ...
@overload
def factorize(hessian: Tensor, order: Order, damp: float, *, keep: bool = True) -> TorchFactor: ...


def factorize(hessian: Matrix | Tensor, order: Order, damp: float, *, keep: bool = True) -> Factor | TorchFactor:
    """The factor of `hessian` [K, K], columns with the largest diagonal first or as they lie.

    keep  False: `hessian` is not needed afterwards, and its memory may become the factor's

    Where there is none, damping is multiplied by 10, up to MOST_DAMPING. Raises UsageError where there is none even so:
    far from positive semidefinite. Beside the hessian it needs memory for another one, then for m in float32. That of a
    tensor of torch is found on its device.
    """
    if is_tensor(hessian):
        from octavo.calibrate.hessian.torch_hessian import TorchFactor

        return TorchFactor.of(hessian, order, damp, keep=keep)
    diagonal = hessian.diagonal().copy()
    mean = float(diagonal.mean()) if diagonal.any() else 1.0
    taken = np.argsort(-diagonal, kind="stable") if order == "act" else np.arange(len(hessian))
    damping = damp
    while True:
        lower = hessian[np.ix_(taken[::-1], taken[::-1])]
        _diagonal(lower)[...] += damping * mean
        try:
            _cholesky(lower)
            break
        except np.linalg.LinAlgError:
            damping = more_damping(damping)
    own = lower.diagonal()[::-1].astype(np.float64)
    mirror(lower)
    lower /= own[:, None]
    m = np.asarray(lower, np.float32)
    del lower
    damped = np.array(hessian, np.float32, copy=True if keep else None)
    _diagonal(damped)[...] = diagonal + damping * mean
    return Factor(taken.astype(np.int64), m, own**2, damped, damping, damping * mean)


def _diagonal(a: Matrix) -> Matrix:
    """A matrix's diagonal, to write to."""
    diagonal: Matrix = np.einsum("ii->i", a)
    return diagonal


def mirror(a: Matrix) -> None:
    """Swap numbers of a lower triangular a [K, K] across the other diagonal: a[i, j] becomes a[K - 1 - j, K - 1 - i].

    With J the order reversed, that is J a^T J, lower triangular as well.
    """
    parts = _even_spans(len(a))
    last = len(parts) - 1
    run_tiles(partial(_swap, a, parts, i, j) for i in range(last + 1) for j in range(i + 1) if i + j <= last)


def _swap(a: Matrix, parts: list[slice], i: int, j: int) -> None:
    """Swap a tile with the one that it becomes."""
    last = len(parts) - 1
    one, other = a[parts[i], parts[j]], a[parts[last - j], parts[last - i]]
    kept = one[::-1, ::-1].T.copy()
    one[...] = other[::-1, ::-1].T.copy()
    other[...] = kept


def _even_spans(size: int) -> list[slice]:
    """0 to `size` in pieces that are as long backwards: of TILE, but for the one in the middle."""
    sides = (size - 1) // (2 * TILE)
    ends = [TILE * i for i in range(sides + 1)]
    bounds = [*ends, *(size - end for end in reversed(ends))]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def _cholesky(a: Matrix) -> list[Matrix]:
    """Replace a [K, K], whose lower half is read, by L with L L^T = a; inverses of L's blocks on the diagonal."""
    inverses: list[Matrix] = []
    panels = spans(len(a))
    for j in panels:
        run_tiles(partial(_subtract, a, i, j) for i in panels if i.start >= j.start)
        run_tiles([partial(_factor_block, a, j, inverses)])
        run_tiles(partial(_divide, a, i, j, inverses[-1]) for i in panels if i.start > j.start)
    return inverses


def solve(a: Matrix, right: Matrix) -> None:
    """Replace right [K, N] by X with a X = right, for a symmetric positive definite a [K, K], in whose place its factor
    is then.

    Raises LinAlgError for another a. The same bytes whatever the number of threads.
    """
    inverses = _cholesky(a)
    run_tiles(partial(_substitute, a, inverses, right[:, columns]) for columns in spans(right.shape[1]))


def _substitute(lower: Matrix, inverses: list[Matrix], x: Matrix) -> None:
    """Replace x by what L L^T times gives it, block by block: first of L, then of L^T."""
    panels = list(zip(spans(len(lower)), inverses, strict=True))
    for j, inverse in panels:
        x[j] = inverse @ (x[j] - lower[j, : j.start] @ x[: j.start])
    for j, inverse in reversed(panels):
        x[j] = inverse.T @ (x[j] - lower[j.stop :, j].T @ x[j.stop :])


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
