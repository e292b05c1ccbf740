"""What a stored format is: a grouped affine code with at most two levels of scale.

    w[n, k] = d[n, k // S] * sc[n, k // G] * code(q[n, k])  -  dmin[n, k // S] * m[n, k // G]

A `BlockFormat` is one row of the format table; `Planes` are the parts of a tensor stored in it, taken out of their
packed bytes. Kernels are specialised on the planes' properties (bits, group, super-block, min, table) and never on a
format's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Field:
    """A field of a packed block: `count` little-endian values of `dtype`, at `offset` bytes (set by the format)."""

    name: str
    dtype: np.dtype[Any]
    count: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * self.count


def f32(name: str, count: int = 1) -> Field:
    return Field(name, np.dtype("<f4"), count)


def f16(name: str, count: int = 1) -> Field:
    return Field(name, np.dtype("<f2"), count)


def u8(name: str, count: int = 1) -> Field:
    return Field(name, np.dtype("u1"), count)


def s8(name: str, count: int = 1) -> Field:
    return Field(name, np.dtype("i1"), count)


def u16(name: str, count: int = 1) -> Field:
    return Field(name, np.dtype("<u2"), count)


def s16(name: str, count: int = 1) -> Field:
    return Field(name, np.dtype("<i2"), count)


def u32(name: str, count: int = 1) -> Field:
    return Field(name, np.dtype("<u4"), count)


@dataclass(frozen=True)
class Planes:
    """The parts of a matrix [..., N, K] (leading axes, for experts, are kept).

    q     codes: uint8 [..., K] for an integer or table code; the float array itself for a float format
    d     scale of a super-block: float32 [..., K / S]; None for a float format
    sc    scale of a group: int8 or uint8 [..., K / G]; None where there is one level only
    dmin  minimum of a super-block: float32 [..., K / S]; None without minima
    m     minimum of a group: uint8 [..., K / G]; None where there is one level only
    """

    q: AnyArray
    d: F32 | None = None
    sc: AnyArray | None = None
    dmin: F32 | None = None
    m: U8 | None = None


Unpack = Callable[[dict[str, AnyArray]], Planes]


@dataclass(frozen=True)
class BlockFormat:
    """A row of the format table.

    block       values in a block
    bits        bits of a code (of a value, for a float format)
    group       G, the values that share a scale
    super       S, the values that share a floating scale; equal to `group` where there is one level
    offset      code(q) = q - offset
    table       or code(q) = table[q]: the signed bytes of a non-linear code
    is_float    the codes are floating-point values, there is no scale
    activation  format that a product wants its activations in ("f32" for weight-only products)
    unpack      packed fields, each [..., blocks, count], to planes
    """

    name: str
    block: int
    bits: int
    group: int
    super: int
    fields: tuple[Field, ...]
    unpack: Unpack
    gguf: int | None = None
    has_min: bool = False
    offset: int = 0
    table: tuple[int, ...] | None = None
    is_float: bool = False
    activation: str = "q8_1"
    note: str = ""

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a packed block: the sum of its fields."""
        return sum(f.nbytes for f in self.fields)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The packed block as a NumPy structured type."""
        return np.dtype([(f.name, f.dtype, (f.count,)) for f in self.fields])

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of `k` values; `k` is a multiple of `block`."""
        return k // self.block * self.block_bytes
