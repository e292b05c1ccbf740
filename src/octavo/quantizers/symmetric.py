"""Symmetric int8: q = round(x / scale), scale = max|x| / 127.

Zero has the code 0 and a product needs no correction, so this is how weights of W8A8 layers and activations are stored.
The definition is that of ggml's Q8 formats and of most W8A8 papers (LLM.int8, arXiv 2208.07339, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.formats.spec import F32
from octavo.quantizers.groups import Per, Storage, grouped, spread, storage

TOP = 127


@dataclass(frozen=True, eq=False)
class SymmetricInt8:
    """Values as int8 codes [...] from -127 to 127 and float32 scales: [] for a tensor, [...] for rows or groups."""

    codes: npt.NDArray[np.int8]
    scales: F32

    def dequantize(self) -> F32:
        """float32 values of the codes' shape: code * scale."""
        values: F32 = self.codes.astype(np.float32) * spread(self.scales, self.codes.shape)
        return values

    @property
    def storage(self) -> Storage:
        return storage(self.codes, self.scales)


def quantize_symmetric(x: npt.ArrayLike, *, per: Per = "tensor", group: int = 128) -> SymmetricInt8:
    """Values [..., K] as int8, halves rounded to even; a group of zeros has the scale 0.

    Raises NonFiniteError at the first NaN or Inf, QuantFormatError for an empty array, UsageError for a `group` that
    does not divide K.

    >>> import numpy as np
    >>> x = [2.5, -1.8, 3.2, 0.5, -2.7, 1.2, -0.9, 2.1]
    >>> quantized = quantize_symmetric(x)
    >>> quantized.codes.tolist()
    [99, -71, 127, 20, -107, 48, -36, 83]
    >>> round(float(quantized.scales), 8)
    0.02519685
    >>> bool(np.abs(quantized.dequantize() - x).max() <= quantized.scales / 2)
    True
    >>> quantized.storage
    Storage(nbytes=12, bytes_per_value=1.5, compression=2.6666666666666665)
    """
    groups = grouped(x, per, group)
    scales = np.abs(groups).max(axis=-1) / np.float32(TOP)
    steps = np.divide(groups, scales[..., None], out=np.zeros_like(groups), where=scales[..., None] > 0)
    codes = np.clip(np.rint(steps), -TOP, TOP).astype(np.int8)
    return SymmetricInt8(codes.reshape(np.shape(x)), np.asarray(scales, np.float32))
