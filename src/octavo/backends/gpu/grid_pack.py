"""Rows of a format with a grid in the GPU layout and back, in NumPy (see `layout`)."""

from __future__ import annotations

import numpy as np

from octavo.backends.gpu.layout import HALF, Layout
from octavo.formats.grid import Grid
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Planes


def point_words(fmt: BlockFormat) -> AnyArray:
    """Values of points as signed bytes, four in a word: int32 [numbers * width / 4]."""
    assert fmt.grid is not None
    table, codes = np.array(fmt.table, np.int8), fmt.grid.points
    if fmt.grid.shared:
        codes = np.concatenate([codes, codes | np.uint8(1 << fmt.grid.bits)])
    return table[codes].reshape(-1).view(np.int32)


def pack_points(planes: Planes, grid: Grid, layout: Layout) -> dict[str, AnyArray]:
    """The parts of rows [N, K] that stand for codes and small scales, by name."""
    assert layout.grid is not None
    assert planes.sc is not None
    index, marks = grid.numbers(planes.q)
    more = layout.grid.more
    if grid.shared:
        index = index | ((marks & 1).astype(np.uint16) << np.uint16(more + 7))
    pairs = _paired(index, grid.width)
    parts: dict[str, AnyArray] = {"low": _bytes(pairs.astype(np.uint8))}
    if more:
        fields = (pairs >> np.uint16(8)).astype(np.uint8).reshape(len(index), -1, 8 // more)
        parts["upper"] = np.bitwise_or.reduce(fields << (more * np.arange(8 // more, dtype=np.uint8)), axis=-1)
    if layout.grid.marks:
        parts["marks"] = _bytes(_paired(marks, 8))
    small = _paired((planes.sc.view(np.uint8) >> np.uint8(1)).astype(np.uint8), layout.group)
    parts["small"] = small[..., 0] | (small[..., 1] << np.uint8(4))
    return parts


def unpack_points(parts: dict[str, AnyArray], d: F32, grid: Grid, layout: Layout) -> Planes:
    """The inverse of `pack_points`; d float32 [N, K / S]."""
    assert layout.grid is not None
    more = layout.grid.more
    pairs = parts["low"].view(np.uint8).reshape(len(d), -1, 2).astype(np.uint16)
    if more:
        fields = parts["upper"][..., None] >> (more * np.arange(8 // more, dtype=np.uint8)) & np.uint8((1 << more) - 1)
        pairs |= fields.reshape(pairs.shape).astype(np.uint16) << np.uint16(8)
    index = _unpaired(pairs, grid.width)
    if layout.grid.marks:
        marks = _unpaired(parts["marks"].view(np.uint8).reshape(len(d), -1, 2), 8)
    else:
        marks = (index >> np.uint16(more + 7)).astype(np.uint8) * np.uint8(255)
        index = index & np.uint16((1 << (more + 7)) - 1)
    small = np.stack([parts["small"] & 15, parts["small"] >> 4], axis=-1)
    sc = (2 * _unpaired(small, layout.group) + 1).astype(np.int8)
    return Planes(grid.codes(index, marks), d=d, sc=sc)


def _paired(a: AnyArray, width: int) -> AnyArray:
    """[N, K / width] -> [N, K / 2 width, 2]: what is of a tile's first half beside its counterpart of the second."""
    split = a.reshape(len(a), -1, 2, HALF // width).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(split).reshape(len(a), -1, 2)


def _unpaired(pairs: AnyArray, width: int) -> AnyArray:
    """The inverse of `_paired`."""
    split = pairs.reshape(len(pairs), -1, HALF // width, 2).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(split).reshape(len(pairs), -1)


def _bytes(a: U8) -> U8:
    return a.reshape(len(a), -1)
