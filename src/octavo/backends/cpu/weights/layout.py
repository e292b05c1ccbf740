"""The kernels' own layout of quantized weights: what is specialised on, and where each part lies.

Rows go in tiles of 16. A tile is a stream in the order in which a product reads it:

    for each super-block of S values of K:
        the 16 rows' scales d (S / group sets where there is one level), then their minima, or their zero points
        for each 32 values of K:
            where there are two levels: 16 bytes of scales for each group, then 16 bytes of minima for each
            16 x 32 codes in `bits` x 64 bytes (see `simd.load_codes`)

With a grid there are numbers of points instead of codes, and scales take four bits (also where the numbers of a file
have become codes):

    for each super-block of 256 values:
        the 16 rows' scales d
        for each 32 values of K:
            8 bytes of scales for each group
            where each value has a mark: 64 bytes, bit j for vector j of codes
            what numbers have above eight bits: 8 bytes a bit for each 64 bytes that follow (see `simd.load_points`)
            the low eight bits of numbers: 64 bytes for points of 8 values, 128 for those of 4

Where halves of points are looked up (see `point_halves`, `simd.load_halves_of`), marks that values share lie in the
highest bit of scales:

        for each 32 values of K:
            8 bytes of scales for each group; the highest bit of each is the mark of the group's first point
            where each value has a mark: 64 bytes, a bit of each byte for a vector of codes, or for halves of two
            where a group has two points that have marks: a bit for each row, 2 bytes for each second point
            the bits above eight, side by side: 8 bytes a bit for each 64 bytes that follow
            the low eight bits of numbers, as above

Digits to the base 3 are bytes of five of them, number * 256 / 243 rounded up, less 128:

    for each super-block of 256 values:
        the 16 rows' scales d
        for each 4 blocks of 32 values 3 x 64 bytes: digit b of byte i of the j-th is code i of vector 5 + j of block b
        for each 32 values of K:
            64 bytes: digit j of byte i is code i of vector j

So one token and many read the same bytes from front to back, and 16 rows are 16 lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.backends.cpu.weights.codebook_halves import Halves

ROWS = 16  # rows of a tile
STEP = 32  # values of K in a block of codes

POINTS_AT = 64  # where the words of points begin in their table

ScaleKind = Literal["f16", "f32", "exponent"]
MinimumKind = Literal["f16", "f32", "exponent", "zero"]
SCALE_BYTES: dict[MinimumKind, int] = {"f16": 2, "f32": 4, "exponent": 1, "zero": 1}


@dataclass(frozen=True)
class Points:
    """The points of a grid.

    width   values of a point, 8 or 4
    more    bits of a number above eight; the mark is the highest where values share it, unless halves are looked up
    mark    the bit of a code that a value's own mark is, or None where they share it
    halves  how halves of points are looked up, or None where whole points are
    marks   bytes of marks in a block, but for those beside scales

    Kernels look points up in one table:

        the 16 bytes that codes stand for
        from byte 64 on, words of codes, one for each number (see `simd.load_points`)
        sizes, 8 bytes for each point (see `simd.fma_points_of`), and 8 bytes more

    or, from byte 64 on, tables of 64 bytes (see `simd.load_halves_of`).
    """

    width: int
    more: int
    mark: int | None
    halves: Halves | None
    marks: int

    @property
    def low_bytes(self) -> int:
        """Bytes of the low eight bits of numbers of 16 rows x 32 values."""
        return 64 * (8 // self.width)

    @property
    def sizes_at(self) -> int:
        """Where the sizes of points begin in their table."""
        return POINTS_AT + (4 << 8 + self.more)

    @property
    def code_bytes(self) -> int:
        """Bytes of marks and numbers of 16 rows x 32 values."""
        return self.marks + self.more * self.low_bytes // 8 + self.low_bytes


@dataclass(frozen=True)
class Layout:
    """What a product is specialised on; no format's name among it.

    scale   how d and dmin are stored: whichever is smallest and exact
    minima  how minima are stored, or None without; "zero": as zero points, bytes that d is multiplied with
    step    a power of two that all values are multiplied with
    grid    what codes are taken from, or None where they are stored themselves
    base3   codes are digits, see above

    odd_scales  small scales are 2 s + 1, and s is stored in half a byte: of rows 0 to 7 in the low ones of 8 bytes
    """

    bits: int
    group: int
    super: int
    scale: ScaleKind
    two_level: bool
    signed_scales: bool
    minima: MinimumKind | None
    offset: int
    table: tuple[int, ...] | None
    step: float = 1.0
    grid: Points | None = None
    base3: bool = False
    odd_scales: bool = False

    @property
    def sets(self) -> int:
        """Sets of 16 scales at the head of a super-block."""
        return 1 if self.two_level else self.super // self.group

    @property
    def groups(self) -> int:
        """Groups that begin in a block of 32 values; where a group spans more than a block, 1."""
        return max(1, STEP // self.group)

    @property
    def head_bytes(self) -> int:
        kinds: tuple[MinimumKind, ...] = (self.scale,) if self.minima is None else (self.scale, self.minima)
        return sum(SCALE_BYTES[k] for k in kinds) * ROWS * self.sets + self.high_bytes

    @property
    def high_bytes(self) -> int:
        """Bytes of codes at the end of a super-block's head."""
        return 3 * 64 * (self.super // (4 * STEP)) if self.base3 else 0

    @property
    def small_bytes(self) -> int:
        """Bytes of 16 small scales."""
        return ROWS // 2 if self.odd_scales else ROWS

    @property
    def block_bytes(self) -> int:
        """Bytes of 16 rows x 32 values after the head."""
        scales = self.small_bytes * self.groups * (2 if self.minima else 1) if self.two_level else 0
        return scales + self.code_bytes

    @property
    def code_bytes(self) -> int:
        if self.base3:
            return 64
        return 64 * self.bits if self.grid is None else self.grid.code_bytes

    @property
    def super_bytes(self) -> int:
        return self.head_bytes + self.super // STEP * self.block_bytes

    def tile_bytes(self, k: int) -> int:
        """Bytes of a tile of rows of `k` values."""
        return k // self.super * self.super_bytes
