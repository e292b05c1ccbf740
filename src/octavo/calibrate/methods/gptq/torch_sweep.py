"""Rows on a device, as tensors of torch, through columns, scales and codes: `sweep` for a GPU.

Columns go through a kernel in Triton in blocks, with what that adds up within the block; what a block means for the
columns behind it is a product of matrices. All arrays are [K, N] here, a column's rows side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo.backends.gpu.calibration.gptq_columns import BLOCK, ColumnGrid, LevelTable, NumberType, fit, take_columns
from octavo.calibrate.hessian.torch_hessian import TorchFactor
from octavo.calibrate.methods.gptq.gptq_tiles import grid_of
from octavo.calibrate.row_batches import made_in_parts
from octavo.calibrate.torch_arrays import VALUES
from octavo.calibrate.torch_rows import TorchPlanes
from octavo.formats import BlockFormat
from octavo.quantizers.matrix_tiles import spans

CHUNK = 1024
"""Columns that a sum of a library's product runs over at most."""


@dataclass(frozen=True, eq=False)
class TorchSwept:
    """What was found; see `GptqRows` for the errors [N]."""

    planes: TorchPlanes
    before: Tensor
    after: Tensor
    bound: float


def sweep(target: Tensor, start: TorchPlanes, fmt: BlockFormat, factor: TorchFactor, rounds: int) -> TorchSwept:
    """Codes, scales and minima of `target` [N, K], from those of the planes `start` on."""
    n, k = target.shape
    parts = spans(n, max(1, VALUES // k))
    found = made_in_parts(parts, lambda rows: _part(target[rows], start.rows(rows), fmt, factor, rounds))
    before, after = (torch.cat([getattr(part, name) for part in found]) for name in ("before", "after"))
    planes = TorchPlanes.joined([part.planes for part in found])
    return TorchSwept(planes, before, after, sum(part.bound for part in found))


def _part(target: Tensor, start: TorchPlanes, fmt: BlockFormat, factor: TorchFactor, rounds: int) -> TorchSwept:
    rows = _Rows(target.T.contiguous(), start, fmt, factor)
    bound = rows.bound()
    before = rows.measure()
    rows.sweep()
    after = rows.measure()
    for _ in range(rounds):
        rows.refine()
        after = rows.measure()
    return TorchSwept(rows.planes(start), before, after, bound)


class _Rows:
    """Rows at work: their weights, and the levels, scales and minima that they have so far, float32.

    w, levels  [K, N]
    d, dmin    [K / S, N]
    sc, m, zero  [K / G, N]
    slope      [K, N]: H e, of errors as they were measured and changed since
    """

    def __init__(self, w: Tensor, start: TorchPlanes, fmt: BlockFormat, factor: TorchFactor) -> None:
        grid = grid_of(fmt)
        assert grid is not None
        self.w, self.fmt, self.factor, self.grid = w, fmt, factor, grid
        self.k, self.n = w.shape
        self.size = grid.group or self.k
        self.levels = self._levels(start.q)
        self.d = _turned(start.d).mul_(fmt.step)
        none = w.new_zeros((self.k // self.size, self.n))
        self.sc = none + 1 if start.sc is None else _turned(start.sc)
        self.dmin = torch.zeros_like(self.d) if start.dmin is None else _turned(start.dmin)
        m = None if start.m is None else _turned(start.m)
        self.zero = none if m is None or not fmt.has_zero else m
        self.m = none + 1 if m is None or fmt.has_zero else m
        self.slope = w.new_empty(0)
        self._m, self._h = factor.products(BLOCK)
        self._order = factor.order.to(torch.int32)
        self._natural = torch.arange(self.k, dtype=torch.int32, device=w.device)
        self._own = factor.hessian.diagonal().contiguous()
        self._choices = LevelTable.of(grid.low, grid.high, grid.table, w.device)

    def _levels(self, q: Tensor) -> Tensor:
        if self.fmt.table:
            return torch.tensor(self.fmt.table, dtype=torch.float32, device=q.device)[q.T.int()].contiguous()
        return _turned(q).sub_(self.fmt.offset)

    def planes(self, like: TorchPlanes) -> TorchPlanes:
        """What was found, with types as `like` has them."""
        q = self.levels + self.fmt.offset
        if self.fmt.table:
            low = min(self.fmt.table)
            code = torch.zeros(max(self.fmt.table) - low + 1, dtype=torch.uint8, device=q.device)
            for i, level in reversed(list(enumerate(self.fmt.table))):  # the first of two equals
                code[level - low] = i
            q = code[(self.levels - low).int()]
        q = q.to(torch.uint8)
        sc = None if like.sc is None else self.sc.to(like.sc.dtype)
        dmin = None if like.dmin is None else self.dmin
        m = None if self.fmt.has_zero or like.m is None else self.m.to(like.m.dtype)
        found = (None if x is None else x.T.contiguous() for x in (q, self.d / self.fmt.step, sc, dmin, m))
        planes = TorchPlanes(*found)  # type: ignore[arg-type]
        return replace(planes, m=like.m) if self.fmt.has_zero else planes

    def _worth(self) -> tuple[Tensor, Tensor]:
        """What a level of each group is worth, step * level - shift: [K / G, N] each."""
        supers = self.grid.supers
        step = self.d.repeat_interleave(supers, 0) * self.sc
        return step, step * self.zero + self.dmin.repeat_interleave(supers, 0) * self.m

    def bound(self) -> float:
        """The sum over rows and columns of D (half the widest gap between levels)^2."""
        table = self.fmt.table
        gap = 1.0 if not table else max(b - a for a, b in zip(sorted(table), sorted(table)[1:], strict=False))
        half = (self._worth()[0].double() * (gap / 2)).square().sum(1)  # [K / G]
        return float(half[self.factor.order // self.size] @ self.factor.weights)

    def measure(self) -> Tensor:
        """e^T H e of each row, damping left out; the slope is found on the way."""
        step, shift = self._worth()
        values = self.levels.view(-1, self.size, self.n) * step[:, None] - shift[:, None]
        e = self.w - values.view_as(self.w)
        self.slope = torch.zeros_like(e)
        for part in spans(self.k, CHUNK):
            self._h.add(self.slope, slice(None), part, self._h.factor(e[part]))
        return (e * (self.slope - self.factor.added * e)).sum(0)

    def _columns(self, order: Tensor) -> ColumnGrid:
        step, shift = self._worth()
        inverse = _ratio(torch.ones_like(step), step)
        return ColumnGrid(self.levels, self.w, step, inverse, shift, self._own, order, self._choices.table, self.size)

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
        stored = NumberType(self.grid.scale)
        for s in range(block.start // count, block.stop // count):
            columns, groups = slice(s * count, (s + 1) * count), slice(s * supers, (s + 1) * supers)
            levels = self.levels[columns].view(supers, self.size, self.n)
            along = (levels - self.zero[groups, None]) * self.sc[groups, None]
            yield columns, along.view(count, self.n), self.d[s], stored
            if self.grid.has_min:
                yield columns, (-self.m[groups]).repeat_interleave(self.size, 0), self.dmin[s], stored

    def _integers(self, block: slice) -> Iterator[Step]:
        """Directions of sc, and of m where there are minima, of each group."""
        assert self.grid.integers is not None
        low, high, top = map(float, self.grid.integers)
        for g in range(block.start // self.size, block.stop // self.size):
            columns, above = slice(g * self.size, (g + 1) * self.size), g // self.grid.supers
            yield columns, self.levels[columns] * self.d[above], self.sc[g], NumberType("integer", low, high)
            if self.grid.has_min:
                along = (-self.dmin[above]).expand(self.size, self.n).contiguous()
                yield columns, along, self.m[g], NumberType("integer", 0.0, top)


Step = tuple[slice, Tensor, Tensor, NumberType]
"""Columns, the direction [columns, N] in them, the number [N] that goes along it, and what that may be."""
Steps = Callable[[slice], Iterator[Step]]


def _turned(x: Tensor) -> Tensor:
    """[N, groups] -> a new float32 [groups, N]."""
    return x.T.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _ratio(x: Tensor, y: Tensor) -> Tensor:
    """x / y, 0 where y is 0."""
    return torch.where(y == 0, 0, x / y)
