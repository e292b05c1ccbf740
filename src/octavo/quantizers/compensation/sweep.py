"""Rows through the kernel that compensates, and the factor of the Hessian that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo.errors import UsageError
from octavo.formats import BlockFormat, Planes
from octavo.formats.spec import F32
from octavo.jit.prepare import end_progress, prepare
from octavo.quantizers.calibration.factor import upper_root

Order = Literal["act", "natural"]
Matrix = npt.NDArray[np.float64]

MOST_DAMPING = 1.0
BLOCK = 128
"""Columns that a sum over all before them is made for at once."""


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


@dataclass(frozen=True, eq=False)
class Swept:
    """What was found; see `Compensated` for the errors [N]."""

    planes: Planes
    before: F32
    after: F32
    bound: float


def factorize(hessian: Matrix, order: Order, damp: float) -> Factor:
    """The factor of `hessian` [K, K]. Raises UsageError where it is far from positive semidefinite."""
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


def sweep(
    target: F32, start: Planes, fmt: BlockFormat, factor: Factor, rounds: int, threads: int, columns: int = BLOCK
) -> Swept:
    """Codes, scales and minima of `target` [N, K], from those of the planes `start` on.

    columns  that are taken as a block, at most BLOCK, in fours
    """
    prepare()
    from octavo.jit.program import KernelCall, Program
    from octavo.quantizers.compensation.planes import from_tiles, grid_of, planes_of, tiles_of, to_tiles
    from octavo.quantizers.encoding.kernels.columns import compensate_kernel

    grid, tiles, w = grid_of(fmt), tiles_of(start, fmt), to_tiles(target)
    assert grid is not None
    count, k, _ = w.shape
    memory = {name: np.empty_like(tiles.sc) for name in ("step", "shift")}
    memory |= {name: np.empty_like(w) for name in ("errors", "gradient", "product")}
    before, after = np.empty((2, count, 1, 16), np.float32)
    call = KernelCall(
        compensate_kernel(grid), count, w=w, **vars(tiles), **memory, hessian=factor.hessian, factor=factor.m,
        order=factor.order, damping=factor.added, k=k, columns=columns, rounds=rounds, before=before, after=after,
    )  # fmt: skip
    bound = _bound(start, fmt, factor)
    Program([call], threads)()
    end_progress()
    errors = (from_tiles(found, len(target))[:, 0] for found in (before, after))
    return Swept(planes_of(tiles, fmt, start), next(errors), next(errors), bound)


def _bound(planes: Planes, fmt: BlockFormat, factor: Factor) -> float:
    """The sum over rows and columns of D (half the widest gap between levels)^2."""
    assert planes.d is not None
    steps = np.repeat(planes.d, fmt.super // fmt.group, axis=-1) * (1 if planes.sc is None else planes.sc)
    gap = float(np.diff(np.sort(fmt.table)).max()) * fmt.step if fmt.table else 1.0
    half = np.square(steps.astype(np.float64) * gap / 2).sum(axis=0)  # [K / G]
    return float(half[factor.order // fmt.group] @ factor.weights)
