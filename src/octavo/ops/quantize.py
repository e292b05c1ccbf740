"""Numbers to 8 bits, as functions: int8, fp8, and the blocks of activations that quantized products read."""

from __future__ import annotations

from typing import Literal, cast, get_args, overload

import numpy as np

from octavo.errors import UsageError
from octavo.formats.activation import activation
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, AnyArray
from octavo.ops import check, definition
from octavo.ops.definition import Fp8, Granularity
from octavo.ops.leading_dimensions import Leading
from octavo.ops.place import gpu_module, like, on_gpu, to_numpy
from octavo.ops.types import AnyTensor, Array

FP8_KINDS = get_args(Fp8)


@overload
def quantize_int8(
    x: Array, granularity: Granularity = "tensor", symmetric: Literal[True] = True
) -> tuple[Array, Array]: ...
@overload
def quantize_int8(
    x: Array, granularity: Granularity = "tensor", *, symmetric: Literal[False]
) -> tuple[Array, Array, Array]: ...
@overload
def quantize_int8(x: Array, granularity: Granularity = "tensor", symmetric: bool = True) -> tuple[Array, ...]: ...


def quantize_int8(x: Array, granularity: Granularity = "tensor", symmetric: bool = True) -> tuple[Array, ...]:
    """x [..., K], float32, float16 or bfloat16, as int8 codes [..., K] and float32 scales; halves are rounded to even.

    granularity  which values share a scale:
                 "tensor"              all; scales are []
                 "token" or "channel"  a row; scales are [..., 1]
                 a number              that many neighbours in a row; scales are [..., K / number]
    symmetric    True: code = round(x / scale), scale = max|x| / 127; zeros have the scale 0
                 False: codes from -128 to 127 cover the range of x widened to hold 0, and the third result is int32
                 zero points, shaped as the scales: x = (code - zero) * scale

    Raises UsageError for other shapes, types or granularities, and, on the CPU, NonFiniteError at the first NaN or Inf.
    """
    by, gpu = check.granularity(granularity), on_gpu(x)
    if by == "block":
        raise UsageError("granularity 'block' of int8 (allowed: 'tensor', 'token', 'channel', or values of a group)")
    rows = Leading("x", x)
    made = (gpu_module("matmul.w8a8.gemm").quantize_int8 if gpu else _quantize_int8)(rows.flat(x), by, symmetric)
    return tuple(cast("Array", rows.restored(like(x, part))) for part in made)


def _quantize_int8(x: AnyTensor, granularity: Granularity, symmetric: bool) -> tuple[AnyArray, ...]:
    """Codes, scales and, unless symmetric, zero points of x [M, K] in the host's memory."""
    given = _matrix(x, granularity)
    if granularity == "tensor" or not given.size:
        quantize = definition.quantize_int8 if symmetric else definition.quantize_int8_zero
        made: tuple[AnyArray, ...] = quantize(_values(given), granularity)
        return made
    from octavo.backends.cpu.matmul.w8a8.gemm import quantize_groups

    group = granularity if isinstance(granularity, int) else given.shape[1]
    codes, scale, zero = quantize_groups(np.ascontiguousarray(given), group, symmetric)
    if np.isnan(scale).any():
        _values(given)  # raises, as there is a NaN or Inf
    return (codes, scale) if symmetric else (codes, scale, zero)


@overload
def quantize_fp8(x: Array, granularity: Granularity = "tensor", kind: Fp8 = "e4m3") -> tuple[Array, Array]: ...
@overload
def quantize_fp8(x: Array, granularity: Fp8, kind: Granularity = "tensor") -> tuple[Array, Array]: ...


def quantize_fp8(
    x: Array, granularity: Granularity | Fp8 = "tensor", kind: Fp8 | Granularity = "e4m3"
) -> tuple[Array, Array]:
    """x [..., K], float32, float16 or bfloat16, as float8_e4m3fn or float8_e5m2 [..., K] and float32 scales.

    value = x / scale rounded to nearest, ties to even; scale = max|x| / 448 ("e4m3") or 57344 ("e5m2"). Granularities
    are those of `quantize_int8`, and of x [M, K] "block": 128 x 128 values, scales [ceil(M / 128), ceil(K / 128)]. The
    granularity and the kind may change places. NumPy's arrays have ml_dtypes' types. Raises as `quantize_int8` does.
    """
    if granularity in FP8_KINDS:
        granularity, kind = "tensor" if kind in FP8_KINDS else kind, granularity
    if kind not in FP8_KINDS:
        raise UsageError(f"fp8 type {kind!r} (allowed: {', '.join(FP8_KINDS)})")
    by, gpu, rows = check.granularity(granularity), on_gpu(x), Leading("x", x)
    if by == "block" and x.ndim != 2:
        raise UsageError(f"granularity 'block' needs two dimensions, and x is {list(x.shape)}")
    made = (gpu_module("matmul.w8a8.gemm").quantize_fp8 if gpu else _quantize_fp8)(rows.flat(x), cast("Fp8", kind), by)
    codes, scale = (rows.restored(like(x, part)) for part in made)
    return codes, scale


def _quantize_fp8(x: AnyTensor, kind: Fp8, granularity: Granularity) -> tuple[AnyArray, AnyArray]:
    return definition.quantize_fp8(_values(_matrix(x, granularity)), kind, granularity)


def quantize_q8_1(x: Array) -> tuple[Array, Array, Array]:
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


def quantize_mmq_q8_1(
    x: Array, layout: Literal["D4", "DS4", "D2S6"], padded: int | None = None, ids: Array | None = None
) -> Array:
    """x float32 [samples, channels, rows, K] as uint8 [samples, channels, padded / 128, rows, 144]: llama.cpp's blocks
    for products of many tokens. See `octavo.backends.gpu.matmul.mmq.quantize`, which defines and makes them."""
    from octavo.backends.gpu.matmul.mmq import quantize as blocks

    if on_gpu(x, ids):
        gpu_module("matmul.mmq.quantize")
        return cast("Array", blocks.quantize_mmq_q8_1(x, layout, padded, ids))
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
    return cast("Array", like(x, blocks.mmq_reference(values, layout, padded, rows)))


def mmq_layout(weights: str) -> Literal["D4", "DS4", "D2S6"]:
    """The layout of blocks that llama.cpp's product with weights of this GGUF type reads, such as "D4" for "Q8_0".

    Raises UsageError for a type that it has no such product for.
    """
    from octavo.backends.gpu.matmul.mmq import quantize as blocks

    return blocks.mmq_layout(weights)


def _matrix(x: AnyTensor, granularity: Granularity) -> AnyArray:
    """A matrix of floats, if the granularity fits it."""
    given: AnyArray = to_numpy(x)
    check.matrix("x", given, check.FLOATS)
    if isinstance(granularity, int) and (granularity < 1 or given.shape[1] % granularity):
        raise UsageError(f"groups of {granularity} (allowed: what divides K = {given.shape[1]})")
    return given


def _values(given: AnyArray) -> F32:
    """Its finite values, float32."""
    values = np.ascontiguousarray(given, np.float32)
    require_finite(values, "x")
    return values
