"""How prompts are divided among programs of `gated_delta_chunks_kernel` and `mamba2_chunks_kernel`."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.gpu.attention.attention_tiles import TRITON_SPILLS


@dataclass(frozen=True)
class ChunkTile:
    """How prompts go through a scan.

    chunk          tokens at once
    block_v        columns of a head's matrix in a program
    warps
    stages         chunks that are under way
    part           numbers of keys that are multiplied at once to compare tokens of a chunk
    scoring_warps  of programs that do so
    """

    chunk: int
    block_v: int
    warps: int
    stages: int
    part: int
    scoring_warps: int


MIN_TOKENS = 16
"""The fewest tokens of prompts that go in chunks."""
MAX_DELTA_KEYS, MAX_KEYS = 128, 256
"""Rows of a matrix of the delta rule, or of a selective scan, beyond which no tile fits registers."""


def delta_tile(tokens: int, keys: int, arch: str) -> ChunkTile | None:
    """The tile of the gated delta rule for prompts of `tokens` in all; None: token by token."""
    return None if keys > MAX_DELTA_KEYS else scan_tile(tokens, keys, arch)


def scan_tile(tokens: int, keys: int, arch: str) -> ChunkTile | None:
    """The tile of the selective scan for prompts of `tokens` in all; None: token by token.

    The registers of gfx11 hold no tile.
    """
    if tokens < MIN_TOKENS or keys > MAX_KEYS or arch.startswith("gfx11"):
        return None
    if arch == "interpreter":
        return ChunkTile((16, 32, 64)[tokens % 3], 16, 4, 1, 16, 4)
    if arch.startswith(("sm_90", "sm_10")):
        few = arch == "sm_90" and not TRITON_SPILLS
        return ChunkTile(64, 32, 4 if few else 8, 2, 64, 8) if keys <= 128 else ChunkTile(64, 16, 8, 1, 64, 8)
    if arch.startswith("gfx"):
        return ChunkTile(32, 32 if keys <= 128 else 16, 4, 1, 64, 4)
    return ChunkTile(32, 16, 8, 1, 32, 4)


def columns(keys: int, arch: str) -> int:
    """Columns of a head's matrix in a program that takes a sequence of the selective scan token by token.

    Many sequences go faster in wide parts, whose rows are longer in memory; the registers of gfx11 hold no wide part of
    a tall matrix.
    """
    return 32 if keys > 128 and arch.startswith("gfx11") else 64
