"""Integer products of NumPy arrays with everything after them, as one program of kernel calls; and int8 codes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from octavo.backends.cores import cores
from octavo.formats.spec import AnyArray
from octavo.jit.prepare import end_progress, prepare
from octavo.jit.program import KernelCall, Program, address

ACTIVATIONS = (None, "relu", "gelu", "silu")
"""In the order in which the kernels number them."""

FEW = 8
"""Fewer tokens than these are multiplied with rows as they lie, not with panels."""

PLANS_KEPT = 256

ALONE = 1 << 15
"""So many values are quantized by the calling thread, in less time than others need to come."""

_threads = cache(cores)
_kept = threading.local()


@dataclass(slots=True, eq=False)
class Weight:
    """A weight [n, k] of bytes: int8 [n, k]; or uint8 [n, k / 2], two codes each as `ops.w4a8` packs them, and perhaps
    with float16 `scales` [n, k / 128]. Rows are contiguous and begin at any address."""

    data: AnyArray
    scales: AnyArray | None = None

    @property
    def kind(self) -> int:
        """Which of `simd.integers.INT8`, INT4 and INT4_GROUPS it is."""
        return 0 if self.data.dtype == np.int8 else 1 if self.scales is None else 2


@dataclass(slots=True, eq=False)
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
    n = len(weight.data)
    if after.zero_a is None:
        _run(a, weight, after, out, zeros_at(n))
    else:  # the sums of rows are the product of ones: below 2^24, and so exact in float32
        sums, one = np.empty((1, n), np.float32), np.ones(n, np.float32)
        _run(np.ones((1, a.shape[1]), np.int8), weight, Epilogue(one[:1], one), sums, zeros_at(n))
        columns = np.zeros(whole_vectors(n), np.int32)
        columns[:n] = sums[0]
        _run(a, weight, after, out, address(columns))
    end_progress()


def quantize_groups(x: AnyArray, group: int, symmetric: bool) -> tuple[AnyArray, AnyArray, AnyArray]:
    """int8 codes [m, k], float32 scales and int32 zero points [m, k / group] of contiguous x [m, k], float32,
    float16 or bfloat16: those of `octavo.ops.definition`, to the bit.

    Zero points are 0 if `symmetric`. The scale of values that are not all finite is NaN. k is not 0.
    """
    prepare()
    from octavo.backends.cpu.kernels.quantize_token import quantize_groups_kernel

    m, k = x.shape
    codes, scales, zeros = (
        np.empty((m, k), np.int8),
        np.empty((m, k // group), np.float32),
        np.empty((m, k // group), np.int32),
    )
    args = [address(codes), address(scales), address(zeros), k, address(x), group, int(symmetric)]
    call = KernelCall(quantize_groups_kernel(_float_kind(x.dtype)), args, m)
    if x.size > ALONE:
        Program([call], _threads())()
    else:
        call.run()
    end_progress()
    return codes, scales, zeros


def _run(a: AnyArray, weight: Weight, after: Epilogue, out: AnyArray, columns: int) -> None:
    """A product; at `columns` lie the sums of the weight's rows where there are zero points, else zeros."""
    data, scales = weight.data, weight.scales
    source = [address(data), data.strides[0], 0, 0, data.shape[1]]
    if scales is not None:
        source[2:4] = address(scales), scales.strides[0]
    plan = _plan(weight.kind, *out.shape)
    rest, keep = _epilogue_args(after, out, plan.begins, columns)
    plan(a, source, rest)
    del keep  # arguments are addresses of these


def _plan(kind: int, m: int, n: int) -> _Plan:
    """The plan of a kind of weight and a size of result; each thread has its own, for it fills in their arguments."""
    plans: dict[tuple[int, int, int], _Plan] = _kept.__dict__.setdefault("plans", {})
    key = kind, m, n
    if key not in plans:
        if len(plans) >= PLANS_KEPT:
            plans.clear()
        plans[key] = (_FewPlan if m < FEW else _ManyPlan)(*key)
    return plans[key]


class _Plan(ABC):
    """The calls of products of one size, whose arguments are filled in each time: making calls takes longer.

    `begins` is where sums over tokens begin, [m] int32: with what takes the offset off the weights.
    """

    def __init__(self, kind: int, m: int, calls: Sequence[tuple[Any, int, bool]]) -> None:
        from octavo.jit.simd.integers import OFFSETS

        self.offset, self._sums = OFFSETS[kind], np.empty(m, np.int32)
        self.begins = address(self._sums)
        none = [0] * MOST_ARGUMENTS
        self.program = Program([KernelCall(k, none, tasks, overlaps=o) for k, tasks, o in calls], _threads())

    def run(self, *arguments: list[int]) -> None:
        """Run the calls with these arguments."""
        for call, given in zip(self.program.calls, arguments, strict=True):
            call.args[: len(given)] = given
        self.program()

    @abstractmethod
    def __call__(self, a: AnyArray, source: list[int], rest: list[int]) -> None:
        """Run a product: `source` says where the weight lies, `rest` is for the epilogue."""


