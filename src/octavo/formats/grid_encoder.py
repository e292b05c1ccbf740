"""Values to planes of a format with a grid, the plain way: the nearest point at the scale that a group's peak asks for.

As all of `encoders`, this searches for no better scale and knows no importance weights.
"""

from __future__ import annotations

import numpy as np

from octavo.formats.encoders import as_f16, by_groups, flat_groups, inverse
from octavo.formats.grid import MARKED, Grid, gather, parity, spread
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Planes

ROOM = 0.8
"""The share of a grid's largest value that a group's peak is put at: few points have several large values."""


def on_grid(fmt: BlockFormat, x: F32) -> Planes:
    """Every format with a grid."""
    assert fmt.grid is not None
    assert fmt.table is not None
    table = np.array(fmt.table, np.float32) * np.float32(fmt.step)
    groups = by_groups(x, fmt.group)
    wanted = np.abs(groups).max(axis=-1) / (table.max() * np.float32(1 if fmt.grid.shared else ROOM))
    top = 2 * (1 << fmt.scale_bits) - 1
    of_super = by_groups(wanted, fmt.super // fmt.group)
    d = as_f16(of_super.max(axis=-1) / np.float32(top))
    s = np.clip(np.rint((of_super * inverse(d[..., None]) - 1) / 2), 0, (top - 1) // 2)
    sc = flat_groups((2 * s + 1).astype(np.int8))
    scale = np.repeat(d, fmt.super // fmt.group, axis=-1) * sc.astype(np.float32)
    y = flat_groups(groups * inverse(scale[..., None]))  # values in units of the table
    index, marks = (_shifted if fmt.grid.shared else _with_signs)(fmt, table, y)
    return Planes(fmt.grid.codes(index, marks), d=d, sc=sc)


def _nearest(grid: Grid, values: F32, y: F32) -> tuple[AnyArray, F32]:
    """Numbers of the points nearest to y [..., points, width], whose sizes mean `values`, and what is left of it."""
    points = values[grid.points]  # [size, width]
    cost = np.sum(points * points, axis=-1) - 2 * (y @ points.T)
    index = cost.argmin(axis=-1)
    return index.astype(np.uint16), np.square(y - points[index]).sum(axis=-1)


def _with_signs(fmt: BlockFormat, table: F32, y: F32) -> tuple[AnyArray, U8]:
    """Signs are those of the values; where their number must be even, the smallest of eight may get the wrong one."""
    grid = fmt.grid
    assert grid is not None
    marks = gather(y < 0)
    if grid.even:
        octets = np.abs(by_groups(y, MARKED))
        flip = np.uint8(1) << octets.argmin(axis=-1).astype(np.uint8)
        marks = marks ^ (flip * parity(marks))
    signed = np.where(spread(marks), -y, y)
    return _nearest(grid, table[: 1 << grid.bits], by_groups(signed, grid.width))[0], marks


def _shifted(fmt: BlockFormat, table: F32, y: F32) -> tuple[AnyArray, U8]:
    """Of both marks that a group can have, the one that leaves less."""
    grid = fmt.grid
    assert grid is not None
    half = 1 << grid.bits
    points = by_groups(y, grid.width)
    found = [_nearest(grid, values, points) for values in (table[:half], table[half:])]
    left = [flat_groups(np.repeat(by_groups(e, fmt.group // 8).sum(axis=-1, keepdims=True), fmt.group // 8, axis=-1))
            for _, e in found]
    marked = left[1] < left[0]
    return np.where(marked, found[1][0], found[0][0]), marked.astype(np.uint8) * np.uint8(255)
