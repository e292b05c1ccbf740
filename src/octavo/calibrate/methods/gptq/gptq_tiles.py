"""A matrix as the kernels of GPTQ take it: tiles of 16 rows, a vector for each column; and back to planes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.calibrate.methods.gptq.gptq_rows import ROWS
from octavo.calibrate.methods.gptq.grid import Grid, Scale
from octavo.formats import BlockFormat, Planes
from octavo.formats.spec import F32, U8, AnyArray

_SCALES: dict[str, Scale] = {"f16": "f16", "bf16": "bf16", "f32": "f32", "e8m0": "fixed", "ue4m3": "fixed"}


@dataclass
class Tiles:
    """Arrays of `GPTQ_WAYS`, float32 [tiles, K or K / G or K / S, 16]."""

    levels: F32
    d: F32
    sc: F32
    dmin: F32
    m: F32
    zero: F32


def grid_of(fmt: BlockFormat) -> Grid | None:
    """What values a format's rows may have; None for one whose codes are not each a value's own level."""
    scale = next((_SCALES.get(field.kind) for field in fmt.fields if field.name in ("d", "e")), None)
    plain = fmt.number is None and fmt.codebook is None and not fmt.folds and not fmt.odd_scales
    if not plain or scale is None or (fmt.step != 1.0 and fmt.table is None):
        return None
    codes = 3 if fmt.base3 else 1 << fmt.bits
    low, high = (min(fmt.table), max(fmt.table)) if fmt.table else (-fmt.offset, codes - 1 - fmt.offset)
    top = 1 << max(0, fmt.scale_bits - 1)
    signed = (-top, top - 1, 0)
    unsigned = (0, 2 * top - 1, 2 * top - 1)
    integers = None if not fmt.scale_bits else unsigned if fmt.has_min else signed
    group = 0 if fmt.per_row else fmt.group  # rows of any length by one kernel
    return Grid(low, high, fmt.table, group, fmt.super // fmt.group, integers, fmt.has_min, scale)


def to_tiles(rows: AnyArray) -> F32:
    """[N, columns] -> float32 [tiles, columns, 16]; the last tile's missing rows are 0."""
    n, columns = rows.shape
    padded = np.zeros((-(-n // ROWS) * ROWS, columns), np.float32)
    padded[:n] = rows
    return np.ascontiguousarray(padded.reshape(-1, ROWS, columns).transpose(0, 2, 1))


def from_tiles(tiles: F32, n: int) -> F32:
    """[tiles, columns, 16] -> float32 [n, columns], the inverse of `to_tiles`."""
    return np.ascontiguousarray(tiles.transpose(0, 2, 1).reshape(-1, tiles.shape[1])[:n])


def tiles_of(planes: Planes, fmt: BlockFormat) -> Tiles:
    """The planes of rows [N, K] as tiles."""
    assert planes.d is not None
    groups = (planes.q.shape[0], planes.q.shape[1] // fmt.group)
    ones, none = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    levels = _table(fmt)[planes.q] if fmt.table else planes.q.astype(np.float32) - np.float32(fmt.offset)
    zero = planes.m if fmt.has_zero else None
    m = None if fmt.has_zero else planes.m
    return Tiles(
        to_tiles(levels), to_tiles(planes.d * np.float32(fmt.step)),
        to_tiles(ones if planes.sc is None else planes.sc),
        to_tiles(np.zeros_like(planes.d) if planes.dmin is None else planes.dmin),
        to_tiles(ones if m is None else m), to_tiles(none if zero is None else zero),
    )


def planes_of(tiles: Tiles, fmt: BlockFormat, like: Planes) -> Planes:
    """The planes that tiles come to, with types as `like` has them."""
    n = len(like.q)
    levels = from_tiles(tiles.levels, n)
    sc = None if like.sc is None else from_tiles(tiles.sc, n).astype(like.sc.dtype)
    dmin = None if like.dmin is None else from_tiles(tiles.dmin, n)
    m = like.m if fmt.has_zero or like.m is None else from_tiles(tiles.m, n).astype(np.uint8)
    d = from_tiles(tiles.d, n) / np.float32(fmt.step)
    return Planes(_codes(levels, fmt), d=d, sc=sc, dmin=dmin, m=m)


def _table(fmt: BlockFormat) -> F32:
    return np.array(fmt.table, np.float32)


def _codes(levels: F32, fmt: BlockFormat) -> U8:
    if not fmt.table:
        return (levels + np.float32(fmt.offset)).astype(np.uint8)
    low = min(fmt.table)
    code = np.zeros(max(fmt.table) - low + 1, np.uint8)
    for i, level in reversed(list(enumerate(fmt.table))):  # the first of two equals
        code[level - low] = i
    at: npt.NDArray[np.intp] = levels.astype(np.intp) - low
    return code[at]