class _FewPlan(_Plan):
    """Rows as they lie times up to four tokens at once."""

    def __init__(self, kind: int, m: int, n: int) -> None:
        from octavo.backends.cpu.kernels import int8_gemm as kernels

        parts = kernels.parts_of(m)
        self.firsts = [first for first, _ in parts]
        few = [(kernels.few_kernel(kind, size), -(-n // 16), True) for _, size in parts]
        super().__init__(kind, m, [(kernels.begins_kernel(), m, False), *few])

    def __call__(self, a: AnyArray, source: list[int], rest: list[int]) -> None:
        at, stride = address(a), a.strides[0]
        few = ([*source, at + first * stride, stride, *from_token(rest, first)] for first in self.firsts)
        self.run([self.begins, at, stride, a.shape[1] // 64, self.offset], *few)


class _ManyPlan(_Plan):
    """Panels of rows times tiles of tokens."""

    def __init__(self, kind: int, m: int, n: int) -> None:
        from octavo.backends.cpu.kernels import int8_gemm as kernels

        wide, narrow = kernels.tiles_of(m)
        tiles = ((0, wide, kernels.WIDE), (wide * kernels.WIDE, narrow, kernels.NARROW))
        self.tiles = [(first, size) for first, count, size in tiles if count]
        self.counts, self.slice = [wide, narrow], kernels.SLICE
        self.padded = wide * kernels.WIDE + narrow * kernels.NARROW
        copies = [
            (kernels.tiles_kernel(), count, not first and wide > 0 and narrow > 0) for first, count, _ in tiles if count
        ]
        super().__init__(kind, m, [*copies, (kernels.many_kernel(kind), -(-n // 16), False)])

    def __call__(self, a: AnyArray, source: list[int], rest: list[int]) -> None:
        (m, k), stride = a.shape, a.strides[0]
        tiles = np.empty(self.padded * k, np.int8)
        parts = np.empty(whole_vectors(rest[1]) * self.padded if k > self.slice else 0, np.int32)
        copies = (
            [address(tiles) + first * k, self.begins + 4 * first, address(a) + first * stride, stride, m - first,
             k // 64, size, self.offset]
            for first, size in self.tiles
        )  # fmt: skip
        self.run(*copies, [*source, address(tiles), address(parts), *rest, *self.counts])


MOST_ARGUMENTS = 24
RESIDUAL, RESIDUAL_STRIDE, OUT, OUT_STRIDE = 9, 10, 11, 12  # places among the arguments of the epilogue
PER_TOKEN = (2, 3, 5)


def _epilogue_args(
    after: Epilogue, out: AnyArray, begins: int, columns: int
) -> tuple[list[int], tuple[AnyArray | None, ...]]:
    """What `kernels.int8_gemm.epilogue` reads, and the arrays whose addresses are in it."""
    m, n = out.shape
    zero_a = None if after.zero_a is None else np.ascontiguousarray(after.zero_a, np.int32)
    bias = None if after.bias is None else vectors(after.bias)
    scale_a, scale_b = np.ascontiguousarray(after.scale_a, np.float32), vectors(after.scale_b)
    residual = after.residual
    place = [0, 0] if residual is None else [address(residual), residual.strides[0]]
    args = [
        m, n, begins, zeros_at(m) if zero_a is None else address(zero_a), columns, address(scale_a), address(scale_b),
        zeros_at(n) if bias is None else address(bias), ACTIVATIONS.index(after.activation), *place, address(out),
        out.strides[0], 0 if residual is None else _float_kind(residual.dtype), _float_kind(out.dtype),
    ]  # fmt: skip
    return args, (zero_a, scale_a, scale_b, bias, residual, out)


def from_token(rest: list[int], first: int) -> list[int]:
    """The arguments of an epilogue for the tokens from `first` on."""
    moved = list(rest)
    moved[0] -= first
    for i in PER_TOKEN:
        moved[i] += 4 * first
    moved[RESIDUAL] += first * moved[RESIDUAL_STRIDE]
    moved[OUT] += first * moved[OUT_STRIDE]
    return moved


def vectors(x: AnyArray) -> AnyArray:
    """x [n] as float32, contiguous, filled up to whole vectors."""
    if x.dtype == np.float32 and len(x) % 16 == 0 and x.flags.c_contiguous:
        return x
    whole = np.zeros(whole_vectors(len(x)), np.float32)
    whole[: len(x)] = x
    return whole


def zeros_at(n: int) -> int:
    """Where at least n zeros lie, int32 and, by their bits, float32, in whole vectors; all share them."""
    return _zeros(max(n - 1, 15).bit_length())[1]


@cache
def _zeros(bits: int) -> tuple[AnyArray, int]:
    zeros = np.zeros(1 << bits, np.int32)
    return zeros, address(zeros)


@cache
def _float_kind(dtype: np.dtype[Any]) -> int:
    """The kind of `simd.lanes` that values of a type are."""
    return {"float32": 0, "float16": 1, "bfloat16": 2}[dtype.name]


def whole_vectors(n: int) -> int:
    """n rounded up to whole vectors."""
    return -(-n // 16) * 16
