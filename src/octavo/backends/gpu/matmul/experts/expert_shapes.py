"""Programs of the kernels of products with experts, pairs of a token and an expert sorted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.matmul.product import POWERS, Product, Shape
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import MIN_STAGES, STAGES, HopperShape, becomes_float16


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


class ExpertsHopperShape(HopperShape):
    """A program of `experts_hopper_kernel`, which has the pipeline of `w4a16_hopper_kernel`.

    Two programs fit a multiprocessor, also where three quarters of its L1 are shared memory.
    """

    name = "experts_hopper"
    allowed = (POWERS[5:8], POWERS[6:8], STAGES, (4, 8))

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
