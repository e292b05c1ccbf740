"""Formats of activations: what a product turns its second factor into before it multiplies.

A value is code * scale. Scales belong to a group of `group` values of a row, or to the whole row (a token). Sums pay
for the offsets and minima of the weights: sum((q - z) * x) = sum(q * x) - z * sum(x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.errors import QuantFormatError
from octavo.formats import rows
from octavo.formats.codec import require_finite
from octavo.formats.scalars import bf16_to_f32, e4m3_to_f32, f32_to_bf16, f32_to_e4m3
from octavo.formats.spec import F32, AnyArray
from octavo.formats.table import by_name

ROW = 0  # `group` of a format whose scale belongs to a whole row


@dataclass(frozen=True)
class QuantizedActivation:
    """Activations [..., K] in a format; groups = K / group, or 1 where a row shares its scale.

    codes   [..., K]: float32 (also of e4m3 numbers), float16 or int8
    scales  float32 [..., groups]; None for plain floats
    sums    float32 [..., groups]: the sum of the group's values as they are stored, scale * sum(codes)
    """

    format: ActivationFormat
    codes: AnyArray
    scales: F32 | None = None
    sums: F32 | None = None

    def dequantize(self) -> F32:
        """float32 values [..., K]."""
        values = self.codes.astype(np.float32)
        if self.scales is None:
            return values
        groups = values.reshape(*self.scales.shape, values.shape[-1] // self.scales.shape[-1])  # no -1: 0 rows
        return (groups * self.scales[..., None]).reshape(self.codes.shape)


@dataclass(frozen=True)
class ActivationFormat:
    """A row of the table of activation formats.

    bits      bits of a code
    group     values that share a scale, or ROW
    stored    what is kept, for the documentation
    quantize  the reference quantizer; None where the layout is a kernel's own and is defined beside it
    given     the reference quantizer of a format whose scale is given, the same for all tokens
    """

    name: str
    bits: int
    group: int
    stored: str
    quantize: Callable[[npt.ArrayLike], QuantizedActivation] | None = None
    given: Callable[[npt.ArrayLike, float], QuantizedActivation] | None = None


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


def _bf16(x: npt.ArrayLike) -> QuantizedActivation:
    rounded = bf16_to_f32(f32_to_bf16(_values(x)))
    require_finite(rounded, "activations in bf16")
    return QuantizedActivation(activation("bf16"), rounded)


def _q8_1(x: npt.ArrayLike) -> QuantizedActivation:
    """Codes and scales of the weight format Q8_0, the scale not rounded to f16."""
    q8_0 = by_name("Q8_0")
    values = _values(x, q8_0.group)
    assert q8_0.encode is not None
    with np.errstate(all="ignore"):
        planes = q8_0.encode(q8_0, values)
    assert planes.d is not None
    codes = (planes.q ^ np.uint8(0x80)).view(np.int8)
    sums = codes.reshape(*planes.d.shape, q8_0.group).sum(axis=-1, dtype=np.int32)
    return QuantizedActivation(activation("q8_1"), codes, planes.d, sums=sums.astype(np.float32) * planes.d)


def _int8_token(x: npt.ArrayLike) -> QuantizedActivation:
    codes, scale = rows.symmetric(_values(x), rows.INT8_TOP)
    return QuantizedActivation(activation("int8_token"), codes, scale[..., None])


def _fp8_token(x: npt.ArrayLike) -> QuantizedActivation:
    """Codes are e4m3 numbers, kept as float32."""
    values, top = _values(x), rows.FP8_TOP["e4m3"]
    scale = rows.symmetric_scale(values, top)
    codes = e4m3_to_f32(f32_to_e4m3(rows.in_range(values, scale, top)))
    return QuantizedActivation(activation("fp8_token"), codes, scale[..., None])


def _int8_static(x: npt.ArrayLike, scale: float) -> QuantizedActivation:
    values = _values(x)
    return QuantizedActivation(activation("int8_static"), rows.static_int8(values, scale), _every_row(values, scale))


def _fp8_static(x: npt.ArrayLike, scale: float) -> QuantizedActivation:
    """Codes are e4m3 numbers, kept as float32."""
    values, top = _values(x), rows.FP8_TOP["e4m3"]
    codes = e4m3_to_f32(f32_to_e4m3(rows.in_range(values, np.asarray(scale, np.float32), top)))
    return QuantizedActivation(activation("fp8_static"), codes, _every_row(values, scale))


def _every_row(values: F32, scale: float) -> F32:
    return np.full((*values.shape[:-1], 1), scale, np.float32)


ACTIVATIONS: tuple[ActivationFormat, ...] = (
    ActivationFormat("f32", 32, ROW, "f32 values", _f32),
    ActivationFormat("f16", 16, ROW, "f16 values", _f16),
    ActivationFormat("bf16", 16, ROW, "bf16 values", _bf16),
    ActivationFormat("q8_1", 8, 32, "s8 codes; scale and sum per 32", _q8_1),
    ActivationFormat("q8_1_mmq", 8, 128, "s8 codes; 16 bytes of scales and sums per 128, in one of three layouts"),
    ActivationFormat("f16_tiles", 16, ROW, "f16 values of whole tiles of 128, and in a kernel's own order"),
    ActivationFormat("int8_token", 8, ROW, "s8 codes; f32 scale per token", _int8_token),
    ActivationFormat("fp8_token", 8, ROW, "e4m3 values; f32 scale per token", _fp8_token),
    ActivationFormat("int8_static", 8, ROW, "s8 codes; one f32 scale, given", given=_int8_static),
    ActivationFormat("fp8_static", 8, ROW, "e4m3 values; one f32 scale, given", given=_fp8_static),
)

STATIC = {"int8_token": "int8_static", "fp8_token": "fp8_static"}
"""Formats with a scale per token, and those with the same codes whose scale is given (a layer's weight has it)."""

_BY_NAME = {row.name: row for row in ACTIVATIONS}


def activation(name: str) -> ActivationFormat:
    """The activation format of this name. Raises QuantFormatError for an unknown one."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise QuantFormatError(f"unknown activation format {name!r} (allowed: {', '.join(_BY_NAME)})") from None
