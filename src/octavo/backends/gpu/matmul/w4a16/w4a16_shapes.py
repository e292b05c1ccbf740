"""Programs of the kernels whose weights become float16 in registers, and how many loads they have under way."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import ClassVar

from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.launch.arguments import Constant
from octavo.backends.gpu.matmul.mmq.mmq_shapes import INT8_MAX_TOKENS
from octavo.backends.gpu.matmul.product import POWERS, Product, Shape
from octavo.backends.gpu.weights.layout import TILE, PlaneLayout
from octavo.formats.table import E2M1_VALUES

SHARED_BYTES, STEP_BYTES = 226 << 10, 192 << 10
"""Of shared memory, for stages of loads: of a multiprocessor at most, and as steps ask for it (`launch.SHARES`)."""
MIN_STAGES = 2
"""Of loads: kernels wait for the oldest before they send the newest, so with a single one they would wait forever."""
STAGES = range(MIN_STAGES, 9)
"""How many there may be."""
MIN_TOKENS, ORDERED_MAX_TOKENS = 3, 1024
"""The fewest tokens, and the most for which the kernels are but for wide tiles of four bits: more are the library's,
whose tiles are better by more than unpacking into memory takes."""


FLOAT8_MIN_TOKENS = 2
"""The fewest of weights that are e4m3 numbers, which take more instructions without tensor cores than the memory leaves
time for: two tokens of 4096 x 14336 weights 40 us instead of 23 on an H200."""


def min_tokens(layout: PlaneLayout) -> int:
    """The fewest tokens that the kernels are for."""
    return FLOAT8_MIN_TOKENS if layout.float8 else MIN_TOKENS


def becomes_float16(layout: PlaneLayout, arch: str) -> bool:
    """Whether kernels in Gluon make codes of a layout float16 in registers.

    Of e4m3 numbers a group's scale is rounded to 11 bits; of e2m1 numbers float32 scales would be rounded; minima of
    integers of 8 bits are too large for float16.
    """
    if layout.float8:
        known = True
    elif layout.folds_rows:
        known = layout.table == E2M1_VALUES and layout.scale != "f32"
    else:
        large = layout.scale == "f32" or (layout.bits == 8 and layout.has_min and not layout.has_zero)
        known = not layout.offset and layout.bits in (4, 5, 6, 8) and not large
    return arch == "sm_90" and known


def stage_bytes(layout: PlaneLayout, block_m: int, block_n: int) -> int:
    """Of tiles of 128 values: codes, scales and tokens."""
    scales = 4 * TILE // (2 * layout.group) * (1 + layout.has_min)
    return block_n * (TILE * layout.bits // 8 + scales) + block_m * 2 * TILE


def stages(layout: PlaneLayout, block_m: int, block_n: int, most: int) -> int:
    """As many stages of tiles of 128 values as there is room for."""
    return min(most, SHARED_BYTES // stage_bytes(layout, block_m, block_n))


def _computes(p: Product, name: gluon.Name) -> bool:
    usable = becomes_float16(p.layout, p.arch) and gluon.usable("w4a16") and gluon.usable(name)
    return p.tokens >= min_tokens(p.layout) and usable


def _block_m(p: Product) -> int:
    """Tokens of the tile that holds all of them, or of the largest."""
    return next((m for m in (8, 16, 32, 64, 128) if m >= p.tokens), 256)


@dataclass(frozen=True)
class HopperShape(Shape):
    """A program of `w4a16_hopper_kernel`.

    block_m  tokens
    block_n  rows of weights
    stages   of loads
    warps
    split_k  programs of a tile
    """

    name = "w4a16"
    allowed: ClassVar[tuple[Container[int], ...]] = (POWERS[4:], POWERS[6:], STAGES, (4, 8), range(2049))
    block_m: int
    block_n: int
    stages: int
    warps: int
    split_k: int = 1

    @classmethod
    def of(cls, p: Product, *numbers: int) -> HopperShape | None:
        """The last number is how many programs run at once, 0 without split-K. Not of 256 tokens a tile where half of
        the last tile would be empty."""
        block_m, block_n, most, warps, slots = numbers
        narrow = p.layout.bits == 4 and (p.layout.has_zero or not p.layout.has_min)
        half_empty = block_m == 256 and 256 < p.tokens <= ORDERED_MAX_TOKENS and -(-p.tokens // 128) % 2
        if not _computes(p, "w4a16") or half_empty:
            return None
        if p.tokens > ORDERED_MAX_TOKENS and not (narrow and block_m * block_n == 256 * 128):
            return None
        depth = stages(p.layout, block_m, block_n, most)
        if depth < MIN_STAGES:
            return None
        programs = -(-p.tokens // block_m) * -(-p.n // block_n)
        return cls(block_m, block_n, depth, warps, max(1, min(slots // programs, p.kp // TILE // 4)))

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        block_m, split = max(16, _block_m(p)), p.tokens <= 256
        for block_n, warps in ((64, 4), (128, 8)):
            yield block_m, block_n, 4 if block_m < 128 else 3, warps, (528 if block_m < 64 else 132) * split
            if block_m == 256:
                yield 128, block_n, 3 if block_n == 64 else 2, warps, 132


@dataclass(frozen=True)
class StreamKShape(Shape):
    """A program of `w4a16_streamk_kernel`.

    block_m  tokens of a tile
    block_n  rows of weights of a tile, half of them for each group of warps
    stages   of loads
    """

    name = "w4a16_streamk"
    allowed = (POWERS[4:8], POWERS[6:], STAGES)
    block_m: int
    block_n: int
    stages: int

    @property
    def warps(self) -> int:
        """Of a group."""
        return 4

    @classmethod
    def of(cls, p: Product, *numbers: int) -> StreamKShape | None:
        block_m, block_n, most = numbers
        if not _computes(p, "w4a16_streamk") or p.tokens > ORDERED_MAX_TOKENS:
            return None
        depth = stages(p.layout, block_m, block_n, most)
        return cls(block_m, block_n, depth) if depth >= MIN_STAGES else None

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        block_m = min(128, max(16, _block_m(p)))
        yield from ((block_m, block_n, 4) for block_n in ((128, 256) if block_m < 64 else (128,)))


@dataclass(frozen=True)
class MultiCtaShape(Shape):
    """A program of `w4a16_multicta_kernel`.

    block_m   tokens of a tile
    block_n   rows of weights of a tile
    stages    of loads
    warps
    resident  programs to a multiprocessor
    depth     tiles of 128 values of a stage
    """

    name = "w4a16_multicta"
    allowed: ClassVar[tuple[Container[int], ...]] = (POWERS[3:6], POWERS[6:8], STAGES, (4,), POWERS[:3], (1, 2))
    block_m: int
    block_n: int
    stages: int
    warps: int
    resident: int
    depth: int = 1

    @classmethod
    def of(cls, p: Product, *numbers: int) -> MultiCtaShape | None:
        block_m, block_n, most, warps, resident, depth = numbers
        if not _computes(p, "w4a16_multicta") or p.layout.bits == 8 or p.tokens > block_m:
            return None
        nbytes = resident * depth * stage_bytes(p.layout, block_m, block_n)
        most = min(most, SHARED_BYTES // nbytes)
        return cls(block_m, block_n, most, warps, resident, depth) if most >= MIN_STAGES else None

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        if p.tokens <= INT8_MAX_TOKENS:
            for block_n, resident in ((64, 2), (64, 4), (128, 2)):
                yield _block_m(p), block_n, 3, 4, resident, 2


@dataclass(frozen=True)
class MultiCtaPair(Constant):
    """What `w4a16_multicta_pair_kernel` is compiled for: layouts and shapes of two products, whose tiles have
    the same tokens and values of K."""

    layout: PlaneLayout
    shape: MultiCtaShape
    other_layout: PlaneLayout
    other_shape: MultiCtaShape


@dataclass(frozen=True)
class LibraryShape(Shape):
    """Weights become float16 in memory, for a product of the library."""

    name = "library"
    allowed = ()

    @classmethod
    def of(cls, p: Product, *numbers: int) -> LibraryShape | None:
        return cls() if p.tokens > INT8_MAX_TOKENS else None

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        yield ()


W4A16Shape = HopperShape | StreamKShape | MultiCtaShape
