"""Where an axis may be cut, and how it is divided among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import lcm

from octavo.formats.part import Cut

ALIGNMENTS = (256, 128, 64, 32)
"""Places that kernels are fastest with, taken where all ranks get as much with them."""


@dataclass(frozen=True)
class Grid:
    """Where an axis of a value may be cut, and what is gained by it.

    unit    at multiples of this
    wall    parts lie between multiples of this, of which there are fewer than ranks: heads that share keys. 0: none
    period  the axis is this long, again and again, and each is cut alike. 0: it is not
    gain    bytes of weights and caches that are divided with the axis; 0: the value is better made by all ranks
    """

    unit: int = 1
    wall: int = 0
    period: int = 0
    gain: int = 0

    def allows(self, cut: Cut, size: int) -> bool:
        """Whether a cut of an axis of this size is along the grid."""
        if any(place % self.unit and place != size for span in cut for place in span):
            return False
        if self.wall and not all(
            a // self.wall == (b - 1) // self.wall or a % self.wall == b % self.wall == 0 for a, b in cut
        ):
            return False
        if not self.period or self.period >= size:
            return True
        first = [(a, b) for a, b in cut if b <= self.period]
        return cut == tuple((start + a, start + b) for start in range(0, size, self.period) for a, b in first)

    def of_units(self, size: int) -> Grid:
        """The grid of an axis whose places are `size` of this one's places each."""
        unit = lcm(self.unit, size) // size
        return Grid(unit, self.wall // size, self.period // size, self.gain)

    def times(self, size: int) -> Grid:
        """The grid of an axis of which `size` places are one of this one's."""
        return Grid(self.unit * size, self.wall * size, self.period * size, self.gain)


WHOLE = Grid()
"""Of values that each rank makes all of."""


def joined(*grids: Grid) -> Grid:
    """Where an axis may be cut that several values have; nowhere if one of them is whole, or their walls differ."""
    walls, periods = ({getattr(g, name) for g in grids} - {0} for name in ("wall", "period"))
    if len(walls) + len(periods) > 1 or not all(g.gain for g in grids):
        return WHOLE
    unit, gain = lcm(1, *(g.unit for g in grids)), sum(g.gain for g in grids)
    return Grid(unit, max(walls, default=0), max(periods, default=0), gain)


def divide(size: int, ranks: int, grid: Grid = WHOLE, multiple: int = 1) -> tuple[Cut, ...] | None:
    """The part of an axis of each rank, at multiples of the grid's unit and of `multiple`; None where one has nothing.

    The first ranks have the larger parts.
    """
    if grid.period and grid.period < size:
        cuts = divide(grid.period, ranks, Grid(grid.unit), multiple)
        if cuts is None or grid.period % multiple:
            return None
        starts = range(0, size, grid.period)
        return tuple(tuple((first + a, first + b) for first in starts for a, b in cut) for cut in cuts)
    unit = lcm(grid.unit, multiple)
    if not grid.wall:
        return _even(size, ranks, next((u for a in ALIGNMENTS if size % ((u := lcm(unit, a)) * ranks) == 0), unit))
    walls, found = size // grid.wall, list[Cut]()
    if grid.wall % unit or walls >= ranks:
        return None
    for i, count in enumerate(_shares(ranks, walls)):
        inner = _even(grid.wall, count, unit)
        if inner is None:
            return None
        found += [tuple((i * grid.wall + a, i * grid.wall + b) for a, b in cut) for cut in inner]
    return tuple(found)


def _even(size: int, ranks: int, unit: int) -> tuple[Cut, ...] | None:
    """Parts of about as many units each; the last unit may be short."""
    units = -(-size // unit)
    if units < ranks:
        return None
    places = [min(size, n * unit) for n in accumulate(_shares(units, ranks), initial=0)]
    return tuple(((a, b),) for a, b in pairwise(places))


def _shares(count: int, among: int) -> list[int]:
    """`count` things among some, the first of whom have one more where they don't divide."""
    return [count // among + (i < count % among) for i in range(among)]
