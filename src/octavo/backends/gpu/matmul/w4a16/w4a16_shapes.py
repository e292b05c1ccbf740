"""What kernels whose weights become float16 in registers are compiled for, and how many loads they have under way."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.gpu.launch.arguments import Constant
from octavo.backends.gpu.weights.layout import TILE, PlaneLayout


@dataclass(frozen=True)
class HopperShape(Constant):
    """A program of `w4a16_hopper_kernel`.

    block_m  tokens
    block_n  rows of weights
    stages   of loads
    warps
    split_k  programs of a tile
    """

    block_m: int
    block_n: int
    stages: int
    warps: int
    split_k: int = 1


@dataclass(frozen=True)
class StreamKShape(Constant):
    """A program of `w4a16_streamk_kernel`.

    block_m  tokens of a tile
    block_n  rows of weights of a tile, half of them for each group of warps
    stages   of loads
    """

    block_m: int
    block_n: int
    stages: int

    @property
    def warps(self) -> int:
        """Of a group."""
        return 4


@dataclass(frozen=True)
class MultiCtaShape(Constant):
    """A program of `w4a16_multicta_kernel`.

    block_m   tokens of a tile
    block_n   rows of weights of a tile
    stages    of loads
    warps
    resident  programs to a multiprocessor
    depth     tiles of 128 values of a stage
    """

    block_m: int
    block_n: int
    stages: int
    warps: int
    resident: int
    depth: int = 1


@dataclass(frozen=True)
class MultiCtaPair(Constant):
    """What `w4a16_multicta_pair_kernel` is compiled for: layouts and shapes of two products, whose tiles have
    the same tokens and values of K."""

    layout: PlaneLayout
    shape: MultiCtaShape
    other_layout: PlaneLayout
    other_shape: MultiCtaShape


W4A16Shape = HopperShape | StreamKShape | MultiCtaShape

SHARED_BYTES, STEP_BYTES = 226 << 10, 192 << 10
"""Of shared memory, for stages of loads: of a multiprocessor at most, and as steps ask for it (`launch.SHARES`)."""


def stage_bytes(layout: PlaneLayout, block_m: int, block_n: int) -> int:
    """Of tiles of 128 values: codes, scales and tokens."""
    scales = 4 * TILE // (2 * layout.group) * (1 + layout.has_min)
    return block_n * (TILE * layout.bits // 8 + scales) + block_m * 2 * TILE


def stages(layout: PlaneLayout, block_m: int, block_n: int, most: int) -> int:
    """As many stages of tiles of 128 values as there is room for."""
    return min(most, SHARED_BYTES // stage_bytes(layout, block_m, block_n))
