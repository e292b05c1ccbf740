"""How much of a row a program takes, and with how many warps."""

from __future__ import annotations

from triton import next_power_of_2

QUANTIZE_BLOCK = 256
"""Values that a program quantizes, unless it needs a whole row."""


def block_of(k: int, most: int = 1024) -> int:
    """Values of a row of k that a program takes."""
    return min(most, int(next_power_of_2(k)))


def warps_of(block: int) -> int:
    """Warps for a program that takes a whole row."""
    return max(1, min(16, block // 256))
