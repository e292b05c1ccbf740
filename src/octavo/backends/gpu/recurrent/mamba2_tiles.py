"""How prompts are divided among programs of the selective scan, see `mamba2_chunks_kernel`."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.gpu.attention.tiles import TRITON_SPILLS


@dataclass(frozen=True)
class ScanTile:
    """How prompts go through the selective scan.

    chunk          tokens at once
    block_v        columns of a head's matrix in a program
    warps
    stages         chunks that are under way
    part           rows of a matrix that are multiplied at once to compare tokens of a chunk
    scoring_warps  of programs that do so
    """

    chunk: int
    block_v: int
    warps: int
    stages: int
    part: int
    scoring_warps: int


MIN_TOKENS = 16
"""The fewest tokens of prompts that go through the selective scan in chunks."""
MOST_KEYS = 256
"""Rows of a matrix beyond which no tile fits registers."""


def scan_tile(tokens: int, keys: int, arch: str) -> ScanTile | None:
    """The tile of the selective scan for so many tokens of prompts; None: token by token.

    The registers of gfx11 hold no tile.
    """
    if tokens < MIN_TOKENS or keys > MOST_KEYS or arch.startswith("gfx11"):
        return None
    if arch == "interpreter":
        return ScanTile((16, 32, 64)[tokens % 3], 16, 4, 1, 16, 4)
    if arch.startswith(("sm_90", "sm_10")):
        few = arch == "sm_90" and not TRITON_SPILLS
        return ScanTile(64, 32, 4 if few else 8, 2, 64, 8) if keys <= 128 else ScanTile(64, 16, 8, 1, 64, 8)
    return ScanTile(32, 32 if keys <= 128 else 16, 4, 1, 64, 4) if arch.startswith("gfx") else ScanTile(
        32, 16, 8, 1, 32, 4)


def columns(keys: int, arch: str) -> int:
    """Columns of a head's matrix in a program that takes a sequence token by token.

    Many sequences go faster in wide parts, whose rows are longer in memory; the registers of gfx11 hold no wide part of
    a tall matrix.
    """
    return 32 if keys > 128 and arch.startswith("gfx11") else 64
