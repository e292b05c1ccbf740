"""Programs of `matvec_kernel`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from octavo.backends.gpu.matmul.product import POWERS, Product, Shape

MATVEC_MAX_TOKENS = 4
"""The most tokens of a matvec, which needs no tensor cores."""


@dataclass(frozen=True)
class MatvecShape(Shape):
    """A program of `matvec_kernel`.

    block_n   rows of weights
    chunks    chunks of 32 codes that are loaded at once
    prefetch  blocks of that many chunks that are loaded before activations are waited for
    warps
    early     all of a token is loaded before anything is multiplied
    """

    name = "matvec"
    allowed = (POWERS[:7], POWERS[:8], range(1, 9), POWERS[:5], (0, 1))
    block_n: int
    chunks: int
    prefetch: int
    warps: int
    early: bool = False

    @classmethod
    def of(cls, p: Product, *numbers: int) -> MatvecShape | None:
        if p.tokens > MATVEC_MAX_TOKENS:
            return None
        block_n, chunks, prefetch, warps, early = numbers
        width = min(chunks, 1 << (p.chunks - 1).bit_length())
        warps = warps if width == chunks else max(1, width // 32)
        return cls(block_n, width, min(prefetch, -(-p.chunks // width)), warps, bool(early))

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        for (block_n, chunks), prefetch in product(((4, 32), (8, 32), (2, 64), (4, 64), (4, 128)), (1, 2)):
            yield block_n, chunks, prefetch, chunks // 32, int(p.tokens == 1)
