"""Integer products of NumPy arrays with everything after them, as one program of kernel calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from octavo.backends.cores import cores
from octavo.backends.cpu.cache import end_progress, prepare
from octavo.backends.cpu.program import KernelCall, Program, address
from octavo.formats.spec import AnyArray

ACTIVATIONS = (None, "relu", "gelu", "silu")
"""In the order in which the kernels number them."""

FEW = 8
"""Fewer tokens than these are multiplied with rows as they lie, not with panels."""

_threads = cache(cores)


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight [n, k] of bytes: int8 [n, k]; or uint8 [n, k / 2], two codes each as `ops.w4a8` packs them, and perhaps
    with float16 `scales` [n, k / 128]. Rows are contiguous and begin at any address."""

    data: AnyArray
    scales: AnyArray | None = None

    @property
    def kind(self) -> int:
        """Which of `simd.integers.INT8`, INT4 and INT4_GROUPS it is."""
        return 0 if self.data.dtype == np.int8 else 1 if self.scales is None else 2


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What comes after the sums [m, n]: float32 scales [m] and [n], and int32 zero points [m], float32 bias [n],
    the name of an activation, a residual [m, n] of float32, float16 or bfloat16."""

    scale_a: AnyArray
    scale_b: AnyArray
    zero_a: AnyArray | None = None
    bias: AnyArray | None = None
    activation: str | None = None
    residual: AnyArray | None = None


def integer_product(a: AnyArray, weight: Weight, after: Epilogue, out: AnyArray) -> None:
    """out [m, n] of int8 a [m, k] and a weight [n, k], float32, float16 or bfloat16; on all cores.

    K is a multiple of 64 (of 128 for 4 bits), and m, n and k are not 0.
    """
    prepare()
    columns = np.zeros(_whole(len(weight.data)), np.int32)
    if after.zero_a is not None:  # the product of ones: below 2^24, and so exact in float32
        n = len(weight.data)
        sums, one = np.empty((1, n), np.float32), np.ones(n, np.float32)
        _run(np.ones((1, a.shape[1]), np.int8), weight, Epilogue(one[:1], one), sums, columns)
        columns[:n] = sums[0]
    _run(a, weight, after, out, columns)
    end_progress()


def _run(a: AnyArray, weight: Weight, after: Epilogue, out: AnyArray, columns: AnyArray) -> None:
    Program(_calls(a, weight, after, out, columns), _threads())()


def _calls(a: AnyArray, weight: Weight, after: Epilogue, out: AnyArray, columns: AnyArray) -> list[KernelCall]:
    """The calls of a product; `columns` holds the sums of the weight's rows where there are zero points."""
    from octavo.backends.cpu.kernels import int8_gemm as kernels
    from octavo.backends.cpu.simd.integers import OFFSETS

    (m, k), n, kind = a.shape, len(weight.data), weight.kind
    wide = m // kernels.WIDE if m >= FEW else 0
    narrow = -(-(m - wide * kernels.WIDE) // kernels.NARROW) if m >= FEW else 0
    begins = np.empty(m, np.int32)
    rest, keep = _epilogue_args(after, out, begins, columns)
    data, scales = weight.data, weight.scales
    source = [address(data), data.strides[0], 0, 0, data.shape[1]]
    if scales is not None:
        source[2:4] = address(scales), scales.strides[0]
    keep = (*keep, a, data, scales)
    if m < FEW:
        np.multiply(a.sum(axis=1, dtype=np.int32), -OFFSETS[kind], out=begins)
        calls, first = [], 0
        for tokens in (4, 2, 1):
            while m - first >= tokens:
                args = [*source, address(a) + first * a.strides[0], a.strides[0], *_from(rest, first)]
                calls.append(KernelCall(kernels.few_kernel(kind, tokens), args, -(-n // 16), keep=keep, overlaps=True))
                first += tokens
        return calls
    padded = wide * kernels.WIDE + narrow * kernels.NARROW
    tiles = np.empty((padded, k), np.int8)
    parts = np.empty(_whole(n) * padded if k > kernels.SLICE else 0, np.int32)
    calls = []
    for first, count, tile in ((0, wide, kernels.WIDE), (wide * kernels.WIDE, narrow, kernels.NARROW)):
        if count:
            args = [address(tiles) + first * k, address(begins) + 4 * first, address(a) + first * a.strides[0],
                    a.strides[0], m - first, k // 64, tile, OFFSETS[kind]]  # fmt: skip
            calls.append(KernelCall(kernels.tiles_kernel(), args, count, keep=keep, overlaps=wide > 0 and not first))
    args = [*source, address(tiles), address(parts), *rest, wide, narrow]
    calls.append(KernelCall(kernels.many_kernel(kind), args, -(-n // 16), keep=(*keep, tiles, parts)))
    return calls


RESIDUAL, RESIDUAL_STRIDE, OUT, OUT_STRIDE = 9, 10, 11, 12  # places among the arguments of the epilogue
PER_TOKEN = (2, 3, 5)


def _epilogue_args(
    after: Epilogue, out: AnyArray, begins: AnyArray, columns: AnyArray
) -> tuple[list[int], tuple[Any, ...]]:
    """What `kernels.int8_gemm.epilogue` reads, and the arrays whose addresses are in it."""
    m, n = out.shape
    zeros = np.zeros(m, np.int32) if after.zero_a is None else np.ascontiguousarray(after.zero_a, np.int32)
    scale_a = np.ascontiguousarray(after.scale_a, np.float32)
    scale_b, bias = np.zeros(_whole(n), np.float32), np.zeros(_whole(n), np.float32)
    scale_b[:n] = after.scale_b
    if after.bias is not None:
        bias[:n] = after.bias
    residual = after.residual
    place = [0, 0] if residual is None else [address(residual), residual.strides[0]]
    args = [
        m, n, *map(address, (begins, zeros, columns, scale_a, scale_b, bias)), ACTIVATIONS.index(after.activation),
        *place, address(out), out.strides[0], 0 if residual is None else _float_kind(residual), _float_kind(out),
    ]  # fmt: skip
    return args, (begins, zeros, columns, scale_a, scale_b, bias, residual, out)


def _from(rest: list[int], first: int) -> list[int]:
    """The arguments of an epilogue for the tokens from `first` on."""
    moved = list(rest)
    moved[0] -= first
    for i in PER_TOKEN:
        moved[i] += 4 * first
    moved[RESIDUAL] += first * moved[RESIDUAL_STRIDE]
    moved[OUT] += first * moved[OUT_STRIDE]
    return moved


def _float_kind(x: AnyArray) -> int:
    """The kind of `simd.lanes` that an array's values are."""
    return {"float32": 0, "float16": 1, "bfloat16": 2}[x.dtype.name]


def _whole(n: int) -> int:
    """n rounded up to whole vectors."""
    return -(-n // 16) * 16
