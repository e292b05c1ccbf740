"""Plain arrays as int8 or uint8 with a scale for each tensor, row or group, and the bytes that they take.

The numbers are those of `formats.rows`.

Symmetric int8 is that of ggml's Q8 formats and of most W8A8 papers (LLM.int8, arXiv 2208.07339, section 2): zero has
the code 0 and a product needs no correction. With a zero point all 256 codes are used where values lie to one side of
zero, and 0.0 has a code of its own, as padding wants (Jacob et al., arXiv 1712.05877, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from octavo.errors import QuantFormatError, UsageError
from octavo.formats import rows
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, U8, AnyArray

Per = Literal["tensor", "channel", "group"]
"""A scale for all values, for each row (an output channel of a matrix [N, K]), or for `group` neighbours in a row."""


@dataclass(frozen=True)
class Storage:
    """What a quantized array takes.

    nbytes           of codes, scales and zero points together
    bytes_per_value  nbytes over the number of values
    compression      bytes of the same values in float32, over nbytes
    """

    nbytes: int
    bytes_per_value: float
    compression: float


@dataclass(frozen=True, eq=False)
class SymmetricInt8:
    """Values as int8 codes [...] from -127 to 127 and float32 scales: [] for a tensor, [...] for rows or groups."""

    codes: npt.NDArray[np.int8]
    scales: F32

    def dequantize(self) -> F32:
        """float32 values of the codes' shape: code * scale."""
        values: F32 = self.codes.astype(np.float32) * _spread(self.scales, self.codes.shape)
        return values

    @property
    def storage(self) -> Storage:
        """What codes and scales take."""
        return _storage(self.codes, self.scales)


@dataclass(frozen=True, eq=False)
class ZeroPointUint8:
    """Values as uint8 codes [...], with float32 scales and uint8 zero points: [] for a tensor, [...] otherwise."""

    codes: U8
    scales: F32
    zeros: U8

    def dequantize(self) -> F32:
        """float32 values of the codes' shape: (code - zero) * scale."""
        zeros = _spread(self.zeros, self.codes.shape).astype(np.float32)
        values: F32 = (self.codes.astype(np.float32) - zeros) * _spread(self.scales, self.codes.shape)
        return values

    @property
    def storage(self) -> Storage:
        """What codes, scales and zero points take."""
        return _storage(self.codes, self.scales, self.zeros)


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
    codes, scales = rows.symmetric(_grouped(x, per, group), rows.INT8_TOP)
    return SymmetricInt8(codes.reshape(np.shape(x)), scales)


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
    codes, scales, zeros = rows.zero_point(_grouped(x, per, group))
    return ZeroPointUint8(codes.reshape(np.shape(x)), scales, zeros)


def _storage(codes: AnyArray, *others: AnyArray) -> Storage:
    """The storage of codes, one a value, and of their scales and zero points."""
    nbytes = codes.nbytes + sum(a.nbytes for a in others)
    values = max(1, codes.size)
    return Storage(nbytes, nbytes / values, 4 * codes.size / max(1, nbytes))


def _grouped(x: npt.ArrayLike, per: Per, group: int) -> F32:
    """Finite values as [*groups, values that share a scale], float32. `group` counts only where `per` is "group"."""
    values = np.ascontiguousarray(x, dtype=np.float32)
    if per not in get_args(Per):
        raise UsageError(f"per is {per!r} (allowed: {', '.join(get_args(Per))})")
    if np.ndim(x) == 0 or not values.size:
        raise QuantFormatError(f"values of shape {np.shape(x)} (allowed: one dimension or more, none of them empty)")
    require_finite(values, "values")
    if per == "tensor":
        return values.reshape(-1)
    if per == "channel":
        return values
    if group < 1 or values.shape[-1] % group:
        raise UsageError(f"group is {group} for rows of {values.shape[-1]} values, which it does not divide")
    return values.reshape(*values.shape[:-1], values.shape[-1] // group, group)


def _spread(per_group: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    """Scales [*groups] so that they broadcast over codes of `shape`."""
    if per_group.ndim == 0:
        return per_group
    if per_group.ndim == len(shape):
        return np.repeat(per_group, shape[-1] // per_group.shape[-1], axis=-1)
    return per_group[..., None]
