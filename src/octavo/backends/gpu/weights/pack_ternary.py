"""Codes that are digits to the base 3 in the GPU layout and back, in NumPy (see `layout`)."""

from __future__ import annotations

import numpy as np

from octavo.backends.gpu.weights.layout import DIGIT_WORDS
from octavo.formats.spec import U8

POWERS = 3 ** np.arange(4, -1, -1)
"""What digits of a byte count for, the first one most."""


def pack_digits(q: U8) -> U8:
    """Codes 0, 1 and 2 [N, Kp] as bytes [N, 4 * DIGIT_WORDS * Kp / 256]."""
    n = len(q)
    words = q.reshape(n, -1, 2, 2, 4, 4, 4).transpose(0, 1, 4, 2, 3, 5, 6)
    words = words.reshape(n, -1, 4, 16, 4)  # [N, block, t, word, byte]
    own = words[..., :15, :].reshape(n, -1, 4, 3, 5, 4)
    own = _bytes_of(np.moveaxis(own, -2, -1)).transpose(0, 3, 1, 2, 4)  # [N, j, block, t, byte]
    last = words[..., 15, :].swapaxes(-2, -1)  # [N, block, byte, t]
    return np.concatenate([own.reshape(n, -1), _bytes_of(last).reshape(n, -1)], axis=1)


def unpack_digits(digits: U8) -> U8:
    """The inverse of `pack_digits`."""
    n, blocks = len(digits), digits.shape[1] // (4 * DIGIT_WORDS)
    own = digits[:, : 48 * blocks].reshape(n, 3, blocks, 4, 4).transpose(0, 2, 3, 1, 4)  # [N, block, t, j, byte]
    own = np.moveaxis(_digits_of(own, 5), -1, -2).reshape(n, blocks, 4, 15, 4)
    last = _digits_of(digits[:, 48 * blocks :].reshape(n, blocks, 4), 4).swapaxes(-2, -1)  # [N, block, t, byte]
    words = np.concatenate([own, last[..., None, :]], axis=-2).reshape(n, blocks, 4, 2, 2, 4, 4)
    return np.ascontiguousarray(words.transpose(0, 1, 3, 4, 2, 5, 6)).reshape(n, -1)


def _bytes_of(digits: U8) -> U8:
    """Digits [..., 4 or 5], the highest first, as a byte each."""
    number = digits @ POWERS[: digits.shape[-1]]
    return ((number * 256 + 242) // 243).astype(np.uint8)


def _digits_of(number: U8, count: int) -> U8:
    """The inverse of `_bytes_of`: [..., count]."""
    left, out = number.astype(np.uint16), []
    for _ in range(count):
        left = left * np.uint16(3)
        out.append((left >> np.uint16(8)).astype(np.uint8))
        left &= np.uint16(255)
    return np.stack(out, axis=-1)
