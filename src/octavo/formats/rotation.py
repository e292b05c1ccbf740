"""The rotation of heads before they are stored in few bits: no channel stays larger than the others.

Values [..., D] are multiplied with the signs of a bent function, and then with a Hadamard matrix over its square root:
in blocks of the largest power of two that divides D. The matrix spreads what one channel has over its block; the signs
(of the Rudin-Shapiro sequence) do so with what all channels have in common, which the matrix alone would bring into one
number. Products of two vectors stay what they were, as the rotation is orthogonal.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from octavo.formats.spec import F32

Float = TypeVar("Float", bound=np.floating)


def block_of(dim: int) -> int:
    """Values that are mixed with each other: the largest power of two that divides `dim`."""
    return dim & -dim


def signs(dim: int) -> F32:
    """The Rudin-Shapiro sequence, float32 [dim]: -1 where i has '11' an odd number of times in binary, else 1."""
    at = np.arange(dim)
    pairs = at & (at >> 1)
    ones = np.unpackbits(pairs.astype(np.uint32).view(np.uint8).reshape(dim, 4), axis=1).sum(axis=1)
    return np.where(ones % 2, -1, 1).astype(np.float32)


def rotate(x: F32) -> F32:
    """Values [..., D] rotated; float32, in the order of sums that kernels keep: pairs of 1 apart first, then of 2."""
    return _mixed(x * signs(x.shape[-1]))


def rotate_back(x: F32) -> F32:
    """What `rotate` makes x of."""
    return _mixed(x) * signs(x.shape[-1])


def _mixed(x: F32) -> F32:
    block = block_of(x.shape[-1])
    blocks = hadamard(x.reshape(*x.shape[:-1], -1, block))
    mixed: F32 = blocks.reshape(x.shape) * np.float32(block**-0.5)
    return mixed


def hadamard(x: npt.NDArray[Float]) -> npt.NDArray[Float]:
    """Values [..., 2^p] times the Hadamard matrix of 1 and -1: pairs of 1 apart first, then of 2."""
    n, apart = x.shape[-1], 1
    while apart < n:
        pairs = x.reshape(*x.shape[:-1], n // (2 * apart), 2, apart)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        x, apart = np.stack([low + high, low - high], axis=-2).reshape(x.shape), 2 * apart
    return x
