"""Rows through GPTQ's kernel on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.calibrate.hessian.factor import Factor
from octavo.formats import BlockFormat, Planes
from octavo.formats.spec import F32
from octavo.jit.prepare import end_progress, prepare

BLOCK = 128
"""Columns that a sum over all before them is made for at once."""


@dataclass(frozen=True, eq=False)
class Swept:
    """What was found; see `GptqRows` for the errors [N]."""

    planes: Planes
    before: F32
    after: F32
    bound: float


def sweep(
    target: F32, start: Planes, fmt: BlockFormat, factor: Factor, rounds: int, threads: int, columns: int = BLOCK
) -> Swept:
    """Codes, scales and minima of `target` [N, K], from those of the planes `start` on.

    columns  that are taken as a block, at most BLOCK, in fours
    """
    prepare()
    from octavo.calibrate.methods.gptq.columns_kernel import gptq_kernel
    from octavo.calibrate.methods.gptq.gptq_tiles import from_tiles, grid_of, planes_of, tiles_of, to_tiles
    from octavo.jit.program import KernelCall, Program

    grid, tiles, w = grid_of(fmt), tiles_of(start, fmt), to_tiles(target)
    assert grid is not None
    count, k, _ = w.shape
    memory = {name: np.empty_like(tiles.sc) for name in ("step", "shift")}
    memory |= {name: np.empty_like(w) for name in ("errors", "gradient", "product", "along")}
    before, after = np.empty((2, count, 1, 16), np.float32)
    call = KernelCall(
        gptq_kernel(grid), count, w=w, **vars(tiles), **memory, hessian=factor.hessian, factor=factor.m,
        order=factor.order, damping=factor.added, k=k, columns=columns, rounds=rounds, before=before, after=after,
    )
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
