"""What quantization to 8 bits and the products of it compute, in NumPy: every kernel is tested against this.

Integer sums are exact, and what comes after them is float32 in the order that is written here:

    y = activation(acc * scale_a * scale_b + bias) + residual

Arguments are taken as valid; `octavo.ops` checks them.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.formats import rows
from octavo.formats.spec import F32, AnyArray
from octavo.ops.w4a8 import W4A8Weight

Activation = Literal["relu", "gelu", "silu"]
OutDType = Literal["f32", "f16", "bf16"]
Fp8 = Literal["e4m3", "e5m2"]
Granularity = Literal["tensor", "token", "channel", "block"] | int
"""Which values share a scale.

    "tensor"            all
    "token", "channel"  a row: of activations, of weights
    int                 that many neighbours in a row
    "block"             128 x 128 values (fp8 only)
"""

BLOCK = 128


def groups_of(x: AnyArray, granularity: Granularity) -> AnyArray:
    """x [M, K] as [*scales, values that share one]: the shape of the scales is what is before the last axis."""
    rows, k = x.shape
    if granularity == "tensor":
        return x.reshape(-1)
    if granularity in ("token", "channel"):
        return x.reshape(rows, 1, k)
    assert isinstance(granularity, int)
    return x.reshape(rows, k // granularity, granularity)


def quantize_int8(x: F32, granularity: Granularity = "tensor") -> tuple[npt.NDArray[np.int8], AnyArray]:
    """codes int8 [M, K] from -127 to 127 and scales float32 ([], [M, 1] or [M, K / group]).

    code = round(x / scale), halves to even, and scale = max|x| / 127. Zeros have the scale 0 and codes 0.
    """
    codes, scale = rows.symmetric(groups_of(x, granularity), rows.INT8_TOP)
    return codes.reshape(x.shape), scale


def quantize_int8_zero(
    x: F32, granularity: Granularity = "tensor"
) -> tuple[npt.NDArray[np.int8], AnyArray, npt.NDArray[np.int32]]:
    """codes int8 [M, K] from -128 to 127, scales float32 and zero points int32, so that x = (code - zero) * scale.

    The range of the values is widened to hold 0; scale = high / 255 - low / 255, zero = round(-low / scale) - 128,
    code = round(x / scale) + zero, halves to even. Zeros have the scale 0, codes -128 and zero points -128.
    """
    codes, scale, zero = rows.zero_point(groups_of(x, granularity))
    signed = (codes ^ np.uint8(0x80)).view(np.int8)
    return signed.reshape(x.shape), scale, np.asarray(zero.astype(np.int32) - 128)


def quantize_fp8(x: F32, kind: Fp8 = "e4m3", granularity: Granularity = "tensor") -> tuple[AnyArray, AnyArray]:
    """Values of an ml_dtypes type (float8_e4m3fn, float8_e5m2) [M, K], and scales float32.

    value = x / scale rounded to nearest, ties to even; scale = max|x| / the type's largest number. The scales of
    "block" are [ceil(M / 128), ceil(K / 128)]. Zeros have the scale 0.
    """
    top, dtype = rows.FP8_TOP[kind], fp8_dtype(kind)
    if granularity != "block":
        groups = groups_of(x, granularity)
        scale = rows.symmetric_scale(groups, top)
        return rows.in_range(groups, scale, top).astype(dtype).reshape(x.shape), scale
    n, k = x.shape
    padded = np.pad(x, ((0, -n % BLOCK), (0, -k % BLOCK)))
    tiles = padded.reshape(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scale = rows.symmetric_scale(tiles.swapaxes(1, 2).reshape(tiles.shape[0], tiles.shape[2], BLOCK * BLOCK), top)
    values = rows.divide(x, spread_blocks(scale, x.shape))
    return np.clip(values, -np.float32(top), np.float32(top)).astype(dtype), scale


def int8_gemm(
    a: AnyArray, b: AnyArray, scale_a: AnyArray, scale_b: AnyArray, *, zero_a: AnyArray | None = None,
    bias: AnyArray | None = None, activation: Activation | None = None, residual: AnyArray | None = None,
    out_dtype: OutDType = "f32",
) -> AnyArray:
    """y [M, N] of codes int8 a [M, K] and b [N, K]: acc = sum((a - zero_a) * b), exact; then the epilogue.

    scale_a and zero_a are [], [M] or [M, 1]; scale_b is [], [N] or [N, 1]; bias is [N], residual [M, N]. Of G groups of
    K, scale_a and zero_a are [M, G] and scale_b [N, G], or as before; each group's sum is scaled by both, and the sums
    over groups are float64.
    """
    left = a.astype(np.float64)  # exact: sums of integers below 2^53
    groups = max(x.shape[1] if x is not None and x.ndim == 2 else 1 for x in (scale_a, scale_b, zero_a))
    if groups > 1:
        total = np.zeros((len(a), len(b)))
        of_group = [left.reshape(len(a), groups, -1), b.astype(np.float64).reshape(len(b), groups, -1)]
        for i in range(groups):
            x, w = (part[:, i] for part in of_group)
            zero, sa, sb = (_of_group(each, i) for each in (zero_a, scale_a, scale_b))
            total += (x - zero) @ w.T * sa * sb.T
        one = np.ones((), np.float32)
        return epilogue(total.astype(np.float32), one, one, bias, activation, residual, out_dtype)
    if zero_a is not None:
        left = left - np.reshape(zero_a, (-1, 1))
    acc = left @ b.astype(np.float64).T
    return epilogue(acc.astype(np.float32), scale_a, scale_b, bias, activation, residual, out_dtype)


def _of_group(x: AnyArray | None, group: int) -> AnyArray:
    """The numbers of rows for a group, [rows, 1] float64; 0 for none."""
    if x is None:
        return np.zeros((1, 1))
    return np.asarray(x[:, group] if x.ndim == 2 and x.shape[1] > 1 else x, np.float64).reshape(-1, 1)


def w4a8_gemm(
    a: AnyArray, weight: W4A8Weight, scale_a: AnyArray, *, bias: AnyArray | None = None,
    activation: Activation | None = None, residual: AnyArray | None = None, out_dtype: OutDType = "f32",
) -> AnyArray:
    """y [M, N] of codes int8 a [M, K] and a 4-bit weight [N, K]: int8_gemm with `weight.int8()` and its channels'
    scales."""
    return int8_gemm(
        a, weight.int8(), scale_a, weight.channel_scale, bias=bias, activation=activation, residual=residual,
        out_dtype=out_dtype,
    )


def fp8_gemm(
    a: AnyArray, b: AnyArray, scale_a: AnyArray, scale_b: AnyArray, *, bias: AnyArray | None = None,
    activation: Activation | None = None, residual: AnyArray | None = None, out_dtype: OutDType = "f32",
) -> AnyArray:
    """y [M, N] of fp8 a [M, K] and b [N, K], whose sums over K are float64.

    Scales are those of `int8_gemm`; or scale_a is [M, ceil(K / 128)], and scale_b [ceil(N / 128), ceil(K / 128)], and
    the part of the sum that each 128 values of K make is scaled by both.
    """
    left, right = (x.astype(np.float64, order="C") for x in (a, b))  # BLAS adds in an order that follows this one
    if np.ndim(scale_b) == 2 and np.shape(scale_b) != (len(b), 1):
        left = left * spread_blocks(scale_a, a.shape, rows=1)
        right = right * spread_blocks(scale_b, b.shape)
        scale_a = scale_b = np.ones((), np.float32)
    return epilogue((left @ right.T).astype(np.float32), scale_a, scale_b, bias, activation, residual, out_dtype)


def epilogue(
    acc: F32, scale_a: AnyArray, scale_b: AnyArray, bias: AnyArray | None, activation: Activation | None,
    residual: AnyArray | None, out_dtype: OutDType,
) -> AnyArray:
    """activation(acc * scale_a * scale_b + bias) + residual, float32 up to the last rounding."""
    y = acc * np.reshape(scale_a, (-1, 1)).astype(np.float32) * np.reshape(scale_b, (1, -1)).astype(np.float32)
    if bias is not None:
        y = y + bias.astype(np.float32)
    y = activate(y, activation)
    if residual is not None:
        y = y + residual.astype(np.float32)
    with np.errstate(over="ignore"):
        return y.astype(out_type(out_dtype))


def activate(y: F32, activation: Activation | None) -> F32:
    """max(y, 0); y / (1 + e^-y); or GELU in the tanh form, y / (1 + e^-z) with z = 2 sqrt(2 / pi) (y + 0.044715 y^3)
    (Hendrycks and Gimpel, arXiv 1606.08415). -Inf gives NaN with both."""
    if activation is None:
        return y
    if activation == "relu":
        return np.maximum(y, np.float32(0))
    with np.errstate(over="ignore", invalid="ignore"):
        z = y
        if activation == "gelu":
            z = y * (np.float32(1.5957691216) + np.float32(0.0713548162726) * y * y)
        return (y / (np.float32(1) + np.exp(-z))).astype(np.float32, copy=False)


def spread_blocks(scale: AnyArray, shape: tuple[int, ...], rows: int = BLOCK) -> AnyArray:
    """Scales of blocks of `rows` x 128 values, for each value of a matrix."""
    wide = np.repeat(np.repeat(scale, rows, axis=0), BLOCK, axis=1)
    return wide[: shape[0], : shape[1]]


def out_type(out_dtype: OutDType) -> Any:
    """The NumPy type of a result; bfloat16 is that of ml_dtypes."""
    if out_dtype == "bf16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.float16 if out_dtype == "f16" else np.float32


def fp8_dtype(kind: Fp8) -> Any:
    """The type of ml_dtypes with this name's layout of bits."""
    import ml_dtypes

    return ml_dtypes.float8_e4m3fn if kind == "e4m3" else ml_dtypes.float8_e5m2
