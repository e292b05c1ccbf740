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
"""Activations in the order in which the kernels number them."""

GEMM_MIN_TOKENS = 8
"""From this number of tokens on, weights are multiplied in panels; with fewer tokens, rows as they lie."""

PLANS_KEPT = 256

ALONE = 1 << 15
"""Up to this number of values, the calling thread quantizes alone: others would take longer to start."""

_threads = cache(cores)
_kept = threading.local()


@dataclass(slots=True, eq=False)
class Weight:
    """A weight [n, k]. Rows are contiguous and begin at any address.

    data    int8 [n, k]; or uint8 [n, k / 2], two codes a byte as `ops.w4a8` packs them
    scales  float16 [n, k / 128] of groups of 4-bit codes, or None
    """

    data: AnyArray
    scales: AnyArray | None = None

    @property
    def kind(self) -> int:
        """Which of `simd.integers.INT8`, INT4 and INT4_GROUPS it is."""
        return _weight_kind(self.data.dtype == np.int8, self.scales is not None)

    @property
    def place(self) -> dict[str, int]:
        """Where it lies, as the kernels read it; the address of float16 scales is 0 without."""
        return weight_place(self.data, self.scales)


@dataclass(slots=True, eq=False)
class SumsEpilogue:
    """What comes after the sums [m, n].

    scale_a, scale_b  float32 [m] and [n]
    zero_a            int32 zero points [m]
    bias              float32 [n]
    activation        a name among `ACTIVATIONS`
    residual          [m, n], float32, float16 or bfloat16
    """

    scale_a: AnyArray
    scale_b: AnyArray
    zero_a: AnyArray | None = None
    bias: AnyArray | None = None
    activation: str | None = None
    residual: AnyArray | None = None


def integer_product(a: AnyArray, weight: Weight, after: SumsEpilogue, out: AnyArray) -> None:
    """out [m, n] of int8 a [m, k] and a weight [n, k], float32, float16 or bfloat16; on all cores.

    K is a multiple of 64 (of 128 for 4 bits), and m, n and k are not 0.
    """
    prepare()
    n = len(weight.data)
    if after.zero_a is None:
        _run(a, weight, after, out, zeros_at(n))
    else:  # the sums of rows are the product of ones: below 2^24, and so exact in float32
        sums, one = np.empty((1, n), np.float32), np.ones(n, np.float32)
        _run(np.ones((1, a.shape[1]), np.int8), weight, SumsEpilogue(one[:1], one), sums, zeros_at(n))
        columns = np.zeros(whole_vectors(n), np.int32)
        columns[:n] = sums[0]
        _run(a, weight, after, out, address(columns))
    end_progress()


