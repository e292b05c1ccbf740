"""Types of the KV cache: how a key or a value [D] of a head is stored. The table that everything else reads.

A stored number times its scale is the value. `fp8` numbers are e4m3, cut off at their largest, 448. Scales of heads are
dynamic, float32, one beside each key and each value; or static, one for all keys (or values) of a layer's head, and
larger magnitudes than the largest number's are cut off.

`int4` numbers are -8 to 7; the value of a group that is largest becomes -8, so that a scale can be negative. Heads are
rotated before (`rotation.py`), and queries with them; what attention makes of values is rotated back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo.formats import rows
from octavo.formats.codec import dequantize, quantize_reference
from octavo.formats.rotation import rotate, rotate_back
from octavo.formats.scalars import e4m3_to_f32, f32_to_e4m3
from octavo.formats.spec import F32
from octavo.formats.table import by_name

HEAD = 0
"""`group` of a type whose scales belong to all values of a head."""


@dataclass(frozen=True)
class CacheFormat:
    """A row of the table of cache types.

    number      what is stored: "f32", "f16", "s8", "e4m3" or "s4"
    bits        of a number
    group       values that share a scale, or HEAD; None: there are no scales
    scale_bits  of a scale
    rotated     heads are rotated before they are stored
    """

    name: str
    number: Literal["f32", "f16", "s8", "e4m3", "s4"]
    bits: int
    group: int | None = None
    scale_bits: int = 0
    rotated: bool = False

    @property
    def can_be_static(self) -> bool:
        """Whether a head can have one scale for all its keys, or values."""
        return self.group == HEAD

    @property
    def gains_by_clips(self) -> bool:
        """Whether numbers with a static scale become finer where it is smaller: floats only move their exponents."""
        return self.can_be_static and self.number == "s8"

    @property
    def top(self) -> float:
        """The largest number of one with scales of heads."""
        return rows.INT8_TOP if self.number == "s8" else rows.FP8_TOP["e4m3"]

    def row_bytes(self, dim: int, static: bool = False) -> float:
        """Bytes of a head's key or value of `dim` values, with the scales that lie beside it."""
        scales = dim // self.group if self.group else int(self.group == HEAD and not static)
        return (dim * self.bits + scales * self.scale_bits) / 8

    def fits(self, dim: int) -> bool:
        """Whether heads of `dim` values can be stored."""
        return not self.group or dim % self.group == 0

    def rounded(self, values: npt.ArrayLike, static: F32 | None = None) -> F32:
        """What is left of values [..., H, D] once they are stored: the definition. `static` are the scales [H] of a
        type of heads' scales, if they are not dynamic.

        With codes NaN raises QuantFormatError.
        """
        x: F32 = np.asarray(values, np.float32)
        if self.group is None:
            with np.errstate(over="ignore"):
                return x.astype(np.float16).astype(np.float32) if self.number == "f16" else x
        if self.number == "s4":
            groups = rotate(x).reshape(*x.shape[:-1], -1, self.group)
            return rotate_back(_in_four_bits(groups).reshape(x.shape))
        if self.group != HEAD:
            return dequantize(quantize_reference(x, by_name(self.name.upper())))
        scales = rows.symmetric_scale(x, self.top) if static is None else np.broadcast_to(static, x.shape[:-1])
        numbers = rows.in_range(x, scales, self.top)
        kept = np.rint(numbers) if self.number == "s8" else e4m3_to_f32(f32_to_e4m3(numbers))
        return kept * scales[..., None]


def _in_four_bits(groups: F32) -> F32:
    """What is left of values [..., n] as numbers from -8 to 7 times an f16 scale of them all."""
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    sign = np.where(groups.max(axis=-1, keepdims=True) == largest, np.float32(-1), np.float32(1))
    with np.errstate(over="ignore"):
        scale = (largest * sign / np.float32(8)).astype(np.float16).astype(np.float32)
    numbers = groups / np.where(scale == 0, np.float32(1), scale)
    kept: F32 = np.clip(np.rint(numbers), -8, 7) * scale
    return kept


CACHE_FORMATS: dict[str, CacheFormat] = {
    row.name: row
    for row in (
        CacheFormat("f32", "f32", 32),
        CacheFormat("f16", "f16", 16),
        CacheFormat("q8_0", "s8", 8, 32, 16),
        CacheFormat("int8", "s8", 8, HEAD, 32),
        CacheFormat("fp8", "e4m3", 8, HEAD, 32),
        CacheFormat("int4", "s4", 4, 32, 16, rotated=True),
    )
}
