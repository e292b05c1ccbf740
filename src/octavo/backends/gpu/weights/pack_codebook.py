"""Rows of a format with a grid in the GPU layout and back, in NumPy (see `layout`)."""

from __future__ import annotations

import numpy as np

from octavo.backends.gpu.weights.layout import HALF, IN_ORDER, Layout, Points
from octavo.formats.codebook import Codebook, gather, spread
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Planes


def point_words(fmt: BlockFormat, layout: Layout) -> AnyArray:
    """What kernels look up for each number, int32 [numbers]: signed bytes, or codes of the layout's table."""
    assert fmt.codebook is not None
    assert layout.grid is not None
    codes = fmt.codebook.entries
    if fmt.codebook.shared:
        codes = np.concatenate([codes, codes | np.uint8(1 << fmt.codebook.bits)])
    if layout.grid.table is None:
        return np.array(fmt.table, np.int8)[codes].reshape(-1).view(np.int32)
    return (codes[:, ::2] | (codes[:, 1::2] << np.uint8(4))).reshape(-1).view(np.int32)


def in_order(codes: U8) -> U8:
    """Codes of points with a mark above their bits <-> codes of four bits in two's complement (see `layout`)."""
    ordered: U8 = np.array(IN_ORDER, np.uint8)[codes]
    return ordered


def pack_points(planes: Planes, grid: Codebook, layout: Layout) -> dict[str, AnyArray]:
    """The parts of rows [N, K] that stand for codes and small scales, by name."""
    assert layout.grid is not None
    assert planes.sc is not None
    n, more = len(planes.q), layout.grid.more
    index, marks = grid.indices(planes.q)
    if grid.shared:
        index = index | ((marks & 1).astype(np.uint16) << np.uint16(more + 7))
    index = _in_turn(index, grid.width)
    parts: dict[str, AnyArray] = {"low": index.astype(np.uint8)}
    if more:
        words = (index >> np.uint16(8)).astype(np.uint8).reshape(n, -1, layout.grid.sharing, 4)
        parts["upper"] = np.bitwise_or.reduce(words << _places(layout.grid), axis=2).reshape(n, -1)
    if layout.grid.marks:
        bits = _in_turn(spread(marks), 1, grid.width).reshape(n, -1, layout.grid.per_chunk, grid.width)
        parts["marks"] = gather(bits.transpose(0, 1, 3, 2).reshape(n, -1))
    small = _in_turn((planes.sc.view(np.uint8) >> np.uint8(1)).astype(np.uint8), layout.group)
    parts["small"] = small[:, ::2] | (small[:, 1::2] << np.uint8(4))
    return parts


def unpack_points(parts: dict[str, AnyArray], d: F32, grid: Codebook, layout: Layout) -> Planes:
    """The inverse of `pack_points`; d float32 [N, K / S]."""
    assert layout.grid is not None
    n, more = len(d), layout.grid.more
    index = parts["low"].astype(np.uint16)
    if more:
        words = parts["upper"].reshape(n, -1, 1, 4) >> _places(layout.grid) & np.uint8((1 << more) - 1)
        index |= words.reshape(n, -1).astype(np.uint16) << np.uint16(8)
    index = _apart(index, grid.width)
    if layout.grid.marks:
        bits = spread(parts["marks"]).reshape(n, -1, grid.width, layout.grid.per_chunk)
        marks = gather(_apart(bits.transpose(0, 1, 3, 2).reshape(n, -1), 1, grid.width))
    else:
        marks = (index >> np.uint16(more + 7)).astype(np.uint8) * np.uint8(255)
        index = index & np.uint16((1 << (more + 7)) - 1)
    small = np.stack([parts["small"] & 15, parts["small"] >> 4], axis=-1).reshape(n, -1)
    sc = (2 * _apart(small, layout.group) + 1).astype(np.int8)
    return Planes(grid.codes(index, marks), d=d, sc=sc)


def _places(grid: Points) -> U8:
    """Where the upper bits of words of low bits go in the word that they share."""
    return (grid.more * np.arange(grid.sharing, dtype=np.uint8))[:, None]


def _in_turn(a: AnyArray, width: int, each: int = 1) -> AnyArray:
    """[N, K / width], of each tile first what is of its low half -> low and high in turn, `each` at a time."""
    split = a.reshape(len(a), -1, 2, HALF // width // each, each).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(split).reshape(len(a), -1)


def _apart(a: AnyArray, width: int, each: int = 1) -> AnyArray:
    """The inverse of `_in_turn`."""
    split = a.reshape(len(a), -1, HALF // width // each, 2, each).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(split).reshape(len(a), -1)
