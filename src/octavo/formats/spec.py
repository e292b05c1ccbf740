"""What a stored format is: a grouped affine code with at most two levels of scale.

    w[n, k] = d[n, k // S] * sc[n, k // G] * code(q[n, k])  -  dmin[n, k // S] * m[n, k // G]

Where a format folds, sc * code(q) is rounded to an integer before it meets d (`channel` has such a one).

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

from octavo.errors import QuantFormatError
from octavo.formats.codebook import Codebook

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Field:
    """A field of a packed block: `count` little-endian values of `dtype`; `kind` is what documentation calls them."""

    name: str
    dtype: np.dtype[Any]
    count: int
    kind: str

    @property
    def nbytes(self) -> int:
        """Bytes of the field in a block."""
        return self.dtype.itemsize * self.count


def _field(kind: str, dtype: str) -> Callable[..., Field]:
    def field(name: str, count: int = 1) -> Field:
        return Field(name, np.dtype(dtype), count, kind)

    return field


f16, f32, f64 = _field("f16", "<f2"), _field("f32", "<f4"), _field("f64", "<f8")
u8, u16, u32 = _field("u8", "u1"), _field("u16", "<u2"), _field("u32", "<u4")
s8, s16, s32, s64 = _field("s8", "i1"), _field("s16", "<i2"), _field("s32", "<i4"), _field("s64", "<i8")
bf16, e8m0, ue4m3 = _field("bf16", "<u2"), _field("e8m0", "u1"), _field("ue4m3", "u1")


@dataclass(frozen=True)
class Planes:
    """The parts of a matrix [..., N, K] (leading axes, for experts, are kept).

    q     codes: uint8 [..., K]; for a format of plain numbers, the numbers as they are stored
    d     scale of a super-block: float32 [..., K / S]; None for plain numbers
    sc    scale of a group: int8 or uint8 [..., K / G] (float16 where it folds); None with one level only
    dmin  minimum of a super-block: float32 [..., K / S]; None without minima
    m     minimum of a group: uint8 [..., K / G]; None where there is one level only. Zero points, where the format has
          these
    """

    q: AnyArray
    d: F32 | None = None
    sc: AnyArray | None = None
    dmin: F32 | None = None
    m: U8 | None = None


@dataclass(frozen=True, eq=False)
class Indexed:
    """What a format with a codebook stores, taken out of its packed bytes; leading axes are kept.

    index  of codebook entries, uint16 [..., K / width]
    signs  bit i is the sign of value i of eight, or all bits the shift that they share: uint8 [..., K / 8]
    sc, d  as in Planes
    """

    index: npt.NDArray[np.uint16]
    signs: U8
    sc: AnyArray
    d: F32


Fields = dict[str, AnyArray]
Unpack = Callable[[Fields], Planes]
Pack = Callable[[Planes], Fields]
Encode = Callable[["BlockFormat", F32], Planes]


@dataclass(frozen=True)
class Number:
    """How a code that is a number in itself (f16, bf16, an integer) reads as float32, and how float32 is put in it."""

    name: str
    decode: Callable[[AnyArray], F32]
    encode: Callable[[F32], AnyArray] | None = None


@dataclass(frozen=True)
class BlockFormat:
    """A row of the format table.

    block       values in a block
    bits        bits of a code (of a value, for plain numbers)
    group       G, the values that share a scale
    super       S, the values that share a floating scale; equal to `group` where there is one level
    fields      the fields of the packed block, in order
    unpack      packed fields, each [..., blocks, count], to planes
    pack        planes to packed fields, the inverse of `unpack`; None where nothing writes the format
    encode      values [..., K] to planes, the plain reference way; None where there is none
    gguf        number of the GGUF tensor type; None for a format that GGUF lacks
    has_min     there are minima
    has_zero    there are zero points: code(q) = q - m, on one level
    scale_bits  bits of `sc` and `m`, 0 where there is one level; `sc` is signed where there are no minima
    base3       codes are trits (0, 1 or 2), stored five in a byte in base 3
    offset      code(q) = q - offset
    table       or code(q) = step * table[q]: the signed bytes of a non-linear code
    step        a power of two
    codebook    codes are those of codebook entries, whose indices `indexed` gives; None elsewhere
    indexed     packed fields to indices of entries and what goes with them; `unpack` is made from it
    odd_scales  `sc` is an odd number, 2 s + 1, of which s is stored
    number      or code(q) = the number that the bits of q are
    folds       sc * code(q) is rounded to an integer, halves to even, before d: so a sum over K is one of integers
    activation  format that a product wants its activations in ("f32" for weight-only products)
    note        how codes and scales lie in the fields, for the documentation
    """

    name: str
    block: int
    bits: int
    group: int
    super: int
    fields: tuple[Field, ...]
    unpack: Unpack
    pack: Pack | None = None
    encode: Encode | None = None
    gguf: int | None = None
    has_min: bool = False
    has_zero: bool = False
    scale_bits: int = 0
    base3: bool = False
    offset: int = 0
    table: tuple[int, ...] | None = None
    step: float = 1.0
    codebook: Codebook | None = None
    indexed: Callable[[Fields], Indexed] | None = None
    odd_scales: bool = False
    number: Number | None = None
    folds: bool = False
    activation: str = "q8_1"
    note: str = ""

    def __post_init__(self) -> None:
        """Raises QuantFormatError for a row that contradicts itself."""
        for inner, outer in (("group", "super"), ("super", "block")):
            few, many = getattr(self, inner), getattr(self, outer)
            if few < 1 or many % few:
                raise QuantFormatError(f"{self.name}: a {outer} of {many} values does not hold whole {inner}s of {few}")
        if self.table is not None and not 1 << self.bits - 1 < len(self.table) <= 1 << self.bits:
            raise QuantFormatError(f"{self.name}: a table of {len(self.table)} values for codes of {self.bits} bits")

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a packed block: the sum of its fields."""
        return sum(f.nbytes for f in self.fields)

    @property
    def bits_per_weight(self) -> float:
        """Bits of a block over its values."""
        return 8 * self.block_bytes / self.block

    @property
    def is_float(self) -> bool:
        """Values are plain numbers without a scale (floating-point, or the integers of index tensors)."""
        return self.number is not None and self.block == 1

    @property
    def per_row(self) -> bool:
        """A row has one floating scale, and products want activations of 8 bits that have one for each token."""
        return self.activation in ("int8_token", "fp8_token")

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The packed block as a NumPy structured type."""
        return np.dtype([(f.name, f.dtype, (f.count,)) for f in self.fields])

    @cached_property
    def _table(self) -> F32:
        return np.array(self.table, dtype=np.float32) * np.float32(self.step)

    def code(self, q: AnyArray) -> F32:
        """code(q) of the equation: a new float32 array of q's shape."""
        if self.number is not None:
            return self.number.decode(q)
        if self.table is not None:
            return self._table[q]
        values = q.astype(np.float32)
        if self.offset:
            values -= np.float32(self.offset)
        return values

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of `k` values; `k` is a multiple of `block`."""
        return k // self.block * self.block_bytes
