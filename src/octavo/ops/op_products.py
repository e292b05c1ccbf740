"""Products of 8-bit activations with weights of 8 or 4 bits, with everything after the sums in the same pass.

    y [M, N] = activation(acc * scale_a * scale_b + bias) + residual

in this order, in float32, rounded to `out_dtype` at the end. Arguments are NumPy arrays, or torch tensors of one
device, and so is the result; they may have any strides. Activations may have any leading dimensions: for a [..., K]
what is said of [M], [M, 1] and [M, N] holds of [...], [..., 1] and [..., N].
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from octavo.errors import UsageError
from octavo.formats.rows import groups_of
from octavo.formats.spec import AnyArray
from octavo.ops import check, definition
from octavo.ops.definition import BLOCK, Activation, OutDType
from octavo.ops.leading_dimensions import Leading
from octavo.ops.place import gpu_module, like, on_gpu, to_numpy
from octavo.ops.types import Array, OutDTypeLike
from octavo.ops.w4a8 import W4A8Weight

ONE = np.ones((), np.float32)

MOST_K = (2**31 - 1) // (128 * 128)
"""131,071: as many products of int8 codes an int32 holds the sum of, whatever the codes."""

MOST_K_ZERO = (2**31 - 1) // (255 * 128)
"""65,793: the same where a zero point is taken from one of them."""


def int8_gemm(
    a: Array, b: Array, scale_a: Array | np.float32, scale_b: Array | np.float32, *, zero_a: Array | None = None,
    bias: Array | None = None, activation: Activation | None = None, residual: Array | None = None,
    out_dtype: OutDTypeLike = "f32",
) -> Array:
    """y [M, N] of int8 codes a [M, K] and b [N, K]: acc = sum((a - zero_a) * b).

    scale_a    float32: [], or [M] or [M, 1] of tokens, or [M, groups] of groups of K
    zero_a     int32 likewise, from -128 to 127
    scale_b    float32: [], or [N] or [N, 1] of channels, or [N, groups]
    bias       [N], and residual [M, N]: float32, float16 or bfloat16
    activation "relu", "silu", or "gelu", which is the tanh form
    out_dtype  "f32", "f16" or "bf16", also as "float16", np.float16 or torch.float16

    Sums are exact. They are int32 up to K = 131,071 (65,793 with zero_a), which no codes can overflow; beyond that
    they are made of wider numbers, on the CPU slowly. Of groups, a multiple of 32 values each, every sum is exact and
    scaled, and sums over groups are float32. Raises UsageError for shapes, types and zero points other than these;
    but a GPU does not wait for a look at zero points: tokens with others are NaN.
    """
    kind, gpu = check.out_dtype(out_dtype), on_gpu(a, b, scale_a, scale_b, zero_a, bias, residual)
    rows = Leading("a", a)
    arguments = (rows.flat(a), b, rows.flat(scale_a), scale_b, rows.flat(zero_a), bias, rows.flat(residual))
    if gpu:
        x, w, scale_x, scale_w, zero_x, bias_, residual_ = arguments
        y = gpu_module("matmul.w8a8.gemm").int8_gemm(
            x, w, scale_x, scale_w, zero_a=zero_x, bias=bias_, activation=activation, residual=residual_,
            out_dtype=kind,
        )
        return cast("Array", rows.restored(y))
    x, w, scale_x, scale_w, zero_x, bias_, residual_ = map(to_numpy, arguments)
    m, n, k = check.factors(x, w, ("int8",))
    groups = groups_of(k, scale_a=scale_x, scale_b=scale_w, zero_a=zero_x)
    if groups > 1:
        check.epilogue(m, n, bias_, activation, residual_)
        sums = _group_sums(x, w, scale_x, scale_w, zero_x, groups)
        y = definition.epilogue(sums, ONE, ONE, bias_, activation, residual_, kind)
        return cast("Array", rows.restored(like(a, y)))
    end = _Epilogue(m, n, scale_x, scale_w, zero_x, bias_, residual_, activation, kind)
    if not m * n * k or k > (MOST_K if end.zero_a is None else MOST_K_ZERO):
        y = definition.int8_gemm(
            x, w, end.scale_a, end.scale_b, zero_a=end.zero_a, bias=end.bias, activation=activation,
            residual=end.residual, out_dtype=kind,
        )
    else:
        y = end.product(_rows(x, 64), _rows(w, 64))
    return cast("Array", rows.restored(like(a, y)))


def w4a8_gemm(
    a: Array, weight: W4A8Weight, scale_a: Array | np.float32, *, bias: Array | None = None,
    activation: Activation | None = None, residual: Array | None = None, out_dtype: OutDTypeLike = "f32",
) -> Array:
    """y [M, N] of int8 codes a [M, K] and a 4-bit weight [N, K], whose scales of groups are applied before the sum.

    It is `int8_gemm` with `weight.int8()`, which it never makes as a whole, and scales of channels. The weight's parts
    are NumPy arrays or torch tensors as `a` is.
    """
    if not isinstance(weight, W4A8Weight):
        raise UsageError(f"weight is {type(weight).__name__}, not a W4A8Weight, which quantize_w4a8 makes")
    y: Array = w4a8_parts(
        a, weight.packed, scale_a, weight.channel_scale, weight.group_scale, bias=bias, activation=activation,
        residual=residual, out_dtype=out_dtype,
    )
    return y


def w4a8_parts(
    a: Array, packed: Array, scale_a: Array | np.float32, channel_scale: Array, group_scale: Array | None = None, *,
    bias: Array | None = None, activation: Activation | None = None, residual: Array | None = None,
    out_dtype: OutDTypeLike = "f32",
) -> Array:
    """`w4a8_gemm` with the parts of a W4A8Weight, whose shapes and types are looked at, but not their values: scales
    that no W4A8Weight has make results that mean nothing."""
    kind, gpu = check.out_dtype(out_dtype), on_gpu(a, packed, scale_a, channel_scale, group_scale, bias, residual)
    rows = Leading("a", a)
    arguments = (rows.flat(a), packed, rows.flat(scale_a), channel_scale, group_scale, bias, rows.flat(residual))
    if gpu:
        *parts, bias_, residual_ = arguments
        y = gpu_module("matmul.w8a8.gemm").w4a8_gemm(
            *parts, bias=bias_, activation=activation, residual=residual_, out_dtype=kind
        )
        return cast("Array", rows.restored(y))
    x, codes, scale, channel, groups, bias_, residual_ = map(to_numpy, arguments)
    check.matrix("a", x, ("int8",))
    check.packed(codes, channel, groups)
    check.same_k(x, len(codes), 2 * codes.shape[1])
    m, n, k = len(x), len(codes), x.shape[1]
    end = _Epilogue(m, n, scale, channel, None, bias_, residual_, activation, kind)
    if not m * n * k or k > MOST_K:
        y = definition.w4a8_gemm(
            x, W4A8Weight(codes, channel, groups), end.scale_a, bias=bias_, activation=activation, residual=residual_,
            out_dtype=kind,
        )
    else:
        y = end.product(_rows(x, 64), _rows(codes, 64), None if groups is None else _rows(groups, 1))
    return cast("Array", rows.restored(like(a, y)))


def fp8_gemm(
    a: Array, b: Array, scale_a: Array | np.float32, scale_b: Array | np.float32, *, bias: Array | None = None,
    activation: Activation | None = None, residual: Array | None = None, out_dtype: OutDTypeLike = "f32",
) -> Array:
    """y [M, N] of a [M, K] and b [N, K], each float8_e4m3fn or float8_e5m2 (ml_dtypes' or torch's).

    Scales are those of `int8_gemm`; or of blocks: scale_a [M, ceil(K / 128)] and scale_b [ceil(N / 128),
    ceil(K / 128)]. Sums are float32. Raises UsageError for shapes and types other than these.
    """
    kind, gpu = check.out_dtype(out_dtype), on_gpu(a, b, scale_a, scale_b, bias, residual)
    rows = Leading("a", a)
    arguments = (rows.flat(a), b, rows.flat(scale_a), scale_b, bias, rows.flat(residual))
    if gpu:
        *factors, bias_, residual_ = arguments
        y = gpu_module("matmul.w8a8.gemm").fp8_gemm(
            *factors, bias=bias_, activation=activation, residual=residual_, out_dtype=kind
        )
        return cast("Array", rows.restored(y))
    x, w, scale_x, scale_w, bias_, residual_ = map(to_numpy, arguments)
    m, n, k = check.factors(x, w, ("float8_e4m3fn", "float8_e5m2"))
    check.epilogue(m, n, bias_, activation, residual_)
    blocks = (-(-n // BLOCK), -(-k // BLOCK))
    of_blocks = scale_w.shape == blocks and scale_x.shape == (m, blocks[1])
    of_blocks = of_blocks and (blocks[1] > 1 or scale_w.size not in (1, n))
    if of_blocks:
        for name, scale in (("scale_a", scale_x), ("scale_b", scale_w)):
            check.matrix(name, scale, ("float32",))
    else:
        scale_x, scale_w = check.per_row("scale_a", scale_x, m), check.per_row("scale_b", scale_w, n)
    after: Any = {"bias": bias_, "activation": activation, "residual": residual_, "out_dtype": kind}
    if not m * n * k:
        return cast("Array", rows.restored(like(a, definition.fp8_gemm(x, w, scale_x, scale_w, **after))))
    from octavo.backends.cpu.matmul.w8a8.fp8 import sums

    if of_blocks:
        acc, scale_x, scale_w = sums(x, w, (scale_x, scale_w)), np.ones(1), np.ones(1)
    else:
        acc = sums(x, w)
    return cast("Array", rows.restored(like(a, definition.epilogue(acc, scale_x, scale_w, **after))))


def _group_sums(
    a: AnyArray, b: AnyArray, scale_a: AnyArray, scale_b: AnyArray, zero_a: AnyArray | None, groups: int
) -> AnyArray:
    """float32 [m, n]: the sums of groups of K, exact, scaled and added up, of codes a [m, k] and b [n, k]."""
    m, n = len(a), len(b)
    of_a, of_b = check.per_group("scale_a", scale_a, m, groups), check.per_group("scale_b", scale_b, n, groups)
    zeros = None if zero_a is None else check.zero_points("zero_a", zero_a, m, groups)
    if not m * n:
        return np.empty((m, n), np.float32)
    from octavo.backends.cpu.matmul.w8a8.gemm import group_sums

    return group_sums(a, b, of_a, of_b, zeros)


class _Epilogue:
    """What comes after the sums of a result [m, n], checked."""

    def __init__(
        self, m: int, n: int, scale_a: AnyArray, scale_b: AnyArray, zero_a: AnyArray | None, bias: AnyArray | None,
        residual: AnyArray | None, activation: Activation | None, out_dtype: OutDType,
    ) -> None:
        check.epilogue(m, n, bias, activation, residual)
        self.scale_a, self.scale_b = check.per_row("scale_a", scale_a, m), check.per_row("scale_b", scale_b, n)
        self.zero_a = None if zero_a is None else check.zero_points("zero_a", zero_a, m)
        self.bias, self.residual, self.activation = bias, residual, activation
        self.shape, self.out_dtype = (m, n), out_dtype

    def product(self, a: AnyArray, data: AnyArray, scales: AnyArray | None = None) -> AnyArray:
        """The result for activations and a weight whose rows are contiguous and whole steps of the kernels."""
        from octavo.backends.cpu.matmul.w8a8.gemm import SumsEpilogue, Weight, integer_product

        out = np.empty(self.shape, definition.out_type(self.out_dtype))
        residual = None if self.residual is None else _rows(self.residual, 1)
        after = SumsEpilogue(self.scale_a, self.scale_b, self.zero_a, self.bias, self.activation, residual)
        integer_product(a, Weight(data, scales), after, out)
        return out


def _rows(x: AnyArray, whole: int) -> AnyArray:
    """x with contiguous rows of a multiple of `whole` values: itself if it has those, else a copy, filled with 0."""
    rows, k = x.shape
    if k % whole == 0 and (x.strides[1] == x.itemsize or k == 1):
        return x
    copy = np.zeros((rows, -(-k // whole) * whole), x.dtype)
    copy[:, :k] = x
    return copy
