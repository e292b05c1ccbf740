"""Parts of an axis: every place once, at its borders, and about as much for each rank."""

from __future__ import annotations

from itertools import chain

import pytest

from octavo.formats.part import Cut, size_of
from octavo.graph.shard.cuts import WHOLE, Grid, divide, joined

HEADS = Grid(unit=192, gain=1)

DIVIDED: list[tuple[int, int, Grid, int, list[int]]] = [
    (512, 2, WHOLE, 1, [256, 256]),
    (576, 2, HEADS, 32, [384, 192]),  # SmolLM2's 9 heads of 64, three to a head of keys
    (576, 3, HEADS, 32, [192] * 3),
    (768, 3, WHOLE, 256, [256] * 3),
    (1000, 3, WHOLE, 1, [334, 333, 333]),
    (896, 2, WHOLE, 256, [512, 384]),  # the last block is short
    (49152, 4, WHOLE, 1, [12288] * 4),
    (32, 4, Grid(4, wall=16, gain=1), 1, [8] * 4),  # two heads of keys, four ranks
    (9, 4, Grid(1, wall=3, gain=1), 1, [2, 1, 3, 3]),
    (48, 2, Grid(4, period=16, gain=1), 1, [24, 24]),
]


def parts(size: int, ranks: int, grid: Grid, multiple: int) -> tuple[Cut, ...]:
    found = divide(size, ranks, grid, multiple)
    assert found is not None
    return found


@pytest.mark.parametrize(("size", "ranks", "grid", "multiple", "wanted"), DIVIDED)
def test_parts(size: int, ranks: int, grid: Grid, multiple: int, wanted: list[int]) -> None:
    found = parts(size, ranks, grid, multiple)
    assert list(map(size_of, found)) == wanted
    places = sorted(chain.from_iterable(range(a, b) for cut in found for a, b in cut))
    assert places == list(range(size))
    for a, b in chain.from_iterable(found):
        assert all(place in (0, size) or place % grid.unit == place % multiple == 0 for place in (a, b))
        assert not grid.wall or a // grid.wall == (b - 1) // grid.wall


def test_each_period_is_cut_alike() -> None:
    assert parts(48, 2, Grid(4, period=16, gain=1), 1) == (((0, 8), (16, 24), (32, 40)), ((8, 16), (24, 32), (40, 48)))


@pytest.mark.parametrize(("size", "ranks", "grid", "multiple"), [
    (768, 4, WHOLE, 256),  # fewer blocks than ranks
    (2, 3, WHOLE, 1),
    (512, 4, Grid(128, wall=256, gain=1), 256),
    (16, 4, Grid(1, wall=8, period=4, gain=1), 3),
])
def test_what_can_not_be_divided(size: int, ranks: int, grid: Grid, multiple: int) -> None:
    assert divide(size, ranks, grid, multiple) is None


def test_values_that_are_cut_together() -> None:
    assert joined(Grid(4, gain=5), Grid(6, wall=24, gain=7)) == Grid(12, wall=24, gain=12)
    assert joined(Grid(4, gain=5), WHOLE) == WHOLE
    assert joined(Grid(1, wall=4, gain=5), Grid(1, wall=8, gain=5)) == WHOLE
    assert joined(Grid(1, wall=4, gain=5), Grid(1, period=8, gain=5)) == WHOLE


@pytest.mark.parametrize(("grid", "cut", "allowed"), [
    (Grid(4, gain=1), ((4, 12), (20, 22)), True),  # up to the end
    (Grid(4, gain=1), ((4, 10),), False),
    (Grid(2, wall=8, gain=1), ((2, 6), (8, 22)), False),
    (Grid(2, wall=8, gain=1), ((2, 6), (8, 16)), True),
    (Grid(1, period=11, gain=1), ((2, 6), (13, 17)), True),
    (Grid(1, period=11, gain=1), ((2, 6), (13, 18)), False),
])
def test_what_a_grid_allows(grid: Grid, cut: Cut, allowed: bool) -> None:
    assert grid.allows(cut, 22) == allowed


def test_heads_of_values() -> None:
    assert Grid(48, wall=96, gain=1).of_units(32) == Grid(3, wall=3, gain=1)
    assert Grid(3, wall=6, gain=1).times(32) == Grid(96, wall=192, gain=1)
