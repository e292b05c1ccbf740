"""Programs of the kernels of MMQ: int8 tensor cores, a few tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from octavo.backends.gpu.matmul.product import POWERS, Product, Shape
from octavo.backends.gpu.weights.layout import UNIT

INT8_MAX_TOKENS = 32
"""The most tokens that are quantized to int8; beyond, tensor cores multiply float16 weights with float16 tokens."""
MMA_MIN_TOKENS = 3
"""The fewest tokens for which the kernel written for `mma.sync` is faster than a matvec."""


@dataclass(frozen=True)
class DotShape(Shape):
    """A program of `mmq_dot_kernel`.

    block_m  tokens
    block_n  rows of weights
    warps    each takes a part of K
    stages   of loads
    split_k  programs of a tile
    """

    name = "mmq_dot"
    of_codes = True
    allowed = (POWERS[4:8], POWERS[:5], range(1, 9), range(1, 17))
    block_m: int
    block_n: int
    warps: int
    stages: int
    split_k: int = 1

    @classmethod
    def of(cls, p: Product, *numbers: int) -> DotShape | None:
        if p.tokens > INT8_MAX_TOKENS:
            return None
        block_n, warps, stages, split_k = numbers
        width = cls.width(p.tokens, p.arch)
        if p.arch.startswith("gfx11") and p.kp >= 512 and (p.layout.group == 16 or p.layout.bits == 5):
            return cls(width, 16, 2, 1)  # more does not fit its registers
        if p.kp < 512 and p.arch != "interpreter":
            return cls(width, 16, 1, 2)
        return cls(width, block_n, warps, stages, split_k)

    @staticmethod
    def width(tokens: int, arch: str) -> int:
        """Tokens of a tile: the columns of a matrix instruction at least."""
        return max(16 if arch.startswith("gfx") else 8, 1 << (min(tokens, INT8_MAX_TOKENS) - 1).bit_length())

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        """Where `mma.sync` has no kernel, and of full tiles, whose order of sums deterministic steps have."""
        if p.arch.startswith("gfx") or p.tokens == INT8_MAX_TOKENS:
            yield from ((32, 4, 2, 1), (32, 4, 2, 4), (32, 8, 2, 1), (64, 4, 2, 1))


@dataclass(frozen=True)
class MmaShape(Shape):
    """A program of `mmq_mma_kernel`.

    row_tiles    tiles of 16 rows of weights
    token_tiles  tiles of 8 tokens
    warps        each takes a part of K
    split_k      programs of a tile
    prefetch     what is loaded ahead: 1 weights, 2 tokens too
    short        there are fewer rows than a program has
    """

    name = "mmq_mma"
    of_codes = True
    allowed = (POWERS[:3], POWERS[:5], range(1, 17), range(3))
    row_tiles: int
    token_tiles: int
    warps: int
    split_k: int
    prefetch: int
    short: bool

    @classmethod
    def of(cls, p: Product, *numbers: int) -> MmaShape | None:
        if p.arch.startswith("gfx") or not MMA_MIN_TOKENS <= p.tokens <= INT8_MAX_TOKENS:
            return None
        row_tiles, warps, split_k, prefetch = numbers
        if p.arch != "interpreter":
            units = -(-p.kp // UNIT)
            warps = min(warps, 1 << (units - 1).bit_length())
            split_k = split_k if units >= 4 * warps else 1
        token_tiles = 1 << max(0, (p.tokens - 1).bit_length() - 3)
        return cls(row_tiles, token_tiles, warps, split_k, prefetch, p.n < 16 * row_tiles)

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        for (row_tiles, warps), (split_k, prefetch) in product(((1, 4), (1, 8), (2, 2)), ((1, 0), (1, 1), (2, 2))):
            yield row_tiles, warps, split_k, prefetch
