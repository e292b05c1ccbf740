"""Weights of 4 bits for products with activations of 8, scaled for each channel, or on two levels for groups of 128.

The two levels are those of QQQ (arXiv 2406.09904, section 3.3): a group's scale turns 4-bit codes into 8-bit ones,
rounded, so that one integer sum runs over all of K and the channel's scale comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from octavo.errors import NonFiniteError, QuantFormatError
from octavo.formats.codec import require_finite
from octavo.formats.rows import GROUP, INT4_TOP, fold, pack_int4, symmetric, two_levels, unpack_int4
from octavo.formats.spec import F32, AnyArray
from octavo.ops.place import BYTE_TYPES, is_torch, to_numpy
from octavo.ops.types import AnyTensor

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class W4A8Weight:
    """A weight [N, K]; K is a multiple of 128. NumPy arrays, or torch tensors of one device.

    packed         uint8 [N, K / 2]: byte j of each 64 holds the codes j and j + 64 of 128 values of K, the first in its
                   low half. Codes are -8 to 7 in two's complement (quantizers use -7 to 7)
    channel_scale  float32 [N]
    group_scale    float16 [N, K / 128], or None: the weights are code * channel_scale, or
                   round(code * group_scale) * channel_scale, halves rounded to even

    Raises QuantFormatError where shapes or types do not fit one another, or a scale makes 8-bit weights beyond
    -128 to 127, and NonFiniteError for scales that are NaN or Inf.
    """

    packed: Any
    channel_scale: Any
    group_scale: Any = None

    def __post_init__(self) -> None:
        for name in ("packed", "channel_scale", "group_scale"):
            part = getattr(self, name)
            if not (part is None and name == "group_scale") and not isinstance(part, np.ndarray) and not is_torch(part):
                raise QuantFormatError(f"{name} is {type(part).__name__} (allowed: a NumPy array or a torch tensor)")
        packed, channels = self.packed, self.channel_scale
        if packed.ndim != 2 or packed.shape[1] % (GROUP // 2) or _dtype(packed) != "uint8":
            raise QuantFormatError(
                f"packed codes are {_dtype(packed)} {list(packed.shape)} (allowed: uint8 [N, K / 2], K a multiple of"
                f" {GROUP})"
            )
        n, k = self.shape
        if tuple(channels.shape) != (n,) or _dtype(channels) != "float32":
            raise QuantFormatError(
                f"scales of channels are {_dtype(channels)} {list(channels.shape)}, not float32 [{n}]"
            )
        _require_finite(channels, "scales of channels")
        groups = self.group_scale
        if groups is None:
            return
        if tuple(groups.shape) != (n, k // GROUP) or _dtype(groups) != "float16":
            raise QuantFormatError(
                f"scales of groups are {_dtype(groups)} {list(groups.shape)}, not float16 [{n}, {k // GROUP}]"
            )
        _require_finite(groups, "scales of groups")
        largest = float(abs(groups).max()) if n and k else 0.0
        if largest * 8 > 128.5:
            codes, scales = self.codes(), _numpy(groups)
            if not _fits(codes, scales):
                raise QuantFormatError(
                    f"scales of groups up to {largest} make 8-bit weights of more than 8 bits (allowed: -128 to 127)"
                )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return int(self.packed.shape[0]), 2 * int(self.packed.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        n, k = self.shape
        return n * k // 2 + 4 * n + (0 if self.group_scale is None else 2 * n * (k // GROUP))

    def to(self, device: str | torch.device) -> W4A8Weight:
        """The weight as torch tensors on a device."""
        import torch

        parts = (self.packed, self.channel_scale, self.group_scale)
        return W4A8Weight(*(None if x is None else torch.as_tensor(x).to(device) for x in parts))

    def codes(self) -> npt.NDArray[np.int8]:
        """The codes, int8 [N, K] from -8 to 7, in NumPy."""
        return unpack_int4(_numpy(self.packed))

    def int8(self) -> npt.NDArray[np.int8]:
        """The weights that the product sums over, int8 [N, K], in NumPy: the codes, times their groups' scales."""
        codes = self.codes()
        if self.group_scale is None:
            return codes
        return _scaled(codes, _numpy(self.group_scale)).astype(np.int8).reshape(self.shape)

    def dequantize(self) -> F32:
        """The weights' values, float32 [N, K], in NumPy."""
        values: F32 = self.int8().astype(np.float32) * _numpy(self.channel_scale)[:, None]
        return values


def quantize_w4a8(w: AnyTensor, group: Literal[128] | None = None) -> W4A8Weight:
    """Weights [N, K] rounded to the nearest of 15 codes, with a scale for each channel, or for `group` = 128 values.

    w is a NumPy array, or a torch tensor anywhere, beside which the result lies then; codes are worked out in NumPy. Of
    groups, the scale is float16, relative to the channel's, which makes the channel's largest weight 127.
    Raises NonFiniteError at the first NaN or Inf, QuantFormatError where K is not a multiple of 128 or `group` not 128,
    or w holds no real numbers.
    """
    if is_torch(w):
        tensor = cast("torch.Tensor", w)
        return quantize_w4a8(to_numpy(tensor.cpu()), group).to(tensor.device)
    given = np.asarray(w)
    if given.dtype.kind not in "iuf" and given.dtype.name not in BYTE_TYPES:
        raise QuantFormatError(f"weights are {given.dtype} (allowed: floats or integers)")
    values = np.ascontiguousarray(given, np.float32)
    if values.ndim != 2 or values.shape[1] % GROUP:
        raise QuantFormatError(f"weights of shape {list(values.shape)} (allowed: [N, K], K a multiple of {GROUP})")
    if group not in (None, GROUP):
        raise QuantFormatError(f"groups of {group} (allowed: {GROUP}, or None for whole channels)")
    require_finite(values, "weights")
    n, k = values.shape
    codes, scale = symmetric(values.reshape((n, k // GROUP, GROUP) if group else (n, 1, k)), INT4_TOP)
    packed = pack_int4(codes.reshape(n, k))
    if group is None:
        return W4A8Weight(packed, scale[:, 0])
    channel, relative = two_levels(scale, INT4_TOP)
    return W4A8Weight(packed, channel[:, 0], relative)


def _scaled(codes: npt.NDArray[np.int8], scales: AnyArray) -> F32:
    groups = codes.reshape(*scales.shape, GROUP).astype(np.float32)
    fold(groups, scales)
    return groups


def _fits(codes: npt.NDArray[np.int8], scales: AnyArray) -> bool:
    weights = _scaled(codes, scales)
    return bool(weights.min() >= -128 and weights.max() <= 127)


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _numpy(x: Any) -> AnyArray:
    array: AnyArray = x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()
    return array


def _require_finite(x: Any, label: str) -> None:
    if isinstance(x, np.ndarray):
        require_finite(np.ascontiguousarray(x), label)
    elif not bool(x.isfinite().all()):
        raise NonFiniteError(f"{label}: NaN or Inf")
