"""How prompts are divided among programs of the gated delta rule, see `gated_delta_chunks_kernel`."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.gpu.attention.tiles import TRITON_SPILLS


@dataclass(frozen=True)
class DeltaTile:
    """How prompts go through the gated delta rule.

    chunk          tokens at once
    block_v        columns of a head's matrix in a program
    warps
    stages         chunks that are under way
    part           numbers of keys that are multiplied at once to compare tokens of a chunk
    solving_warps  of programs that do so
    """

    chunk: int
    block_v: int
    warps: int
    stages: int
    part: int
    solving_warps: int


MIN_TOKENS = 16
"""The fewest tokens of prompts that go through the gated delta rule in chunks."""


def delta_tile(tokens: int, keys: int, arch: str) -> DeltaTile | None:
    """The tile of the gated delta rule for so many tokens of prompts; None: token by token.

    The registers of gfx11 hold no tile. Longer keys fit no other ones either.
    """
    if tokens < MIN_TOKENS or keys > 128 or arch.startswith("gfx11"):
        return None
    if arch == "interpreter":
        return DeltaTile((16, 32, 64)[tokens % 3], 16, 4, 1, 16, 4)
    if arch.startswith(("sm_90", "sm_10")):
        few = arch == "sm_90" and not TRITON_SPILLS
        return DeltaTile(64, 32, 4 if few else 8, 2, 64, 8)
    return DeltaTile(32, 32, 4, 1, 64, 4) if arch.startswith("gfx") else DeltaTile(32, 16, 8, 1, 32, 4)
