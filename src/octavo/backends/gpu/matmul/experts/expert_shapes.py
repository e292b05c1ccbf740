"""Programs of the kernels of products with experts, pairs of a token and an expert sorted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.matmul.product import POWERS, Product, Shape
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import (
    MIN_STAGES,
    STAGES,
    STEP_BYTES,
    HopperShape,
    MultiCtaShape,
    becomes_float16,
    stage_bytes,
)
from octavo.backends.gpu.weights.layout import UNIT

LISTED_BEYOND = STAGES[-1] + 2
"""Listed tiles that `experts_grouped_kernel` may look at after the last one, while its ring runs ahead."""


@dataclass(frozen=True)
class ExpertsShape(Shape):
    """A program of `experts_kernel`.

    block_m  pairs of a token and an expert
    block_n  rows of weights
    warps
    stages   of loads
    """

    name = "experts"
    allowed = (POWERS[4:8], POWERS[6:8], POWERS[:4])
    block_m: int
    block_n: int
    warps: int
    stages: int = 3

    @classmethod
    def of(cls, p: Product, *numbers: int) -> ExpertsShape:
        block_m, block_n, warps = numbers
        if p.arch.startswith("gfx11") and block_m > 32:  # more does not fit its registers
            return cls(32, 64, 4)
        return cls(block_m, block_n, warps)

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        yield from ((16, 64, 4), (16, 128, 8), (32, 64, 4), (64, 64, 4), (64, 128, 8))


@dataclass(frozen=True)
class ExpertsMmaShape(Shape):
    """A program of `experts_mma_kernel`.

    row_tiles    tiles of 16 rows of weights
    token_tiles  tiles of 8 pairs of a token and an expert
    warps        each takes a part of K
    prefetch     what is loaded ahead: 1 weights, 2 tokens too
    short        an expert has fewer rows than a program
    """

    name = "experts_mma"
    of_codes = True
    allowed = (POWERS[:3], POWERS[:3], POWERS[:5], range(3))
    row_tiles: int
    token_tiles: int
    warps: int
    prefetch: int
    short: bool
    split_k: ClassVar[int] = 1

    @property
    def block_m(self) -> int:
        """Pairs that a program may have."""
        return 8 * self.token_tiles

    @classmethod
    def of(cls, p: Product, *numbers: int) -> ExpertsMmaShape | None:
        """None for AMD's, which have no `mma.sync`."""
        if p.arch.startswith("gfx"):
            return None
        row_tiles, token_tiles, warps, prefetch = numbers
        units = -(-p.kp // UNIT)
        return cls(row_tiles, token_tiles, min(warps, 1 << (units - 1).bit_length()), prefetch, p.n < 16 * row_tiles)

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        for token_tiles in (1, 2):
            yield from ((rows, token_tiles, warps, 1) for rows, warps in ((1, 4), (1, 8), (2, 2), (2, 4)))


@dataclass(frozen=True)
class ExpertsHopperShape(HopperShape):
    """A program of `experts_hopper_kernel`, which has the pipeline of `w4a16_hopper_kernel`.

    Two programs fit a multiprocessor, also where three quarters of its L1 are shared memory.

    gated  half of a tile's rows are those of gate, half of up
    """

    name = "experts_hopper"
    allowed = (POWERS[5:8], POWERS[6:8], STAGES, (4, 8))
    gated: bool = False

    @property
    def rows(self) -> int:
        """Of results of a tile."""
        return self.block_n // 2 if self.gated else self.block_n

    @classmethod
    def of(cls, p: Product, *numbers: int) -> ExpertsHopperShape | None:
        """None where rows of scales, of all experts side by side, do not begin at whole 16 bytes: the copy engine stops
        a kernel there, as an illegal instruction."""
        if p.n % 4 or not becomes_float16(p.layout, p.arch) or not gluon.usable("experts"):
            return None
        block_m, block_n, stages, warps = numbers
        fewer = p.layout.bits == 8 and block_m < 128
        return cls(block_m, block_n, max(MIN_STAGES, stages - fewer), warps)

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        yield from ((32, 128, 4, 8), (64, 128, 3, 8), (128, 128, 2, 8))


@dataclass(frozen=True)
class ExpertsGroupedShape(MultiCtaShape):
    """A program of `experts_grouped_kernel`, whose steps are those of `w4a16_multicta_kernel`.

    block_m   pairs of a token and an expert
    producer  whether a warp of its own fills the ring
    small     products by `mma.sync`, not by `wgmma`
    gated     half of a tile's rows are those of gate, half of up
    """

    name = "experts_grouped"
    allowed = (POWERS[3:7], POWERS[6:8], STAGES, range(1, 5), (1, 2, 4), range(4))
    producer: bool = False
    small: bool = False
    gated: bool = False

    @property
    def rows(self) -> int:
        """Of results of a tile."""
        return self.block_n // 2 if self.gated else self.block_n

    @property
    def registers(self) -> int | None:
        """Of a thread at most, where groups of warps share a program's out among themselves."""
        return 65536 // (256 * self.resident) // 8 * 8 if self.producer else None

    @classmethod
    def of(cls, p: Product, *numbers: int) -> ExpertsGroupedShape | None:
        """None where rows of scales do not begin at whole 16 bytes, as for `ExpertsHopperShape`."""
        known = becomes_float16(p.layout, p.arch)
        if p.n % 4 or not known or not gluon.usable("experts_grouped"):
            return None
        block_m, block_n, most, resident, depth, how = numbers
        producer, small = how % 2, how // 2
        most = min(most, STEP_BYTES // (resident * depth * stage_bytes(p.layout, block_m, block_n)))
        if most < MIN_STAGES or (producer and resident > 2):  # whose registers would be too few
            return None
        return cls(block_m, block_n, most, 4, resident, depth, bool(producer), bool(small))

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        for block_m in (8, 16, 32):
            for rest in ((64, 3, 4, 2, 0), (64, 4, 3, 2, 0), (128, 4, 2, 2, 0), (128, 4, 2, 2, 1), (128, 6, 2, 1, 1)):
                yield block_m, *rest
