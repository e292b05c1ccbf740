"""Finds numbers for points of grids whose halves are looked up in short tables: prints those of `cpu/point_halves.py`.

    python tools/point_halves.py

A point is a first half and a last one. Some rectangles, each some first halves times some last ones, are to hold
all points between them: then a number is that of a rectangle, of a first half in it and of a last one. They are found
by trial: each rectangle takes as many points as it can that no other one has, and while some are left, one or
two rectangles are chosen anew.
"""

from __future__ import annotations

import zlib
from base64 import b85encode
from typing import Any

import numpy as np

from octavo.backends.cpu.weights.codebook_halves import IQ1, IQ2_S, IQ3_S, Halves, packed
from octavo.formats import codebook
from octavo.formats.codebook import Codebook

PLACES = {
    "IQ1": (codebook.IQ1, IQ1, [3, 4, 5, 6, 7], [0, 1, 2, 11], [8, 9, 10]),
    "IQ2_S": (codebook.IQ2_S, IQ2_S, [4, 5], [0, 1, 2, 3, 7], [8, 9, 10, 11, 6]),
    "IQ3_S": (codebook.IQ3_S, IQ3_S, [2, 3, 4, 5, 6], [0, 1, 7], [8, 9]),
}
"""Grids, and the bits of a number that are the rectangle's, the first half's and the last one's."""
TRIES, GREEDY_TRIES = 3, 30
Rectangle = tuple[Any, Any]


def rectangles(points: Any, count: int, rows: int, columns: int, rng: np.random.Generator) -> list[Rectangle]:
    """Pairs of rows and columns of a matrix of bool that hold all that is true."""
    covered, found = np.zeros(points.shape, int), []
    for _ in range(count):
        found.append(_densest(points & (covered == 0), rows, columns, GREEDY_TRIES, rng))
        covered[np.ix_(*found[-1])] += 1
    left = int((points & (covered == 0)).sum())
    while left:
        chosen = rng.choice(count, rng.integers(1, 3), replace=False)
        before = [found[i] for i in chosen]
        for rectangle in before:
            covered[np.ix_(*rectangle)] -= 1
        for i in chosen:
            found[i] = _densest(points & (covered == 0), rows, columns, TRIES, rng)
            covered[np.ix_(*found[i])] += 1
        now = int((points & (covered == 0)).sum())
        if now <= left + (rng.random() < 0.02):
            left = now
            continue
        for i, rectangle in zip(chosen, before, strict=True):
            covered[np.ix_(*found[i])] -= 1
            covered[np.ix_(*rectangle)] += 1
            found[i] = rectangle
    return found


def _densest(points: Any, rows: int, columns: int, tries: int, rng: np.random.Generator) -> Rectangle:
    """Rows and columns that hold many points: the best rows for some columns, the best columns for these, and so on."""
    best, result = -1, (np.arange(rows), np.arange(columns))
    for _ in range(tries):
        ys = np.argsort(-points.sum(0) * rng.random(points.shape[1]))[:columns]
        before, held = -1, 0
        while held > before:
            before = held
            xs = np.argsort(-(points[:, ys].sum(1) + 1e-3 * rng.random(points.shape[0])))[:rows]
            ys = np.argsort(-(points[xs].sum(0) + 1e-3 * rng.random(points.shape[1])))[:columns]
            held = int(points[np.ix_(xs, ys)].sum())
        if held > best:
            best, result = held, (xs, ys)
    return result


def tables(points: Codebook, halves: Halves, which: list[int], *parts: list[int]) -> bytes:
    """The entries of the tables of the first and of the last halves."""
    keys = packed(points.entries)
    kinds = [np.unique(k) for k in keys]
    matrix = np.zeros([len(k) for k in kinds], bool)
    matrix[tuple(np.searchsorted(kind, k) for kind, k in zip(kinds, keys, strict=True))] = True
    found = rectangles(matrix, 1 << len(which), 1 << len(parts[0]), 1 << len(parts[1]), np.random.default_rng(0))
    numbers, result = np.arange(1 << (8 + halves.more)), b""
    for i, (places, kind) in enumerate(zip(halves.places(), kinds, strict=True)):
        table = np.zeros(halves.sizes[i], np.uint8)
        chosen = np.stack([kind[np.sort(rectangle[i])] for rectangle in found])
        table[places] = chosen[_bits(numbers, which), _bits(numbers, parts[i])]
        result += table.tobytes()
    return result


def _bits(numbers: Any, places: list[int]) -> Any:
    return sum((numbers >> place & 1) << i for i, place in enumerate(places))


def main() -> None:
    for name, (points, *places) in PLACES.items():
        print(name, b85encode(zlib.compress(tables(points, *places), 9)).decode())


if __name__ == "__main__":
    main()
