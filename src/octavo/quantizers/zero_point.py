"""Zero-point uint8: q = round(x / scale) + zero, over the range of the values widened to hold 0.

All 256 codes are used where values lie to one side of zero, and 0.0 has a code of its own, as padding wants. The
definition is that of Jacob et al., arXiv 1712.05877, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.formats.spec import F32, U8
from octavo.quantizers.groups import Per, Storage, grouped, spread, storage

TOP = 255


@dataclass(frozen=True, eq=False)
class ZeroPointUint8:
    """Values as uint8 codes [...], with float32 scales and uint8 zero points: [] for a tensor, [...] otherwise."""

    codes: U8
    scales: F32
    zeros: U8

    def dequantize(self) -> F32:
        """float32 values of the codes' shape: (code - zero) * scale."""
        zeros = spread(self.zeros, self.codes.shape).astype(np.float32)
        values: F32 = (self.codes.astype(np.float32) - zeros) * spread(self.scales, self.codes.shape)
        return values

    @property
    def storage(self) -> Storage:
        return storage(self.codes, self.scales, self.zeros)


def quantize_zero_point(x: npt.ArrayLike, *, per: Per = "tensor", group: int = 128) -> ZeroPointUint8:
    """Values [..., K] as uint8 with a zero point, halves rounded to even; a group of zeros has the scale 0.

    Raises NonFiniteError at the first NaN or Inf, QuantFormatError for an empty array, UsageError for a `group` that
    does not divide K.

    >>> x = [2.5, -1.8, 3.2, 0.5, -2.7, 1.2, -0.9, 2.1]
    >>> quantized = quantize_zero_point(x)
    >>> quantized.codes.tolist()
    [225, 39, 255, 139, 0, 169, 78, 208]
    >>> int(quantized.zeros), round(float(quantized.scales), 7)
    (117, 0.0231373)
    >>> quantized.storage
    Storage(nbytes=13, bytes_per_value=1.625, compression=2.4615384615384617)
    """
    groups = grouped(x, per, group)
    low, high = np.minimum(groups.min(axis=-1), 0), np.maximum(groups.max(axis=-1), 0)
    scales = high / np.float32(TOP) - low / np.float32(TOP)
    zeros = np.clip(np.rint(_over(-low, scales)), 0, TOP)
    codes = np.clip(np.rint(_over(groups, scales[..., None])) + zeros[..., None], 0, TOP).astype(np.uint8)
    return ZeroPointUint8(codes.reshape(np.shape(x)), np.asarray(scales, np.float32), zeros.astype(np.uint8))


def _over(x: F32, scale: F32) -> F32:
    """x / scale, 0 where the scale is 0."""
    x = np.asarray(x)
    return np.divide(x, scale, out=np.zeros(np.broadcast_shapes(x.shape, np.shape(scale)), np.float32), where=scale > 0)
