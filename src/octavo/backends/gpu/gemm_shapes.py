"""Tiles of 8-bit products: as they measured fastest on an H100 (`bench/gpu_gemm.py --tune`), and what others take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Scheme = Literal["int8", "w4a8", "w4a8_g128", "fp8", "fp8_fast", "fp8_blocks"]


@dataclass(frozen=True)
class GemmShape:
    """Tokens, rows of the weights and values of K of a program's step; rows of tiles that share the L2; programs that
    share K (0: as many as there is room for); stages of loads; warps; programs of a multiprocessor that K is divided
    for; programs that go from tile to tile."""

    tokens: int
    rows: int
    depth: int
    group: int = 8
    splits: int = 0
    stages: int = 4
    warps: int = 8
    each: int = 1
    persistent: bool = False

    def programs(self, m: int, n: int) -> int:
        """How many there are without splits."""
        return -(-m // self.tokens) * -(-n // self.rows)

    def stage_bytes(self, packed: bool) -> int:
        """Bytes that a stage takes in shared memory."""
        return self.depth * self.tokens + self.depth * self.rows // (2 if packed else 1)

    def divided(self, splits: int) -> GemmShape:
        """The same with so many programs that share K."""
        return replace(self, splits=splits)


# fmt: off
ANY = 1 << 40
H100: dict[Scheme, tuple[tuple[int, int, GemmShape], ...]] = {
    # up to so many tokens, and tokens times rows of the whole product
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
        (8, ANY, GemmShape(8, 64, 256, stages=3, warps=4, each=5)),
        (16, ANY, GemmShape(16, 64, 256, stages=3, warps=4, each=4)),
        (32, ANY, GemmShape(32, 64, 256, stages=3, warps=4, each=4)),
        (64, ANY, GemmShape(64, 64, 128, stages=5, warps=4, each=2)),
        (128, ANY, GemmShape(128, 64, 128, stages=5, warps=4, each=2)),
        (256, ANY, GemmShape(128, 128, 128, warps=4)),
        (ANY, ANY, GemmShape(256, 128, 128)),
    ),
    "fp8": (
        (64, ANY, GemmShape(64, 128, 128, warps=4, each=2)),
        (ANY, 1 << 22, GemmShape(128, 128, 128, stages=6)),
        (ANY, ANY, GemmShape(128, 256, 128, group=4, stages=3)),
    ),
    "fp8_fast": (
        (64, ANY, GemmShape(64, 128, 128, warps=4, each=2)),
        (ANY, 1 << 22, GemmShape(128, 128, 128, stages=6)),
        (ANY, ANY, GemmShape(128, 256, 128, group=4)),
    ),
    "fp8_blocks": (
        (64, ANY, GemmShape(64, 128, 128, warps=4, each=2)),
        (ANY, ANY, GemmShape(128, 128, 128, stages=6)),
    ),
}
# fmt: on


def shape_of(
    scheme: Scheme, m: int, n: int, k: int, arch: str, multiprocessors: int, hopper: bool = False
) -> GemmShape:
    """The shape for m tokens, n rows and k values on a device of so many multiprocessors, its splits known.

    hopper: for the kernels of compute capability 9.0, as far as there are such.
    """
    packed = scheme.startswith("w4a8")
    if arch == "interpreter":
        return GemmShape(16, 32, 128, splits=1, warps=4)
    if hopper or (scheme.startswith("fp8") and arch.startswith(("sm_90", "sm_10"))):
        shape = next(s for tokens, size, s in H100[scheme] if m <= tokens and m * n <= size)
    else:
        shape = _elsewhere(packed, m, arch)
    return _with_splits(shape, m, n, k, multiprocessors * shape.each)


def _elsewhere(packed: bool, m: int, arch: str) -> GemmShape:
    """Tiles that fit the shared memory of others, 64 KiB at least, and whose sums fit the registers."""
    tokens = 16 if m <= 16 else 32 if m <= 32 else 64
    if m > 64 and arch in ("sm_80", "sm_100", "sm_103"):
        tokens = 128
    rows = 64 if arch.startswith("gfx1") or m <= 32 else 128
    return GemmShape(tokens, rows, 128 if packed else 64, stages=3 if arch.startswith("sm_") else 2)


def _with_splits(shape: GemmShape, m: int, n: int, k: int, slots: int) -> GemmShape:
    """As many programs share K as there are slots for, but each has four steps at least."""
    if shape.splits:
        return shape
    most = max(1, -(-k // shape.depth) // 4)
    return shape.divided(max(1, min(slots // shape.programs(m, n), most, 16)))
