"""Numbers to 8 bits, as functions: int8, fp8, and the blocks of activations that quantized products read."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from octavo.errors import UsageError
from octavo.formats.activation import activation
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, AnyArray
from octavo.ops import check, definition
from octavo.ops.definition import Fp8, Granularity
from octavo.ops.place import gpu_module, like, on_gpu, to_numpy


def quantize_int8(x: Any, granularity: Granularity = "tensor", symmetric: bool = True) -> tuple[Any, ...]:
    """x [M, K], float32, float16 or bfloat16, as int8 codes [M, K] and float32 scales; halves are rounded to even.

    granularity  who shares a scale: "tensor" (scales are []), "token" or "channel", a row ([M, 1]), or a number of
                 values in a row that divides K ([M, K / number])
    symmetric    code = round(x / scale), scale = max|x| / 127; zeros have the scale 0. Otherwise codes from -128 to 127
                 over the range of x widened to hold 0, and as third result int32 zero points, shaped as the scales:
                 x = (code - zero) * scale

    Raises UsageError for other shapes, types or granularities, and, on the CPU, NonFiniteError at the first NaN or Inf.
    """
    if on_gpu(x):
        result: tuple[Any, ...] = gpu_module("gemm").quantize_int8(x, granularity, symmetric)
        return result
    given = _matrix(x, granularity)
    if granularity == "block":
        raise UsageError("granularity 'block' of int8 (allowed: 'tensor', 'token', 'channel', or values of a group)")
    if granularity == "tensor" or not given.size:
        quantize = definition.quantize_int8 if symmetric else definition.quantize_int8_zero
        return tuple(like(x, part) for part in quantize(_values(given), granularity))
    from octavo.backends.cpu.gemm import quantize_groups

    group = granularity if isinstance(granularity, int) else given.shape[1]
    codes, scale, zero = quantize_groups(np.ascontiguousarray(given), group, symmetric)
    if np.isnan(scale).any():
        _values(given)  # raises: a NaN or Inf is among them
    return tuple(like(x, part) for part in ((codes, scale) if symmetric else (codes, scale, zero)))


def quantize_fp8(x: Any, kind: Fp8 = "e4m3", granularity: Granularity = "tensor") -> tuple[Any, Any]:
    """x [M, K], float32, float16 or bfloat16, as float8_e4m3fn or float8_e5m2 [M, K] and float32 scales.

    value = x / scale rounded to nearest, ties to even; scale = max|x| / 448 ("e4m3") or 57344 ("e5m2"). Granularities
    are those of `quantize_int8`, and "block": 128 x 128 values, scales [ceil(M / 128), ceil(K / 128)]. NumPy's arrays
    have ml_dtypes' types. Raises as `quantize_int8` does.
    """
    if on_gpu(x):
        made: tuple[Any, Any] = gpu_module("gemm").quantize_fp8(x, kind, granularity)
        return made
    if kind not in get_args(Fp8):
        raise UsageError(f"fp8 type {kind!r} (allowed: {', '.join(get_args(Fp8))})")
    codes, scale = definition.quantize_fp8(_values(_matrix(x, granularity)), kind, granularity)
    return like(x, codes), like(x, scale)


def quantize_q8_1(x: Any) -> tuple[Any, Any, Any]:
    """x [..., K] in blocks of 32: int8 codes [..., K], float32 scales and sums [..., K / 32]; see `formats.activation`.

    For NumPy arrays and tensors in the host's memory. Raises QuantFormatError where K is not a multiple of 32.
    """
    if on_gpu(x):
        raise UsageError("quantize_q8_1 of a tensor on a GPU (allowed: NumPy, or torch on cpu)")
    quantize = activation("q8_1").quantize
    assert quantize is not None
    made = quantize(to_numpy(x))
    assert made.scales is not None
    assert made.sums is not None
    return like(x, made.codes), like(x, made.scales), like(x, made.sums)


def quantize_mmq_q8_1(x: Any, layout: Literal["D4", "DS4", "D2S6"], padded: int | None = None, ids: Any = None) -> Any:
    """x float32 [samples, channels, rows, K] as uint8 [samples, channels, padded / 128, rows, 144]: llama.cpp's blocks
    for products of many tokens. See `octavo.backends.gpu.quantize`, which defines and makes them."""
    from octavo.backends.gpu import quantize as blocks

    if on_gpu(x, ids):
        gpu_module("quantize")
        return blocks.quantize_mmq_q8_1(x, layout, padded, ids)
    values, rows = to_numpy(x), to_numpy(ids)
    if layout not in get_args(blocks.MmqLayout):
        raise UsageError(f"layout {layout!r} (allowed: {', '.join(get_args(blocks.MmqLayout))})")
    if values.ndim != 4 or values.dtype != np.float32:
        raise UsageError(f"x is {check.words(values)} (allowed: float32 [samples, channels, rows, K])")
    k = values.shape[3]
    padded = -(-k // 512) * 512 if padded is None else padded
    if padded < k or padded % blocks.BLOCK:
        raise UsageError(f"padded is {padded} (allowed: multiples of {blocks.BLOCK} from {k} on)")
    if rows is not None and rows.size and not (rows.min() >= 0 and rows.max() < values.shape[2]):
        raise UsageError(f"ids from {rows.min()} to {rows.max()} (allowed: 0 to {values.shape[2] - 1})")
    return like(x, blocks.mmq_reference(values, layout, padded, rows))


def _matrix(x: Any, granularity: Granularity) -> AnyArray:
    """A matrix of floats, if the granularity fits it."""
    given: AnyArray = to_numpy(x)
    check.matrix("x", given, check.FLOATS)
    if isinstance(granularity, int):
        if granularity < 1 or given.shape[1] % granularity:
            raise UsageError(f"groups of {granularity} (allowed: what divides K = {given.shape[1]})")
    elif granularity not in ("tensor", "token", "channel", "block"):
        raise UsageError(f"granularity {granularity!r} (allowed: 'tensor', 'token', 'channel', 'block', or a number)")
    return given


def _values(given: AnyArray) -> F32:
    """Its finite values, float32."""
    values = np.ascontiguousarray(given, np.float32)
    require_finite(values, "x")
    return values
