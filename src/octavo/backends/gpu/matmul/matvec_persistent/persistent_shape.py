"""Programs of `matvec_persistent_kernel`: one token, and programs that take row after row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from octavo.backends.gpu.matmul.product import Product, Shape
from octavo.backends.gpu.weights.layout import PlaneLayout

EpilogueKind = Literal["", "rms_norm", "swiglu"]
MOST_CHUNKS = 4
"""Of a lane."""
DEEPEST = 16384
"""The most values of a row: four warps share it."""
THREE_CHUNKS = 3 * 32 * 32 * 4
"""Values of a row from which on lanes of four warps have more chunks, too many for codes in several planes."""


@dataclass(frozen=True)
class PersistentShape(Shape):
    """A program of `matvec_persistent_kernel`.

    warps  that share a row
    rows   at a time, each of as many warps
    ahead  times as many rows are under way
    epilogue  what the results are quantized for, if they are
    fine   the token has a scale for each 16 values
    """

    name = "matvec_persistent"
    of_codes = True
    allowed = ((1, 8),)
    warps: int
    rows: int = 1
    ahead: int = 2
    epilogue: EpilogueKind = ""
    fine: bool = False

    @property
    def few_chunks(self) -> int:
        """Values of a row up to which a lane has two chunks at the most, and registers are left for other programs."""
        return 2 * 32 * 32 * self.warps

    @classmethod
    def of(cls, p: Product, *numbers: int) -> PersistentShape | None:
        if p.tokens != 1 or p.arch.startswith("gfx") or p.kp > DEEPEST or not has_kernel(p.layout, p.kp):
            return None
        (rows,) = numbers
        if p.arch == "interpreter":
            return cls(2)
        warps = warps_of(p.kp) * (2 if p.layout.bits in (3, 5) and p.kp > THREE_CHUNKS else 1)
        return cls(warps, rows if p.kp <= cls(warps).few_chunks else 1)

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        yield from ((1,), (8,))


def warps_of(kp: int) -> int:
    """That share a row."""
    warps = 1
    while kp > 32 * 32 * warps * MOST_CHUNKS:
        warps *= 2
    return warps


def has_kernel(layout: PlaneLayout, kp: int) -> bool:
    """Whether the kernel takes a layout: those of Q3_K, Q4_0, Q4_K, Q5_0, Q5_K, Q6_K and Q8_0, and tables for three
    bits, or for four whose halves have a sign each."""
    if layout.has_zero or layout.scale != "f16" or (layout.two_level and kp % 256):
        return False
    if layout.table is not None and layout.bits == 3:
        return layout.two_level
    if layout.table is not None:
        return layout.bits == 4 and layout.group <= 32 and has_signed_halves(layout.table)
    if layout.has_min:
        return layout.bits in (4, 5) and layout.group == 32 and layout.min_bits == 6
    if layout.bits in (3, 6):
        return layout.group == 16 and layout.two_level and layout.signed
    return layout.bits in (4, 5, 8) and layout.group == 32 and (layout.signed or layout.bits == 4)


def has_signed_halves(table: tuple[int, ...]) -> bool:
    """Whether no value of one half of a table of 16 is above 0, none of the other below, and none -128."""
    halves = (table[:8], table[8:])
    return min(table) > -128 and any(max(a) <= 0 <= min(b) for a, b in (halves, halves[::-1]))