def group_sums(a: AnyArray, b: AnyArray, scale_a: AnyArray, scale_b: AnyArray, zero_a: AnyArray | None) -> AnyArray:
    """float32 [m, n]: for int8 a [m, k] and b [n, k], the sums of groups of K, times their scales and added up.

    scale_a  float32 [m, groups], and int32 zero_a or None
    scale_b  float32 [n, groups]

    Groups are copied to multiples of 64 values where they are none. m, n and k are not 0.
    """
    prepare()
    from octavo.backends.cpu.matmul.w8a8.int8_groups_kernel import ROWS, int8_groups_kernel

    (m, groups), n = scale_a.shape, len(b)
    of_a, of_b = np.array(scale_a, np.float32), np.ascontiguousarray(scale_b)
    tile = min(4, 1 << (m - 1).bit_length())
    x, w = _whole_groups(a, groups, -(-m // tile) * tile), _whole_groups(b, groups, n)
    of_a.resize((len(x), groups))
    lanes = x.reshape(-1, tile, groups, x.shape[1] // groups // 64, 16, 4).sum((3, 5), dtype=np.int32)
    begins = np.ascontiguousarray(lanes.swapaxes(1, 2)) * np.int32(-128)
    out = np.empty((len(x), n), np.float32)
    call = KernelCall(
        int8_groups_kernel(tile), -(-n // ROWS), y=out, y_stride=out.strides[0],
        x=x, x_stride=x.strides[0], x_scales=of_a, tokens=len(x), w=w, w_stride=w.strides[0], w_scales=of_b, rows=n,
        begins=begins, groups=groups, steps=x.shape[1] // groups // 64,
    )
    Program([call], _threads())()
    end_progress()
    if zero_a is None:
        return out[:m]
    sums = w.reshape(n, groups, -1).sum(2, dtype=np.int32) * of_b
    shifts: AnyArray = (zero_a * of_a[:m]) @ sums.T
    return np.subtract(out[:m], shifts)


def _whole_groups(x: AnyArray, groups: int, rows: int) -> AnyArray:
    """int8 x with contiguous rows, each of whose groups is a multiple of 64 codes; zeros fill up groups and `rows`."""
    group = x.shape[1] // groups
    whole = -(-group // 64) * 64
    if whole == group and rows == len(x):
        return np.ascontiguousarray(x)
    filled = np.zeros((rows, groups, whole), np.int8)
    filled[: len(x), :, :group] = x.reshape(len(x), groups, group)
    return filled.reshape(rows, -1)


def quantize_groups(x: AnyArray, group: int, symmetric: bool) -> tuple[AnyArray, AnyArray, AnyArray]:
    """int8 codes [m, k], float32 scales and int32 zero points [m, k / group] of contiguous x [m, k], float32,
    float16 or bfloat16: those of `octavo.ops.definition`, to the bit.

    Zero points are 0 if `symmetric`. The scale of values that are not all finite is NaN. k is not 0.
    """
    prepare()
    from octavo.backends.cpu.matmul.w8a8.quantize_kernel import quantize_groups_kernel

    m, k = x.shape
    codes, scales, zeros = (
        np.empty((m, k), np.int8),
        np.empty((m, k // group), np.float32),
        np.empty((m, k // group), np.int32),
    )
    call = KernelCall(
        quantize_groups_kernel(_float_kind(x.dtype)), m,
        codes=codes, scales=scales, zeros=zeros, x=x, k=k, group=group, symmetric=symmetric,
    )
    if x.size > ALONE:
        Program([call], _threads())()
    else:
        call.run()
    end_progress()
    return codes, scales, zeros


def _run(a: AnyArray, weight: Weight, after: SumsEpilogue, out: AnyArray, column_sums: int) -> None:
    """A product; at `column_sums` lie the sums of the weight's rows where there are zero points, else zeros."""
    m, n = out.shape
    zero_a = None if after.zero_a is None else np.ascontiguousarray(after.zero_a, np.int32)
    bias = None if after.bias is None else vectors(after.bias)
    scale_a, scale_b = np.ascontiguousarray(after.scale_a, np.float32), vectors(after.scale_b)
    plan = _plan(weight.kind, m, n)
    end = epilogue_arguments(
        out, plan.begins, address(scale_a), address(scale_b), None if bias is None else address(bias), after.residual
    )
    if zero_a is not None:
        end |= {"zeros": address(zero_a), "column_sums": column_sums}
    end["activation"] = ACTIVATIONS.index(after.activation)
    plan(a, weight, end)


def epilogue_arguments(
    y: AnyArray, begins: int, token_scales: int, column_scales: int, bias: int | None, residual: AnyArray | None
) -> dict[str, int]:
    """The fields `EPILOGUE` for y [m, n], without zero points or activation. What lies at addresses is not kept."""
    m, n = y.shape
    return {
        "tokens": m, "columns": n, "begins": begins, "zeros": zeros_at(m), "column_sums": zeros_at(n),
        "token_scales": token_scales, "column_scales": column_scales, "bias": zeros_at(n) if bias is None else bias,
        "activation": 0,
        "residual": 0 if residual is None else address(residual),
        "residual_stride": 0 if residual is None else residual.strides[0],
        "residual_kind": 0 if residual is None else _float_kind(residual.dtype),
        "y": address(y), "y_stride": y.strides[0], "y_kind": _float_kind(y.dtype),
    }


def weight_place(rows: AnyArray, groups: AnyArray | None) -> dict[str, int]:
    """The fields `int8_gemm.WEIGHT` of rows of bytes and of the scales of their groups."""
    return {
        "w": address(rows), "w_stride": rows.strides[0], "row_bytes": rows.shape[1],
        "groups": 0 if groups is None else address(groups), "groups_stride": 0 if groups is None else groups.strides[0],
    }


def _plan(kind: int, m: int, n: int) -> _Plan:
    """The plan of a kind of weight and a size of result; each thread has its own, for it fills in their arguments."""
    plans: dict[tuple[int, int, int], _Plan] = _kept.__dict__.setdefault("plans", {})
    key = kind, m, n
    if key not in plans:
        if len(plans) >= PLANS_KEPT:
            plans.clear()
        plans[key] = (_MatvecPlan if m < GEMM_MIN_TOKENS else _GemmPlan)(*key)
    return plans[key]


class _Plan(ABC):
    """The calls of products of one size, whose arguments are filled in each time: making calls takes longer.

    `begins` is where sums over tokens begin, [m] int32: with what takes the offset off the weights.
    """

    def __init__(self, kind: int, m: int, calls: Sequence[tuple[Any, int, bool]]) -> None:
        from octavo.backends.cpu.matmul.w8a8.epilogue import EPILOGUE
        from octavo.jit.simd.integers import OFFSETS

        self.offset, self._sums = OFFSETS[kind], np.empty(m, np.int32)
        self.begins = address(self._sums)
        self._fill_end, self._end = EPILOGUE.fill, EPILOGUE.empty()
        self.end = address(self._end)
        self.program = Program([_empty_call(*call) for call in calls], _threads())
        self.calls = self.program.calls

    def __call__(self, a: AnyArray, weight: Weight, end: dict[str, int]) -> None:
        """Run a product; `end` is the record of the epilogue."""
        self._fill_end(self._end, end)
        room = self._fill(a, weight.place)
        self.program()
        del room  # the calls have used it

    @abstractmethod
    def _fill(self, a: AnyArray, place: dict[str, int]) -> tuple[AnyArray, ...]:
        """Set the arguments of the calls, and return the memory that they need; `place` says where the weight lies."""


def _empty_call(kernel: Any, tasks: int, overlaps: bool) -> KernelCall:
    call = KernelCall(kernel, tasks, **dict.fromkeys(kernel.record.names, 0))
    call.overlaps = overlaps
    return call


class _MatvecPlan(_Plan):
    """Rows as they lie times up to four tokens at once."""

    def __init__(self, kind: int, m: int, n: int) -> None:
        from octavo.backends.cpu.matmul.w8a8 import int8_kernel as kernels

        parts = kernels.parts_of(m)
        self.firsts = [first for first, _ in parts]
        products = [(kernels.matvec_kernel(kind, size), -(-n // 16), True) for _, size in parts]
        super().__init__(kind, m, [(kernels.begins_kernel(), m, False), *products])

    def _fill(self, a: AnyArray, place: dict[str, int]) -> tuple[AnyArray, ...]:
        at, stride = address(a), a.strides[0]
        begins, *products = self.calls
        begins.fill({"begins": self.begins, "x": at, "x_stride": stride, "chunks": a.shape[1] // 64,
                     "offset": self.offset})
        place |= {"x_stride": stride, "end": self.end}
        for call, first in zip(products, self.firsts, strict=True):
            place["x"], place["first_token"] = at + first * stride, first
            call.fill(place)
        return ()


class _GemmPlan(_Plan):
    """Panels of rows times tiles of tokens."""

    def __init__(self, kind: int, m: int, n: int) -> None:
        from octavo.backends.cpu.matmul.w8a8 import int8_kernel as kernels
        from octavo.backends.cpu.matmul.w8a8.amx_kernel import panels_of, product_kernel

        wide, narrow = kernels.tiles_of(m)
        tiles = ((0, wide, kernels.WIDE), (wide * kernels.WIDE, narrow, kernels.NARROW))
        self.tiles = [(first, size) for first, count, size in tiles if count]
        self.counts, self.columns, self.slice = (wide, narrow), whole_vectors(n), kernels.SLICE
        self.padded = wide * kernels.WIDE + narrow * kernels.NARROW
        copies = [
            (kernels.tiles_kernel(), count, not first and wide > 0 and narrow > 0) for first, count, _ in tiles if count
        ]
        self.panels = panels_of(n, _threads())
        super().__init__(kind, m, [*copies, (product_kernel(kind), -(-n // (16 * self.panels)), False)])

    def _fill(self, a: AnyArray, place: dict[str, int]) -> tuple[AnyArray, ...]:
        (m, k), stride = a.shape, a.strides[0]
        tiles = np.empty(self.padded * k, np.int8)
        parts = np.empty(self.columns * self.padded if k > self.slice else 0, np.int32)
        codes, at = address(tiles), address(a)
        *copies, product = self.calls
        for call, (first, size) in zip(copies, self.tiles, strict=True):
            call.fill({
                "codes": codes + first * k, "begins": self.begins + 4 * first, "offset": self.offset,
                "x": at + first * stride, "x_stride": stride, "tokens": m - first, "chunks": k // 64, "tile": size,
            })
        wide, narrow = self.counts
        product.fill(place | {
            "x": codes, "wide_tiles": wide, "narrow_tiles": narrow, "partial_sums": address(parts), "end": self.end,
            "panels": self.panels,
        })
        return tiles, parts


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
def _weight_kind(whole_bytes: bool, grouped: bool) -> int:
    from octavo.jit.simd.integers import INT4, INT4_GROUPS, INT8

    if whole_bytes:
        return INT8
    return INT4_GROUPS if grouped else INT4


@cache
def _float_kind(dtype: np.dtype[Any]) -> int:
    """The kind of `simd.lanes` that values of a type are."""
    return {"float32": 0, "float16": 1, "bfloat16": 2}[dtype.name]


def whole_vectors(n: int) -> int:
    """n rounded up to whole vectors."""
    return -(-n // 16) * 16
