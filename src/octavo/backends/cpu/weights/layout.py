"""The kernels' own layout of quantized weights: what is specialised on, and where each part lies.

Rows go in tiles of 16. A tile is a stream in the order in which a product reads it:

    for each super-block of S values of K:
        the 16 rows' scales d (S / group sets where there is one level), then their minima, or their zero points
        for each 32 values of K:
            where there are two levels: 16 bytes of scales for each group, then 16 bytes of minima for each
            16 x 32 codes in `bits` x 64 bytes (see `simd.load_codes`)

Codes are those of the format's planes, whatever a file has in their place: an entry of a codebook (IQ1 to IQ3) lies as
the codes of its values, and ternary digits take two bits.

So one token and many read the same bytes from front to back, and 16 rows are 16 lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ROWS = 16  # rows of a tile
STEP = 32  # values of K in a block of codes

ScaleKind = Literal["f16", "f32", "exponent"]
MinimumKind = Literal["f16", "f32", "exponent", "zero"]
SCALE_BYTES: dict[MinimumKind, int] = {"f16": 2, "f32": 4, "exponent": 1, "zero": 1}


@dataclass(frozen=True)
class TiledLayout:
    """What a product is specialised on; no format's name among it.

    scale   how d and dmin are stored: whichever is smallest and exact
    minima  how minima are stored, or None without; "zero": as zero points, bytes that d is multiplied with
    step    a power of two that all values are multiplied with
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
        return sum(SCALE_BYTES[k] for k in kinds) * ROWS * self.sets

    @property
    def block_bytes(self) -> int:
        """Bytes of 16 rows x 32 values after the head."""
        scales = ROWS * self.groups * (2 if self.minima else 1) if self.two_level else 0
        return scales + self.code_bytes

    @property
    def code_bytes(self) -> int:
        return 64 * self.bits

    @property
    def super_bytes(self) -> int:
        return self.head_bytes + self.super // STEP * self.block_bytes

    def tile_bytes(self, k: int) -> int:
        """Bytes of a tile of rows of `k` values."""
        return k // self.super * self.super_bytes
