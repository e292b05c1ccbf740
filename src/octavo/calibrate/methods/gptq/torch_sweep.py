"""Rows on a device, as tensors of torch, through columns, scales and codes: `sweep` for a GPU.

Columns go through a kernel in Triton in blocks, with what that adds up within the block; what a block means for the
columns behind it is a product of matrices. All tensors are [K, N] here, a column's rows side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from octavo.backends.gpu.calibration.gptq_columns import BLOCK, ColumnGrid, LevelTable, NumberType, fit, take_columns
from octavo.calibrate.arrays import rounded_factors
from octavo.calibrate.hessian import Factor
from octavo.calibrate.methods.gptq.grid import grid_of
from octavo.calibrate.methods.gptq.sweep import GridValues, Swept, bound
from octavo.formats import BlockFormat, Planes
from octavo.quantizers.matrix_tiles import spans

CHUNK = 1024
"""Columns that a sum of a library's product runs over at most."""


class Products:
    """A float32 matrix A [M, J] in whose products with others sums run over some columns of it at a time.

    split  for tensor cores: each number is a sum of two of 11 bits, whose products are exact. A is kept as (upper,
           upper, lower) for each `block` columns, what it is multiplied with becomes (upper, lower, upper), and the
           product of both lower parts is left out: a part in 2^22
    """

    def __init__(self, a: Tensor, block: int, *, split: bool) -> None:
        self._block, self._times = block, 3 if split else 1
        self._a = a
        if split:
            high, low = _halves(a)
            self._a = torch.cat([p[:, c] for c in spans(a.shape[1], block) for p in (high, high, low)], 1)

    def factor(self, b: Tensor) -> Tensor:
        """B [j, N] as `add` takes it, of whole blocks or the last ones."""
        if self._times == 1:
            return b
        high, low = _halves(b)
        return torch.cat([part[rows] for rows in spans(len(b), self._block) for part in (high, low, high)])

    def add(self, total: Tensor, rows: slice, columns: slice, factor: Tensor) -> None:
        """Add A[rows, columns] B to total [rows, N], by B's factor."""
        part = self._a[rows, self._times * columns.start : self._times * columns.stop]
        with rounded_factors(self._times > 1):
            total.addmm_(part, factor)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The upper 11 bits of float32 numbers, and what is left."""
    high = (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)
    return high, x - high


def sweep_on_device(target: Tensor, start: Planes, fmt: BlockFormat, factor: Factor, rounds: int) -> Swept:
    """Codes, scales and minima of `target` [N, K], from those of the planes `start` on."""
    rows = _Rows(target.T.contiguous(), start, fmt, factor)
    before = rows.measure()
    rows.sweep()
    after = rows.measure()
    for _ in range(rounds):
        rows.refine()
        after = rows.measure()
    planes = rows.values.planes(fmt, start, lambda x: x.T.contiguous())
    return Swept(planes, before, after, bound(start, fmt, factor))


class _Rows:
    """Rows at work: their weights, and the values that they have so far, see `GridValues`.

    w      [K, N]
    slope  [K, N]: H e, of errors as they were measured and changed since
    """

    def __init__(self, w: Tensor, start: Planes, fmt: BlockFormat, factor: Factor) -> None:
        grid = grid_of(fmt)
        assert grid is not None
        self.w, self.factor, self.grid, self.values = w, factor, grid, GridValues.of(start, fmt, _turned)
        self.k, self.n = w.shape
        self.size = grid.group or self.k
        self.slope = w.new_empty(0)
        if not factor.prepared:
            split = w.is_cuda and torch.version.cuda is not None
            factor.prepared.extend(Products(a, BLOCK, split=split) for a in (factor.m, factor.hessian))
        self._m, self._h = factor.prepared
        self._order = factor.order.to(torch.int32)
        self._natural = torch.arange(self.k, dtype=torch.int32, device=w.device)
        self._own = factor.hessian.diagonal().contiguous()
        self._choices = LevelTable.of(grid.low, grid.high, grid.table, w.device)

    def _worth(self) -> tuple[Tensor, Tensor]:
        """What a level of each group is worth, step * level - shift: [K / G, N] each."""
        supers = self.grid.supers
        v = self.values
        step = v.d.repeat_interleave(supers, 0) * v.sc
        return step, step * v.zero + v.dmin.repeat_interleave(supers, 0) * v.m

    def measure(self) -> Tensor:
        """e^T H e of each row, damping left out; the slope is found on the way."""
        step, shift = self._worth()
        values = self.values.levels.view(-1, self.size, self.n) * step[:, None] - shift[:, None]
        e = self.w - values.view_as(self.w)
        self.slope = torch.zeros_like(e)
        for part in spans(self.k, CHUNK):
            self._h.add(self.slope, slice(None), part, self._h.factor(e[part]))
        found: Tensor = (e * (self.slope - self.factor.added * e)).sum(0)
        return found

    def _columns(self, order: Tensor) -> ColumnGrid:
        step, shift = self._worth()
        inverse = _ratio(torch.ones_like(step), step)
        levels, table = self.values.levels, self._choices.table
        return ColumnGrid(levels, self.w, step, inverse, shift, self._own, order, table, self.size)

    def sweep(self) -> None:
        """Each column in turn its nearest level, with what columns before it leave to be made up for."""
        columns, base, m = self._columns(self._order), self.w[self.factor.order], self.factor.m
        made = self.w.new_empty((BLOCK, self.n))
        for block in spans(self.k, BLOCK):
            off = made[: block.stop - block.start]
            take_columns(columns, self._choices, base[block], m[block, block], off, block.start, again=False)
            if block.stop < self.k:
                self._m.add(base[block.stop :], slice(block.stop, None), block, self._m.factor(off))

    def refine(self) -> None:
        """Scales and minima, then levels, each where it lowers the error most while all others stay."""
        if self.grid.scale != "fixed":
            self._fit(self._floating)
        if self.grid.integers is not None:
            self._fit(self._integers)
        columns, h = self._columns(self._natural), self.factor.hessian
        made = self.w.new_empty((BLOCK, self.n))
        for block in spans(self.k, BLOCK):
            moved = made[: block.stop - block.start]
            take_columns(columns, self._choices, self.slope[block], h[block, block], moved, block.start, again=True)
            if block.stop < self.k:
                self._h.add(self.slope[block.stop :], slice(block.stop, None), block, self._h.factor(moved))

    def _fit(self, steps: Steps) -> None:
        """Take steps along directions, a block of columns after the other; in the end the slope is all's."""
        whole = self.size * self.grid.supers
        h, width = self.factor.hessian, max(whole, BLOCK // whole * whole)
        for block in spans(self.k, width):
            alone = block.stop - block.start == self.k
            inside = self.slope if alone else self.slope[block].clone()
            moved = torch.zeros_like(inside)
            for columns, along, number, stored in steps(block):
                product = h[block, columns] @ along
                fit(along, product, inside, moved, number, columns.start - block.start, stored)
            if not alone:
                self._h.add(self.slope, slice(None), block, self._h.factor(moved))

    def _floating(self, block: slice) -> Iterator[Step]:
        """Directions of d, and of dmin where there are minima, of each super-block."""
        supers, count = self.grid.supers, self.size * self.grid.supers
        stored, v = NumberType(self.grid.scale), self.values
        for s in range(block.start // count, block.stop // count):
            columns, groups = slice(s * count, (s + 1) * count), slice(s * supers, (s + 1) * supers)
            levels = v.levels[columns].view(supers, self.size, self.n)
            along = (levels - v.zero[groups, None]) * v.sc[groups, None]
            yield columns, along.view(count, self.n), v.d[s], stored
            if self.grid.has_min:
                yield columns, (-v.m[groups]).repeat_interleave(self.size, 0), v.dmin[s], stored

    def _integers(self, block: slice) -> Iterator[Step]:
        """Directions of sc, and of m where there are minima, of each group."""
        assert self.grid.integers is not None
        v, (low, high, top) = self.values, map(float, self.grid.integers)
        for g in range(block.start // self.size, block.stop // self.size):
            columns, above = slice(g * self.size, (g + 1) * self.size), g // self.grid.supers
            yield columns, v.levels[columns] * v.d[above], v.sc[g], NumberType("integer", low, high)
            if self.grid.has_min:
                along = (-v.dmin[above]).expand(self.size, self.n).contiguous()
                yield columns, along, v.m[g], NumberType("integer", 0.0, top)


Step = tuple[slice, Tensor, Tensor, NumberType]
"""Columns, the direction [columns, N] in them, the number [N] that goes along it, and what that may be."""
Steps = Callable[[slice], Iterator[Step]]


def _turned(x: Tensor) -> Tensor:
    """[N, groups] -> a new float32 [groups, N]."""
    return x.T.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _ratio(x: Tensor, y: Tensor) -> Tensor:
    """x / y, 0 where y is 0."""
    return torch.where(y == 0, 0, x / y)
