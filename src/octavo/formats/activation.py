"""Formats of activations: what a product turns its second factor into before it multiplies.

A value is (code - zero) * scale. Scales and zero points belong to a group of `group` values of a row, or to the whole
row (a token). Sums pay for the offsets and minima of the weights: sum((q - z) * x) = sum(q * x) - z * sum(x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.errors import BackendError, QuantFormatError
from octavo.formats.channel import FP8_TOP
from octavo.formats.codec import require_finite
from octavo.formats.scalars import e4m3_to_f32, f32_to_e4m3
from octavo.formats.spec import F32, AnyArray, BlockFormat
from octavo.formats.table import by_name

ROW = 0  # `group` of a format whose scale belongs to a whole row


@dataclass(frozen=True)
class QuantizedActivation:
    """Activations [..., K] in a format; groups = K / group, or 1 where a row shares its scale.

    codes   [..., K]: float32 (also of e4m3 numbers), float16, int8 or uint8
    scales  float32 [..., groups]; None for plain floats
    sums    float32 [..., groups]: the sum of the group's values as they are stored, scale * sum(codes)
    zeros   int32 [..., groups]: the code of 0.0
    """

    format: ActivationFormat
    codes: AnyArray
    scales: F32 | None = None
    sums: F32 | None = None
    zeros: npt.NDArray[np.int32] | None = None

    def dequantize(self) -> F32:
        """float32 values [..., K]."""
        values = self.codes.astype(np.float32)
        if self.scales is None:
            return values
        groups = values.reshape(*self.scales.shape, values.shape[-1] // self.scales.shape[-1])  # also of no rows
        if self.zeros is not None:
            groups = groups - self.zeros[..., None].astype(np.float32)
        return (groups * self.scales[..., None]).reshape(self.codes.shape)


@dataclass(frozen=True)
class ActivationFormat:
    """A row of the table of activation formats.

    bits      bits of a code
    group     values that share a scale, or ROW
    stored    what is kept, for the documentation
    quantize  the reference quantizer; None where the layout is a kernel's own and is defined beside it
    """

    name: str
    bits: int
    group: int
    stored: str
    quantize: Callable[[npt.ArrayLike], QuantizedActivation] | None = None


def _values(x: npt.ArrayLike, group: int = 1) -> F32:
    values = np.ascontiguousarray(x, dtype=np.float32)
    if values.shape[-1] % group:
        raise QuantFormatError(f"activations of {values.shape[-1]} values (allowed: multiples of {group})")
    require_finite(values, "activations")
    return values


def _f32(x: npt.ArrayLike) -> QuantizedActivation:
    return QuantizedActivation(activation("f32"), _values(x))


def _f16(x: npt.ArrayLike) -> QuantizedActivation:
    with np.errstate(over="ignore"):
        half = _values(x).astype(np.float16)
    require_finite(half, "activations in f16")
    return QuantizedActivation(activation("f16"), half)


def _q8_1(x: npt.ArrayLike) -> QuantizedActivation:
    """Codes and scales of the weight format Q8_0, the scale not rounded to f16."""
    row = by_name("Q8_0")
    values = _values(x, row.group)
    assert row.encode is not None
    with np.errstate(all="ignore"):
        planes = row.encode(row, values)
    assert planes.d is not None
    codes = (planes.q ^ np.uint8(0x80)).view(np.int8)
    sums = codes.reshape(*planes.d.shape, row.group).sum(axis=-1, dtype=np.int32)
    return QuantizedActivation(activation("q8_1"), codes, planes.d, sums=sums.astype(np.float32) * planes.d)


def _scaled(values: F32, scale: F32) -> F32:
    """values / scale, 0 where the scale is 0."""
    return np.divide(values, scale, out=np.zeros_like(values), where=scale > 0)


def _int8_token(x: npt.ArrayLike) -> QuantizedActivation:
    """Symmetric: the largest magnitude of the row is 127 steps."""
    values = _values(x)
    scale = np.abs(values).max(axis=-1, keepdims=True) / np.float32(127)
    codes = np.clip(np.rint(_scaled(values, scale)), -127, 127).astype(np.int8)
    return QuantizedActivation(activation("int8_token"), codes, scale)


def _uint8_token(x: npt.ArrayLike) -> QuantizedActivation:
    """Affine over the row's range widened to zero, so that 0.0 has a code of its own."""
    values = _values(x)
    low = np.minimum(values.min(axis=-1, keepdims=True), 0)
    high = np.maximum(values.max(axis=-1, keepdims=True), 0)
    scale = high / np.float32(255) - low / np.float32(255)
    zero = np.clip(np.rint(_scaled(-low, scale)), 0, 255)
    codes = np.clip(np.rint(_scaled(values, scale)) + zero, 0, 255).astype(np.uint8)
    return QuantizedActivation(activation("uint8_token"), codes, scale, zeros=zero.astype(np.int32))


def _fp8_token(x: npt.ArrayLike) -> QuantizedActivation:
    """The largest magnitude of the row is e4m3's, 448; codes are e4m3 numbers, kept as float32."""
    values = _values(x)
    scale = np.abs(values).max(axis=-1, keepdims=True) / FP8_TOP
    codes = e4m3_to_f32(f32_to_e4m3(np.clip(_scaled(values, scale), -FP8_TOP, FP8_TOP)))
    return QuantizedActivation(activation("fp8_token"), codes, scale)


ACTIVATIONS: tuple[ActivationFormat, ...] = (
    ActivationFormat("f32", 32, ROW, "f32 values", _f32),
    ActivationFormat("f16", 16, ROW, "f16 values", _f16),
    ActivationFormat("q8_1", 8, 32, "s8 codes; scale and sum per 32", _q8_1),
    ActivationFormat("q8_1_mmq", 8, 128, "s8 codes; 16 bytes of scales and sums per 128, in one of three layouts"),
    ActivationFormat("int8_token", 8, ROW, "s8 codes; f32 scale per token", _int8_token),
    ActivationFormat("uint8_token", 8, ROW, "u8 codes; f32 scale and zero point per token", _uint8_token),
    ActivationFormat("fp8_token", 8, ROW, "e4m3 values; f32 scale per token", _fp8_token),
)

_BY_NAME = {row.name: row for row in ACTIVATIONS}

# For each backend, up to how many tokens a product takes what its weights ask for, and what stands in beyond that.
_DEFAULTS: dict[str, tuple[float, dict[str, str]]] = {
    "reference": (0, dict.fromkeys(_BY_NAME, "f32")),
    "cpu": (float("inf"), {}),
    "gpu": (8, {"q8_1": "q8_1_mmq"}),
}


def activation(name: str) -> ActivationFormat:
    """The activation format of this name. Raises QuantFormatError for an unknown one."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise QuantFormatError(f"unknown activation format {name!r} (allowed: {', '.join(_BY_NAME)})") from None


def default_activation(weights: BlockFormat, n_tokens: int, backend: str) -> ActivationFormat:
    """What a product of `weights` with `n_tokens` activations takes on a backend, if the caller does not say.

    The reference backend computes in f32. Raises BackendError for an unknown backend.
    """
    if backend not in _DEFAULTS:
        raise BackendError(f"no default activation format for backend {backend!r} (allowed: {', '.join(_DEFAULTS)})")
    few, beyond = _DEFAULTS[backend]
    wanted = weights.activation
    return activation(wanted if n_tokens <= few else beyond.get(wanted, wanted))
