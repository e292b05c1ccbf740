"""What the values of a row may be: a format's levels, scales and minima."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.formats import BlockFormat

Scale = Literal["f16", "bf16", "f32", "fixed"]
_SCALES: dict[str, Scale] = {"f16": "f16", "bf16": "bf16", "f32": "f32", "e8m0": "fixed", "ue4m3": "fixed"}


@dataclass(frozen=True)
class Grid:
    """What a row's values may be: d sc (level - zero) - dmin m.

    low, high  levels, or the ends of `table`
    table      the levels of a non-linear code
    group      values that share sc, m and zero; 0 where all of a row do
    supers     groups that share d and dmin
    integers   the least and the largest sc, and the largest m; None with one level
    has_min    there are minima
    scale      how d and dmin are stored; "fixed" ones stay as the encoder chose them
    """

    low: int
    high: int
    table: tuple[int, ...] | None
    group: int
    supers: int
    integers: tuple[int, int, int] | None
    has_min: bool
    scale: Scale


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
