"""Rows on a grid: what their values may be, and how scales and codes are gone through so that errors make up.

The kernels do it: on the CPU `columns_kernel`, on a device what `torch_sweep` launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from octavo.calibrate import arrays
from octavo.calibrate.hessian import Factor
from octavo.calibrate.methods.gptq.grid import grid_of
from octavo.formats import BlockFormat, Planes
from octavo.formats.spec import F32, AnyArray
from octavo.jit.prepare import end_progress, prepare

BLOCK = 128
"""Columns that a sum over all before them is made for at once."""
ROWS = 16
"""Rows of a tile, on the CPU."""


@dataclass(frozen=True, eq=False)
class Swept:
    """What was found; see `GptqRows` for the errors [N]."""

    planes: Planes
    before: Any
    after: Any
    bound: float


def to_tiles(rows: AnyArray) -> F32:
    """[N, columns] -> float32 [tiles, columns, 16]; the last tile's missing rows are 0."""
    n, columns = rows.shape
    padded = np.zeros((-(-n // ROWS) * ROWS, columns), np.float32)
    padded[:n] = rows
    return np.ascontiguousarray(padded.reshape(-1, ROWS, columns).transpose(0, 2, 1))


def from_tiles(tiles: F32, n: int) -> F32:
    """[tiles, columns, 16] -> float32 [n, columns], the inverse of `to_tiles`."""
    return np.ascontiguousarray(tiles.transpose(0, 2, 1).reshape(-1, tiles.shape[1])[:n])


@dataclass
class GridValues:
    """Numbers of rows on a grid, d sc (level - zero) - dmin m: float32, each as a kernel has it.

    On the CPU that is [tiles, K or K / G or K / S, 16], on a device [K or K / G or K / S, N].
    """

    levels: Any
    d: Any
    sc: Any
    dmin: Any
    m: Any
    zero: Any

    @classmethod
    def of(cls, planes: Planes, fmt: BlockFormat, lay: Callable[[Any], Any]) -> GridValues:
        """The numbers of planes; `lay` gives [N, columns] as a kernel has it."""
        none = arrays.single(planes.q[:, :: fmt.group]) * 0
        table = None if fmt.table is None else np.array(fmt.table, np.float32)
        levels = arrays.single(planes.q) - fmt.offset if table is None else arrays.gather(table, planes.q)
        d, sc, dmin, m = planes.d, planes.sc, planes.dmin, planes.m
        assert d is not None
        found = (levels, d * fmt.step, none + 1 if sc is None else sc, d * 0 if dmin is None else dmin,
                 none + 1 if m is None or fmt.has_zero else m, m if m is not None and fmt.has_zero else none)
        return cls(*map(lay, found))

    def planes(self, fmt: BlockFormat, like: Planes, back: Callable[[Any], Any]) -> Planes:
        """The planes that they come to, with types as `like` has them; `back` is the inverse of `lay`."""
        q = back(self.levels)
        if fmt.table:
            low = min(fmt.table)
            code = np.zeros(max(fmt.table) - low + 1, np.uint8)
            for i, level in reversed(list(enumerate(fmt.table))):  # the first of two equals
                code[level - low] = i
            q = arrays.gather(code, q - low)
        else:
            q = q + fmt.offset
        sc = None if like.sc is None else arrays.cast(back(self.sc), like.sc)
        dmin = None if like.dmin is None else back(self.dmin)
        m = like.m if fmt.has_zero or like.m is None else arrays.cast(back(self.m), like.m)
        return Planes(arrays.cast(q, like.q), d=back(self.d) / fmt.step, sc=sc, dmin=dmin, m=m)


def bound(planes: Planes, fmt: BlockFormat, factor: Factor) -> float:
    """The sum over rows and columns of D (half the widest gap between levels)^2."""
    assert planes.d is not None
    steps = arrays.repeat(planes.d, fmt.super // fmt.group)
    steps = steps if planes.sc is None else steps * arrays.single(planes.sc)
    gap = max(b - a for a, b in pairwise(sorted(fmt.table))) * fmt.step if fmt.table else 1.0
    half = ((arrays.double(steps) * gap / 2) ** 2).sum(0)  # [K / G]
    return float(half[factor.order // fmt.group] @ factor.weights)


def sweep(
    target: F32, start: Planes, fmt: BlockFormat, factor: Factor, rounds: int, threads: int, columns: int = BLOCK
) -> Swept:
    """Codes, scales and minima of `target` [N, K], from those of the planes `start` on, on the CPU.

    columns  that are taken as a block, at most BLOCK, in fours
    """
    prepare()
    from octavo.calibrate.methods.gptq.columns_kernel import gptq_kernel
    from octavo.jit.program import KernelCall, Program

    grid, tiles, w = grid_of(fmt), GridValues.of(start, fmt, to_tiles), to_tiles(target)
    assert grid is not None
    count, k, _ = w.shape
    memory = {name: np.empty_like(tiles.sc) for name in ("step", "shift")}
    memory |= {name: np.empty_like(w) for name in ("errors", "gradient", "product", "along")}
    before, after = np.empty((2, count, 1, 16), np.float32)
    call = KernelCall(
        gptq_kernel(grid), count, w=w, **vars(tiles), **memory, hessian=factor.hessian, factor=factor.m,
        order=factor.order, damping=factor.added, k=k, columns=columns, rounds=rounds, before=before, after=after,
    )
    Program([call], threads)()
    end_progress()
    n = len(target)
    errors = (from_tiles(found, n)[:, 0] for found in (before, after))
    planes = tiles.planes(fmt, start, lambda x: from_tiles(x, n))
    return Swept(planes, next(errors), next(errors), bound(start, fmt, factor))
