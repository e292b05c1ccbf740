"""The kernels' own layout of quantized weights: what is specialised on, and where each part lies.

A row of K codes is padded to tiles of 128. Of a tile, the "low" codes are its first 64 and the "high" ones the rest;
pair p is low code p and high code p. Codes whose offset is half their range have their top bit flipped, which makes
them signed. Codes of 8 bits are kept as they are then: s8 [Kp], and so are e4m3 numbers. Of others each power of two
among the bits is a plane of its own, row-major, 16 b bytes a tile for b bits:

    byte p % 16b of the tile, from bit 2b * (p // 16b) on, holds b bits of low code p, then b bits of high code p

so 4 bits are one nibble of each half in a byte, 5 are planes of 4 and 1, 6 of 4 and 2, 3 of 2 and 1 (the lower bits of
a code in the wider plane). Whatever the bits, 16 pairs (a "chunk") are a 16-byte load and the same shifts for all.

Scales lie in pairs, that of a group in the first half of a tile beside that of its counterpart 64 codes later:

    one level    scale [Kp / 2G, 2], f16 or f32, or u8 exponents of powers of two; minima alike, in `minimum`; with zero
                 points scale [Kp / 2G, 4], a pair of zero points after each pair of scales, numbers of the same kind
    two levels   small [Kp / 2G, 2], i8: the group's scale; with 4-bit minima these in the upper nibble; with 6-bit
                 minima their low two bits above the scale, and the other four in `rest` [Kp / 2G], low nibble first
                 scale [Kp / S] or, with minima, [Kp / S, 2]: f16 d and dmin

Codes are those of the format's planes, whatever a file has in their place: an entry of a codebook (IQ1 to IQ3) lies as
the codes of its values, three or four bits with the sign or shift as the highest, and ternary digits take two bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Literal

from octavo.backends.gpu.launch.arguments import Constant
from octavo.errors import QuantFormatError
from octavo.formats.spec import BlockFormat

TILE = 128  # values of K that padding rounds to
UNIT = 256  # values of K that `mmq_mma` takes at once, whose scales have one d
TABLE = 16  # values of a table, which kernels look up as four words of bytes
HALF = 64

ScaleKind = Literal["f16", "f32", "exponent"]
SCALE_BYTES: dict[ScaleKind, int] = {"f16": 2, "f32": 4, "exponent": 1}


@dataclass(frozen=True)
class PlaneLayout(Constant):
    """What a product is specialised on; no format's name among it.

    bits      of a code
    group     values that share a scale: 16, 32 or 64 (larger groups are stored as several of 64)
    super     values that share a floating scale; `group` where there is one level
    scale     how d and dmin are stored
    has_min   there are minima
    min_bits  bits of a group's small minimum, 0 without two levels or minima
    signed    code(q) = q - 2^(bits - 1), kept as a signed number of `bits`; with minima only the latter, for 8 bits
    offset    code(q) = q - offset, where not signed
    table     or code(q) = table[q]
    step      a power of two that all values are multiplied with
    has_zero  minima are zero points
    float8    codes are e4m3 numbers
    """

    bits: int
    group: int
    super: int
    scale: ScaleKind
    has_min: bool
    min_bits: int
    signed: bool
    offset: int
    table: tuple[int, ...] | None
    step: float = 1.0
    has_zero: bool = False
    float8: bool = False

    @property
    def two_level(self) -> bool:
        return self.super > self.group

    @property
    def planes(self) -> tuple[int, ...]:
        """Bits of the planes of codes, largest first: 6 -> (4, 2)."""
        return (8,) if self.bits == 8 else tuple(b for b in (4, 2, 1) if self.bits & b)

    @property
    def scale_bytes(self) -> int:
        """Bytes of a floating scale."""
        return SCALE_BYTES[self.scale]

    @property
    def folds_rows(self) -> bool:
        """Whether a row's float16 scales are multiplied with a power of two, which its sums are divided by."""
        return self.float8 or self.table is not None

    @property
    def shift(self) -> int:
        """Bits that signed codes are moved up by in their bytes, so that a code is 2^shift times as large."""
        return 8 - self.bits if self.signed else 0

    @property
    def factor(self) -> float:
        """What sums of products of codes as they are unpacked are multiplied with."""
        return self.step / (1 << self.shift)

    def row_bytes(self, kp: int) -> int:
        """Bytes of all planes of a row of `kp` padded values."""
        pairs = kp // (2 * self.group)
        total = kp * self.bits // 8
        if self.two_level:
            total += 2 * pairs + (pairs if self.min_bits == 6 else 0)
            return total + kp // self.super * self.scale_bytes * (1 + self.has_min)
        return total + 2 * pairs * self.scale_bytes * (1 + self.has_min)


@dataclass(frozen=True)
class RowLayout(PlaneLayout):
    """A PlaneLayout and the length of a row, padded; this is what kernels are compiled for."""

    kp: int = field(kw_only=True)


@cache
def row_layout(layout: PlaneLayout, kp: int) -> RowLayout:
    """The layout with rows of `kp` values."""
    return RowLayout(**{f.name: getattr(layout, f.name) for f in fields(layout)}, kp=kp)


def padded(k: int) -> int:
    """K rounded up to whole tiles; for two-level formats K is whole super-blocks, so whole tiles already."""
    return -(-k // TILE) * TILE


def scale_stride(n: int) -> int:
    """Rows of weights in a row of float16 scales, whole 16 bytes of which a tile begins with."""
    return -(-n // 4) * 4


def layout_of(fmt: BlockFormat, scale: ScaleKind) -> PlaneLayout:
    """The layout of a format, scales kept as `scale`.

    Raises QuantFormatError for groups that no kernel has.
    """
    group = min(_group(fmt), HALF // 2) if scale == "exponent" else _group(fmt)  # whole words of a tile's scales
    two_level = fmt.super > fmt.group
    if fmt.is_float or group not in (16, 32, 64) or fmt.group % group or (two_level and fmt.super % UNIT):
        raise QuantFormatError(f"{fmt.name}: no GPU layout for groups of {fmt.group} in {fmt.super}")
    if fmt.table is not None and len(fmt.table) > TABLE:
        raise QuantFormatError(f"{fmt.name}: no GPU layout for a table of {len(fmt.table)} values")
    if two_level and scale != "f16":
        raise QuantFormatError(f"{fmt.name}: no GPU layout for two levels of scales over {scale}")
    has_min = fmt.has_min or fmt.has_zero
    signed = fmt.table is None and (fmt.offset == 1 << (fmt.bits - 1) or (has_min and fmt.bits == 8))
    return PlaneLayout(
        bits=fmt.bits,
        group=group,
        super=fmt.super if two_level else group,
        scale=scale,
        has_min=has_min,
        has_zero=fmt.has_zero,
        min_bits=fmt.scale_bits if two_level and fmt.has_min else 0,
        signed=signed,
        offset=0 if fmt.table or signed else fmt.offset,
        table=fmt.table,
        step=fmt.step,
        float8=fmt.number is not None,
    )


def _group(fmt: BlockFormat) -> int:
    """The values that share a scale in memory: 32 instead of 64 and more where the bytes are hardly more, as all
    kernels take those."""
    narrow = fmt.super == fmt.group > 32 and fmt.bits >= 4 and not fmt.has_min and not fmt.has_zero
    return 32 if narrow and fmt.fields[0].nbytes == 2 else min(fmt.group, HALF)
