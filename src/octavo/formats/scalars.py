"""Stored numbers: how the bits of one value read as float32, and the way back.

bf16   the upper half of a float32
e8m0   a power of two, the scale of the OCP Microscaling formats (MX v1.0); here halved, see `e8m0_half_to_f32`
ue4m3  an 8-bit float without sign (4 exponent bits, bias 7, 3 mantissa bits), the scale of NVFP4; halved likewise
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from octavo.formats.array_like import look_up
from octavo.formats.spec import F32, U8, AnyArray, Number


def _to_f32(x: AnyArray) -> F32:
    with np.errstate(invalid="ignore", over="ignore"):  # signalling NaN; float64 beyond float32
        return x.astype(np.float32)


def _as_is(x: F32) -> AnyArray:
    return x


def _to_f64(x: F32) -> AnyArray:
    return x.astype(np.float64)


def _to_f16(x: F32) -> AnyArray:
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def bf16_to_f32(x: AnyArray) -> F32:
    """The float32 values of bfloat16 bits (uint16)."""
    return (x.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x: F32) -> npt.NDArray[np.uint16]:
    """The bfloat16 bits (uint16) nearest to finite float32 values, ties to even."""
    n = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((n + (0x7FFF + ((n >> 16) & 1))) >> 16).astype(np.uint16)


def _e8m0_half_table() -> F32:
    x = np.arange(256, dtype=np.uint32)
    # 2^(x - 128): the exponent field of a float32 is x - 1, and the two smallest are subnormal
    bits = np.where(x < 2, np.uint32(0x00200000) << x, (x - 1) << 23)
    return bits.astype(np.uint32).view(np.float32)


def _ue4m3_half_table() -> F32:
    x = np.arange(256)
    exponent, mantissa = (x >> 3) & 15, x & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where(x == 0x7F, 0, value / 2).astype(np.float32)


_E8M0_HALF = _e8m0_half_table()
_UE4M3_HALF = _ue4m3_half_table()
UE4M3_HALF_MAX = 224.0


@cache
def _e4m3_table() -> F32:
    import ml_dtypes

    with np.errstate(invalid="ignore"):
        table: F32 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return table


def e4m3_to_f32(x: U8) -> F32:
    """The float32 values of e4m3 bytes (OCP's e4m3fn: no infinities, 0x7F and 0xFF are NaN)."""
    return look_up(_e4m3_table(), x)


def f32_to_e4m3(x: F32) -> U8:
    """The e4m3 bytes nearest to values from -448 to 448, ties to even."""
    import ml_dtypes

    return np.ascontiguousarray(x).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def e8m0_half_to_f32(x: U8) -> F32:
    """2^(x - 128), half the value of an e8m0 scale: the 4-bit table beside it holds doubled values."""
    return look_up(_E8M0_HALF, x)


def ue4m3_half_to_f32(x: U8) -> F32:
    """Half the value of a ue4m3 scale; 0x7F (NaN elsewhere) reads as 0, and bit 7 is ignored save in 0xFF."""
    return look_up(_UE4M3_HALF, x)


def _nearest(ascending: F32, x: F32) -> U8:
    """The index of the entry nearest to each x, the upper one of two equally near."""
    middles = (ascending[:-1].astype(np.float64) + ascending[1:]) / 2
    return np.searchsorted(middles, x, side="right").astype(np.uint8)


def f32_to_e8m0_half(x: F32) -> U8:
    """The e8m0 byte whose halved value is nearest to x >= 0."""
    return _nearest(_E8M0_HALF[:255], x)


def f32_to_ue4m3_half(x: F32) -> U8:
    """The ue4m3 byte whose halved value is nearest to x >= 0."""
    return _nearest(_UE4M3_HALF[:127], x)


F32_NUMBER = Number("f32", decode=_to_f32, encode=_as_is)
F16_NUMBER = Number("f16", decode=_to_f32, encode=_to_f16)
BF16_NUMBER = Number("bf16", decode=bf16_to_f32, encode=f32_to_bf16)
F64_NUMBER = Number("f64", decode=_to_f32, encode=_to_f64)
E4M3_NUMBER = Number("e4m3", decode=e4m3_to_f32, encode=f32_to_e4m3)
INTEGER = Number("integer", decode=_to_f32)
