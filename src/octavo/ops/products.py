"""Products of 8-bit activations with weights of 8 or 4 bits, with everything after the sums in the same pass.

    y [M, N] = activation(acc * scale_a * scale_b + bias) + residual

in this order, in float32, rounded to `out_dtype` at the end. Arguments are NumPy arrays, or torch tensors of one
device, and so is the result; they may have any strides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.errors import UsageError
from octavo.formats.spec import AnyArray
from octavo.ops import check, definition
from octavo.ops.definition import BLOCK, Activation, OutDType
from octavo.ops.place import gpu_module, like, on_gpu, to_numpy
from octavo.ops.w4a8 import W4A8Weight

MOST_K = (2**31 - 1) // (128 * 128)
"""131,071: as many products of int8 codes an int32 holds the sum of, whatever the codes."""

MOST_K_ZERO = (2**31 - 1) // (255 * 128)
"""65,793: the same where a zero point is taken from one of them."""


def int8_gemm(
    a: Any, b: Any, scale_a: Any, scale_b: Any, *, zero_a: Any = None, bias: Any = None,
    activation: Activation | None = None, residual: Any = None, out_dtype: OutDType = "f32",
) -> Any:  # fmt: skip
    """y [M, N] of int8 codes a [M, K] and b [N, K]: acc = sum((a - zero_a) * b).

    scale_a    float32: [], or [M] or [M, 1] of tokens
    zero_a     int32 likewise, from -128 to 127
    scale_b    float32: [], or [N] or [N, 1] of channels
    bias       [N], and residual [M, N]: float32, float16 or bfloat16
    activation "relu", "silu", or "gelu", which is the tanh form
    out_dtype  "f32", "f16" or "bf16"

    Sums are exact. They are int32 up to K = 131,071 (65,793 with zero_a), which no codes can overflow; beyond that
    they are made of wider numbers, on the CPU slowly. Raises UsageError for shapes, types and zero points other than
    these; but a GPU does not wait for a look at zero points: tokens with others are NaN.
    """
    arguments = (a, b, scale_a, scale_b, zero_a, bias, residual)
    if on_gpu(*arguments):
        return gpu_module("gemm").int8_gemm(
            a, b, scale_a, scale_b, zero_a=zero_a, bias=bias, activation=activation, residual=residual,
            out_dtype=out_dtype,
        )  # fmt: skip
    x, w, scale_x, scale_w, zero_x, bias_, residual_ = map(to_numpy, arguments)
    m, n, k = check.factors(x, w, ("int8",))
    end = _Epilogue(m, n, scale_x, scale_w, zero_x, bias_, residual_, activation, out_dtype)
    if not m * n * k or k > (MOST_K if end.zero_a is None else MOST_K_ZERO):
        y = definition.int8_gemm(
            x, w, end.scale_a, end.scale_b, zero_a=end.zero_a, bias=end.bias, activation=activation,
            residual=end.residual, out_dtype=out_dtype,
        )  # fmt: skip
    else:
        y = end.product(_rows(x, 64), _rows(w, 64))
    return like(a, y)


def w4a8_gemm(
    a: Any, weight: W4A8Weight, scale_a: Any, *, bias: Any = None, activation: Activation | None = None,
    residual: Any = None, out_dtype: OutDType = "f32",
) -> Any:  # fmt: skip
    """y [M, N] of int8 codes a [M, K] and a 4-bit weight [N, K], whose scales of groups are applied before the sum.

    It is `int8_gemm` with `weight.int8()`, which it never makes as a whole, and scales of channels. The weight's parts
    are NumPy arrays or torch tensors as `a` is.
    """
    return w4a8_parts(
        a, weight.packed, scale_a, weight.channel_scale, weight.group_scale, bias=bias, activation=activation,
        residual=residual, out_dtype=out_dtype,
    )  # fmt: skip


def w4a8_parts(
    a: Any, packed: Any, scale_a: Any, channel_scale: Any, group_scale: Any = None, *, bias: Any = None,
    activation: Activation | None = None, residual: Any = None, out_dtype: OutDType = "f32",
) -> Any:  # fmt: skip
    """`w4a8_gemm` with the parts of a W4A8Weight, whose shapes and types are looked at, but not their values: scales
    that no W4A8Weight has make results that mean nothing."""
    arguments = (a, packed, scale_a, channel_scale, group_scale, bias, residual)
    if on_gpu(*arguments):
        return gpu_module("gemm").w4a8_gemm(
            a, packed, scale_a, channel_scale, group_scale, bias=bias, activation=activation, residual=residual,
            out_dtype=out_dtype,
        )  # fmt: skip
    x, codes, scale, channel, groups, bias_, residual_ = map(to_numpy, arguments)
    check.matrix("a", x, ("int8",))
    check.packed(codes, channel, groups)
    check.same_k(x, len(codes), 2 * codes.shape[1])
    m, n, k = len(x), len(codes), x.shape[1]
    end = _Epilogue(m, n, scale, channel, None, bias_, residual_, activation, out_dtype)
    if not m * n * k or k > MOST_K:
        y = definition.w4a8_gemm(
            x, W4A8Weight(codes, channel, groups), end.scale_a, bias=bias_, activation=activation, residual=residual_,
            out_dtype=out_dtype,
        )  # fmt: skip
    else:
        y = end.product(_rows(x, 64), _rows(codes, 64), None if groups is None else _rows(groups, 1))
    return like(a, y)


def fp8_gemm(
    a: Any, b: Any, scale_a: Any, scale_b: Any, *, bias: Any = None, activation: Activation | None = None,
    residual: Any = None, out_dtype: OutDType = "f32",
) -> Any:  # fmt: skip
    """y [M, N] of a [M, K] and b [N, K], both float8_e4m3fn or both float8_e5m2 (ml_dtypes' or torch's).

    Scales are those of `int8_gemm`; or of blocks: scale_a [M, ceil(K / 128)] and scale_b [ceil(N / 128),
    ceil(K / 128)]. Sums are float32. Raises UsageError for shapes and types other than these.
    """
    arguments = (a, b, scale_a, scale_b, bias, residual)
    if on_gpu(*arguments):
        return gpu_module("gemm").fp8_gemm(
            a, b, scale_a, scale_b, bias=bias, activation=activation, residual=residual, out_dtype=out_dtype
        )
    x, w, scale_x, scale_w, bias_, residual_ = map(to_numpy, arguments)
    m, n, k = check.factors(x, w, ("float8_e4m3fn", "float8_e5m2"))
    if x.dtype != w.dtype:
        raise UsageError(f"a is {x.dtype.name} and b {w.dtype.name} (allowed: one type of both)")
    check.epilogue(m, n, bias_, activation, residual_, out_dtype)
    blocks = (-(-n // BLOCK), -(-k // BLOCK))
    of_blocks = scale_w.shape == blocks and scale_x.shape == (m, blocks[1])
    of_blocks = of_blocks and (blocks[1] > 1 or scale_w.size not in (1, n))
    if of_blocks:
        for name, scale in (("scale_a", scale_x), ("scale_b", scale_w)):
            check.matrix(name, scale, ("float32",))
    else:
        scale_x, scale_w = check.per_row("scale_a", scale_x, m), check.per_row("scale_b", scale_w, n)
    after: Any = {"bias": bias_, "activation": activation, "residual": residual_, "out_dtype": out_dtype}
    if not m * n * k:
        return like(a, definition.fp8_gemm(x, w, scale_x, scale_w, **after))
    from octavo.backends.cpu.fp8 import sums

    if of_blocks:
        acc, scale_x, scale_w = sums(x, w, (scale_x, scale_w)), np.ones(1), np.ones(1)
    else:
        acc = sums(x, w)
    return like(a, definition.epilogue(acc, scale_x, scale_w, **after))


class _Epilogue:
    """What comes after the sums of a result [m, n], checked."""

    def __init__(
        self, m: int, n: int, scale_a: AnyArray, scale_b: AnyArray, zero_a: AnyArray | None, bias: AnyArray | None,
        residual: AnyArray | None, activation: Activation | None, out_dtype: OutDType,
    ) -> None:  # fmt: skip
        check.epilogue(m, n, bias, activation, residual, out_dtype)
        self.scale_a, self.scale_b = check.per_row("scale_a", scale_a, m), check.per_row("scale_b", scale_b, n)
        self.zero_a = None if zero_a is None else check.zero_points("zero_a", zero_a, m)
        self.bias, self.residual, self.activation = bias, residual, activation
        self.shape, self.out_dtype = (m, n), out_dtype

    def product(self, a: AnyArray, data: AnyArray, scales: AnyArray | None = None) -> AnyArray:
        """The result for activations and a weight whose rows are contiguous and whole steps of the kernels."""
        from octavo.backends.cpu.gemm import Epilogue, Weight, integer_product

        out = np.empty(self.shape, definition.out_type(self.out_dtype))
        residual = None if self.residual is None else _rows(self.residual, 1)
        after = Epilogue(self.scale_a, self.scale_b, self.zero_a, self.bias, self.activation, residual)
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
