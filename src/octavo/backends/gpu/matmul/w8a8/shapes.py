"""Tiles of 8-bit products: as they measured fastest on an H100 (`bench/gpu_gemm.py --tune`), and what others take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from octavo.backends.gpu.launch.arguments import Constant

Scheme = Literal["int8", "int8_groups", "w4a8", "w4a8_g128", "fp8", "fp8_fast", "fp8_blocks"]


@dataclass(frozen=True)
class GemmShape(Constant):
    """How a product is divided into programs.

    block_m      tokens of a tile
    block_n      rows of the weights of a tile
    block_k      values of K of a step
    group_m      rows of tiles that are computed together, so that they share what they read in the L2
    split_k      programs that compute one tile, each from a part of K; 0: as many as there is room for
    stages       steps that are loaded ahead
    warps        of a program
    ctas_per_sm  programs on each multiprocessor that `split_k` makes room for
    persistent   as many programs as run at once go from tile to tile; of `streamk_kernel` they have even shares of all
                 steps, otherwise of those of a tile
    """

    block_m: int
    block_n: int
    block_k: int
    group_m: int = 8
    split_k: int = 0
    stages: int = 4
    warps: int = 8
    ctas_per_sm: int = 1
    persistent: bool = False

    def programs(self, m: int, n: int) -> int:
        """How many there are without split-K."""
        return -(-m // self.block_m) * -(-n // self.block_n)

    def stage_bytes(self, packed: bool) -> int:
        """Bytes that a stage takes in shared memory."""
        return self.block_k * self.block_m + self.block_k * self.block_n // (2 if packed else 1)

    def with_split_k(self, split_k: int) -> GemmShape:
        """The same with another `split_k`."""
        return replace(self, split_k=split_k)


ANY, FEW = 1 << 40, 8192
H100: dict[Scheme, tuple[tuple[int, int, GemmShape], ...]] = {
    # (most tokens, most tokens times rows of the weights, shape): the first row that fits is taken
    "int8": (
        (8, ANY, GemmShape(8, 64, 256, stages=5, warps=4)),
        (16, ANY, GemmShape(16, 64, 256, stages=5, warps=4)),
        (32, ANY, GemmShape(32, 64, 256, stages=5, warps=4)),
        (64, ANY, GemmShape(64, 64, 256, stages=5, warps=4)),
        (128, ANY, GemmShape(128, 64, 128, stages=5, warps=4)),
        (ANY, 1 << 19, GemmShape(64, 64, 256, warps=4)),
        (ANY, 1 << 22, GemmShape(128, 128, 128, stages=5)),
        (ANY, ANY, GemmShape(256, 128, 128)),
    ),
    "int8_groups": (
        (16, ANY, GemmShape(16, 128, 128, warps=4)),
        (32, ANY, GemmShape(32, 128, 128, warps=4)),
        (ANY, ANY, GemmShape(64, 128, 128, warps=4)),
    ),
    "w4a8": (
        (8, ANY, GemmShape(8, 64, 256, stages=8, warps=4)),
        (16, ANY, GemmShape(16, 64, 256, stages=8, warps=4)),
        (32, ANY, GemmShape(32, 64, 256, stages=8, warps=4)),
        (64, ANY, GemmShape(64, 64, 256, stages=8, warps=4)),
        (128, ANY, GemmShape(128, 64, 256, stages=5, warps=4)),
        (256, ANY, GemmShape(128, 128, 128, warps=4)),
        (ANY, ANY, GemmShape(256, 128, 128)),
    ),
    "w4a8_g128": (
        (8, ANY, GemmShape(8, 64, 256, stages=3, warps=4, ctas_per_sm=5)),
        (16, ANY, GemmShape(16, 64, 256, stages=3, warps=4, ctas_per_sm=4)),
        (32, ANY, GemmShape(32, 64, 256, stages=3, warps=4, ctas_per_sm=4)),
        (64, ANY, GemmShape(64, 64, 128, stages=5, warps=4, ctas_per_sm=2)),
        (128, ANY, GemmShape(128, 64, 128, stages=5, warps=4, ctas_per_sm=2)),
        (256, ANY, GemmShape(128, 128, 128, warps=4)),
        (ANY, ANY, GemmShape(256, 128, 128)),
    ),
    "fp8": (
        (64, ANY, GemmShape(64, 128, 128, warps=4, ctas_per_sm=2)),
        (ANY, 1 << 22, GemmShape(128, 128, 128, stages=6)),
        (ANY, ANY, GemmShape(128, 256, 128, group_m=4, stages=3)),
    ),
    "fp8_fast": (
        (64, ANY, GemmShape(64, 128, 128, warps=4, ctas_per_sm=2)),
        (ANY, 1 << 22, GemmShape(128, 128, 128, stages=6)),
        (ANY, ANY, GemmShape(128, 256, 128, group_m=4)),
    ),
    "fp8_blocks": (
        (64, ANY, GemmShape(64, 128, 128, warps=4, ctas_per_sm=2)),
        (ANY, ANY, GemmShape(128, 128, 128, stages=6)),
    ),
}

STREAMK: dict[str, tuple[tuple[int, int, GemmShape], ...]] = {
    # (most tokens, most rows of the weights, shape) of `streamk_kernel`, for an H200
    "int8": (
        (8, ANY, GemmShape(8, 64, 256, split_k=1, stages=5, warps=4, persistent=True)),
        (16, ANY, GemmShape(16, 64, 256, split_k=1, warps=4, persistent=True)),
        (32, FEW, GemmShape(32, 64, 256, split_k=1, warps=4, ctas_per_sm=2, persistent=True)),
        (32, ANY, GemmShape(32, 128, 128, split_k=1, warps=4, ctas_per_sm=2)),
        (64, FEW, GemmShape(64, 64, 256, split_k=1, stages=3, warps=4, ctas_per_sm=2, persistent=True)),
        (64, ANY, GemmShape(64, 128, 128, split_k=1, ctas_per_sm=2)),
        (128, FEW, GemmShape(128, 64, 128, split_k=1, stages=8, warps=4)),
        (128, ANY, GemmShape(128, 128, 128, split_k=1, stages=3, ctas_per_sm=2)),
    ),
    "fp8": (
        (8, ANY, GemmShape(8, 64, 256, split_k=1, stages=5, warps=4, persistent=True)),
        (16, ANY, GemmShape(16, 64, 256, split_k=1, warps=4, persistent=True)),
        (32, FEW, GemmShape(32, 64, 256, split_k=1, warps=4, ctas_per_sm=2, persistent=True)),
        (32, ANY, GemmShape(32, 128, 128, split_k=1, warps=4, ctas_per_sm=2)),
        (64, FEW, GemmShape(64, 64, 256, split_k=1, stages=3, warps=4, ctas_per_sm=2, persistent=True)),
        (64, ANY, GemmShape(64, 128, 128, split_k=1, ctas_per_sm=2)),
        (128, FEW, GemmShape(128, 64, 128, split_k=1, stages=8, warps=4)),
    ),
    "fp8_blocks": (
        (16, ANY, GemmShape(16, 64, 128, split_k=1, stages=6, warps=4, ctas_per_sm=2, persistent=True)),
    ),
    "f16": (
        (8, ANY, GemmShape(8, 64, 128, split_k=1, stages=5, warps=4, persistent=True)),
        (16, ANY, GemmShape(16, 64, 128, split_k=1, warps=4, ctas_per_sm=2, persistent=True)),
    ),
}


def streamk_shape(kind: str, m: int, n: int) -> GemmShape | None:
    """The shape of `streamk_kernel` for m tokens and n rows of "int8", "fp8", "fp8_blocks" or
    "f16"; None for another kernel."""
    return next((shape for tokens, rows, shape in STREAMK[kind] if m <= tokens and n <= rows), None)


def shape_of(
    scheme: Scheme, m: int, n: int, k: int, arch: str, multiprocessors: int, hopper: bool = False
) -> GemmShape:
    """The shape for m tokens, n rows and k values, its split-K chosen for the multiprocessors of a device.

    hopper: for the kernels in Gluon of compute capability 9.0.
    """
    packed = scheme.startswith("w4a8")
    if arch == "interpreter":
        return GemmShape(16, 32, 128, split_k=1, warps=4)
    triton = scheme == "int8_groups" and arch == "sm_90"
    if hopper or triton or (scheme.startswith("fp8") and arch.startswith(("sm_90", "sm_10"))):
        shape = next(s for tokens, size, s in H100[scheme] if m <= tokens and m * n <= size)
    else:
        shape = _elsewhere(packed, m, arch)
    return _with_split_k(shape, m, n, k, multiprocessors * shape.ctas_per_sm)


def _elsewhere(packed: bool, m: int, arch: str) -> GemmShape:
    """Tiles that fit the shared memory of others, 64 KiB at least, and whose sums fit the registers."""
    tokens = 16 if m <= 16 else 32 if m <= 32 else 64
    if m > 64 and arch in ("sm_80", "sm_100", "sm_103"):
        tokens = 128
    rows = 64 if arch.startswith("gfx1") or m <= 32 else 128
    return GemmShape(tokens, rows, 128 if packed else 64, stages=3 if arch.startswith("sm_") else 2)


def _with_split_k(shape: GemmShape, m: int, n: int, k: int, slots: int) -> GemmShape:
    """With split-K for as many programs as there are slots for, but each has four steps at least."""
    if shape.split_k:
        return shape
    most = max(1, -(-k // shape.block_k) // 4)
    return shape.with_split_k(max(1, min(slots // shape.programs(m, n), most, 16)))
