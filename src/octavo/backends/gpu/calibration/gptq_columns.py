"""Launches of the kernel that gives columns their levels in turn, so that errors make up for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.backends.gpu.calibration.gptq_columns_kernel import columns_kernel, fit_kernel
from octavo.backends.gpu.launch.arguments import Constant, Pointer, for_triton

BLOCK = 128
"""Columns of a block at most."""
ROWS, WARPS = 32, 4
"""Rows of a program, and its warps."""
ROWS_INTERPRETED = 256
FIT_COLUMNS, FIT_ROWS = 32, 32
"""Columns and rows of a tile of the kernel that fits numbers."""


@dataclass(frozen=True, eq=False)
class LevelTable:
    """Levels that a value may have: integers from `low` to `high`, or, with `steps`, what `table` holds."""

    low: float
    high: float
    steps: int
    mirrored: bool
    table: Tensor

    @classmethod
    def of(cls, low: int, high: int, table: Sequence[int] | None, device: torch.device) -> LevelTable:
        """Integers, or a table that ascends, or whose first half does from 0 and the second is its negative."""
        if table is None:
            return cls(float(low), float(high), 0, False, torch.zeros(1, device=device))
        half = len(table) // 2
        mirrored = table[half] <= table[0]
        entries = list(table[:half] if mirrored else table)
        steps = (len(entries) - 1).bit_length()
        more = (1 << steps) - len(entries)
        halfway = [(a + b) / 2 for a, b in pairwise(entries)] + [float("inf")] * (more + 1)
        places = torch.tensor([*halfway[: (1 << steps) - 1], *entries, *entries[-1:] * more], dtype=torch.float32)
        return cls(float(low), float(high), steps, mirrored, places.to(device))


class ColumnGrid(NamedTuple):
    """What columns are rounded with; all float32 but the order, and [.., N] with a column's rows side by side.

    levels, w              [K, N]; w is not read where codes are gone through again
    step, inverse, shift   [K / size, N]: of groups of `size` columns, 1 / step, 0 where that is 0
    own                    [K], the diagonal of H, which is read where codes are gone through again
    order                  int32 [K], the columns in the order in which they are taken
    table                  of `LevelTable`
    """

    levels: Pointer
    w: Pointer
    step: Pointer
    inverse: Pointer
    shift: Pointer
    own: Pointer
    order: Pointer
    table: Pointer
    size: int


@dataclass(frozen=True)
class ColumnShape(Constant):
    """A program of `columns_kernel`: of `rows` rows, and a tile of `columns`, and what levels there are."""

    low: float
    high: float
    steps: int
    mirrored: bool
    again: bool
    columns: int = BLOCK
    rows: int = ROWS


def take_columns(
    grid: ColumnGrid, choices: LevelTable, base: Tensor, matrix: Tensor, made: Tensor, start: int, *, again: bool
) -> None:
    """Give the columns from the `start`-th on their levels: as many as `base` [count, N] has rows.

    matrix  [count, count], a part of one whose rows may be longer
    made    [count, N], what is found; see the kernel
    """
    count, n = base.shape
    rows = ROWS if base.is_cuda else ROWS_INTERPRETED
    shape = ColumnShape(choices.low, choices.high, choices.steps, choices.mirrored, again, rows=rows)
    columns_kernel[(-(-n // rows),)](
        base, matrix, made, for_triton(grid), n, matrix.stride(0), start, count, shape=for_triton(shape),
        num_warps=WARPS, num_stages=1, enable_fp_fusion=True,
    )


@dataclass(frozen=True)
class NumberType(Constant):
    """What numbers may be: rounded to a type of floats, or ("integer") an integer from `low` to `high`."""

    kind: str
    low: float = 0.0
    high: float = 0.0


def fit(
    along: Tensor, product: Tensor, slope: Tensor, moved: Tensor, number: Tensor, first: int, stored: NumberType
) -> None:
    """Set each row's `number` [N] to what lowers the error most along a direction; see the kernel."""
    (count, n), width = along.shape, len(slope)
    rows, columns = (FIT_ROWS, FIT_COLUMNS) if along.is_cuda else (ROWS_INTERPRETED, ROWS_INTERPRETED)
    fit_kernel[(-(-n // rows),)](
        along, product, slope, moved, number, n, first, count, width, stored=for_triton(stored), COLUMNS=columns,
        ROWS=rows, num_warps=WARPS, num_stages=1, enable_fp_fusion=True,
    )
