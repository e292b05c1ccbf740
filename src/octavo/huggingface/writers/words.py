"""Codes of 4 and 8 bits in words of 32, the first in the lowest bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.formats.spec import U8


def words(codes: U8, bits: int) -> npt.NDArray[np.int32]:
    """Codes uint8 [N, K], of 4 or 8 bits, as int32 [N, K * bits / 32]: neighbours in a word."""
    return np.ascontiguousarray(pairs(codes) if bits == 4 else codes).view("<i4")


def pairs(codes: U8) -> U8:
    """Codes 0 to 15, uint8 [N, K], as bytes [N, K / 2], the first of two in the low half."""
    both: U8 = codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))
    return both
