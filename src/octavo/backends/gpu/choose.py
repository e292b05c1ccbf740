"""Which kernel, in which shape, for how many tokens: the one place where that is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.backends.gpu.layout import Layout

Kind = Literal["q8_1", "f16"]

FEW = 2
"""Up to so many tokens a product reads each weight for itself, without matrix units."""
SOME = 64
"""Up to so many tokens codes go to the matrix units as they are; beyond, weights become float16 for the library's."""


def activation(tokens: int) -> Kind:
    """What a product of quantized weights wants: int8 by groups, or float16."""
    return "q8_1" if tokens <= SOME else "f16"


def padded_tokens(tokens: int) -> int:
    """Tokens between two groups' scales: TP of `kernels.activations`."""
    return tokens if tokens <= FEW else -(-tokens // 8) * 8


@dataclass(frozen=True)
class MatvecShape:
    """Rows and chunks (of 32 codes) of a program, blocks loaded ahead of waiting, and warps."""

    rows: int
    chunks: int
    ahead: int
    warps: int


def matvec(layout: Layout, n: int, kp: int, arch: str) -> MatvecShape:
    """The shape of a matvec: a thread holds a chunk of a row or two, all of K in flight at once where it is short."""
    chunks = kp // 32
    width = min(64, 1 << (chunks - 1).bit_length())
    blocks = -(-chunks // width)
    if arch == "interpreter":
        return MatvecShape(64, width, min(blocks, 2), 1)
    return MatvecShape(2, width, min(blocks, 4), max(1, width // 32))


@dataclass(frozen=True)
class FewShape:
    """Tokens and rows of a program, warps that share K, stages of loads."""

    tokens: int
    rows: int
    warps: int
    stages: int


def few(layout: Layout, n: int, kp: int, tokens: int, arch: str) -> FewShape:
    """The shape of a product with some tokens."""
    width = max(8, 1 << (min(tokens, SOME) - 1).bit_length())
    warps = 4 if kp >= 512 else 1
    return FewShape(width, 64 if arch == "interpreter" else 16, warps, 3)


SPLITS_IN_FLIGHT = 264
"""Programs of decoding attention that fill a device: two for each multiprocessor of a large one."""


def splits(sequences: int, kv_heads: int, pages: int) -> int:
    """Parts that each sequence's keys are divided in, a power of two and at most as many as there are pages."""
    wanted = max(1, min(pages, SPLITS_IN_FLIGHT // (sequences * kv_heads)))
    return int(1 << (wanted.bit_length() - 1))
