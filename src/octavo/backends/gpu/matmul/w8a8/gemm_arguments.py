"""What kernels of 8-bit products take, by name, and the checks that it fits together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import torch

from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.launch.arguments import Constant, Matrix, Pointer, Results, SplitK
from octavo.backends.gpu.matmul.w8a8.quantize import FLOATS
from octavo.backends.gpu.matmul.w8a8.shapes import GemmShape
from octavo.errors import UsageError

Activation = Literal["relu", "gelu", "silu"]
OutDType = Literal["f32", "f16", "bf16"]
Tensor = torch.Tensor

OUT_TYPES: dict[OutDType, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


INT32_MAX_K = (1 << 17) - 1
"""Values of K whose products, 2^14 at most each, an int32 sum holds; with a zero point a product is below 2^15."""


class Workspace:
    """Memory for split-K: partial sums, and counters that are zero between calls.

    Calls one after the other on one stream can share it. Without one a call takes and clears memory of its own.
    """

    def __init__(self) -> None:
        self._partial: dict[Any, Tensor] = {}
        self._counters: dict[Any, Tensor] = {}

    def take(self, values: int, counters: int, dtype: torch.dtype, where: Any) -> tuple[Tensor, Tensor]:
        """Memory for `values` partial sums and, all zero, `counters` int32."""
        for kept, key, size, made in (
            (self._partial, (dtype, where), values, torch.empty),
            (self._counters, where, counters, torch.zeros),
        ):
            if key not in kept or len(kept[key]) < size:
                kept[key] = made(size, dtype=dtype if made is torch.empty else torch.int32, device=where)
        return self._partial[dtype, where], self._counters[where]


class After(TypedDict, total=False):
    """What follows the sums of any product, and how it is computed.

    bias        [N], of any float type
    activation  before the residual is added
    residual    [M, N], of any float type; may be `out`
    out_dtype   of the result: "f32" unless given
    out         [M, N] of out_dtype, which the result goes to
    workspace   memory that several calls use
    shape       instead of the one that is chosen
    overlaps    the weights are there, so a kernel may read them before the one before it has ended
    """

    bias: Tensor | None
    activation: Activation | None
    residual: Tensor | None
    out_dtype: OutDType
    out: Tensor | None
    workspace: Workspace | None
    shape: GemmShape | None
    overlaps: bool


class ProblemSize(NamedTuple):
    """Of a product: m tokens, n rows of the weights, k values of each."""

    m: int
    n: int
    k: int


class MultiCtaPart(NamedTuple):
    """One of two products of a launch: y f32, memory for partial sums, its size, and how many programs it has."""

    y: Results
    splits: SplitK
    size: ProblemSize
    programs: int


class Strides(NamedTuple):
    """Elements from a row to the next of the factors a and b."""

    a: int
    b: int


class GroupScales(NamedTuple):
    """Scales of groups of 128 weights, float16 [N, K / 128].

    row    elements from a row to the next
    group  elements from a group to the next
    """

    data: Pointer
    row: int
    group: int


class BlockScales(NamedTuple):
    """Scales of blocks of 128 values of K, float32.

    a       [M, blocks], of each token
    b       [ceil(N / 128), blocks], of 128 rows
    blocks  ceil(K / 128)
    """

    a: Pointer
    b: Pointer
    blocks: int


class GroupFactors(NamedTuple):
    """Scales of groups of K of both factors, float32, and zero points, int32 or None; those of a row side by side.

    a, zero  [M, groups]
    b        [N, groups]
    groups   of K
    width    values of a group
    """

    a: Pointer
    b: Pointer
    zero: Pointer | None
    groups: int
    width: int


class Epilogue(NamedTuple):
    """y = activation((sums - zero_a * sums_b) * scale_a * scale_b * factor + bias) + residual; None for what is not.

    y         [M, N]
    scale_a   float32, of each token or of all; None, and scale_b too, where sums are scaled already
    scale_b   float32, of each row of b or of all
    zero_a    int32, of each token or of all
    sums_b    int32 [N], the sum of each row of b, for zero_a
    bias      [N]
    residual  [M, N]
    """

    y: Matrix
    scale_a: Pointer | None = None
    scale_b: Pointer | None = None
    zero_a: Pointer | None = None
    sums_b: Pointer | None = None
    bias: Pointer | None = None
    residual: Matrix | None = None


@dataclass(frozen=True)
class GemmConfig(Constant):
    """What a kernel is compiled for besides its GemmShape.

    activation  "relu", "silu", "gelu" or None
    step_a      1: each token has a scale_a; 0: all share one
    step_b      1: each row has a scale_b; 0: all share one
    step_zero   1: each token has a zero_a; 0: all share one
    factor      of all sums
    wide        split-K adds in int64
    tma         a and b are descriptors of tiles
    even        K is a multiple of block_k
    """

    activation: Activation | None
    step_a: int = 0
    step_b: int = 0
    step_zero: int = 0
    factor: float = 1.0
    wide: bool = False
    tma: bool = False
    even: bool = True


@dataclass(frozen=True)
class Fp8Config(Constant):
    """How a product of fp8 is computed.

    kind_a, kind_b  "e4m3" or "e5m2"
    operands        what `kernels.gemm_fp8.operand` makes of them: "fp8", "fnuz" or "f16"
    kept            values of K that the tensor cores add up; 0: all
    """

    kind_a: str
    kind_b: str
    operands: str
    kept: int = 0


def epilogue(size: ProblemSize, where: Any, after: After) -> Epilogue:
    """What follows the sums, all but scales. Raises UsageError for what does not fit."""
    out_dtype, activation = after.get("out_dtype", "f32"), after.get("activation")
    if out_dtype not in OUT_TYPES:
        raise UsageError(f"out_dtype {out_dtype!r} (allowed: {', '.join(OUT_TYPES)})")
    if activation is not None and activation not in get_args(Activation):
        raise UsageError(f"activation {activation!r} (allowed: {', '.join(get_args(Activation))})")
    shape, y, bias, residual = (size.m, size.n), after.get("out"), after.get("bias"), after.get("residual")
    if y is None:
        y = torch.empty(shape, dtype=OUT_TYPES[out_dtype], device=where)
    else:
        like("out", y, shape, OUT_TYPES[out_dtype], where)
        if size.n > 1 and y.stride(1) != 1:
            raise UsageError(f"out has strides {list(y.stride())}, but its rows must be contiguous")
    if bias is not None:
        bias = like("bias", bias, (size.n,), None, where).contiguous()
    if residual is not None:
        residual = like("residual", residual, shape, None, where)
        residual = residual if residual.stride(1) == 1 else residual.contiguous()
    rows = None if residual is None else Matrix(residual, residual.stride(0))
    return Epilogue(Matrix(y, y.stride(0)), bias=bias, residual=rows)


def factors(a: Tensor, b: Tensor, types: tuple[torch.dtype, ...], codes: int = 1) -> tuple[Tensor, Tensor, ProblemSize]:
    """Both with neighbours along K side by side, and their sizes; `codes` is how many a byte of b holds.

    Raises UsageError for types, shapes and devices that do not fit.
    """
    typed = a.dtype in types and b.dtype in types
    if a.ndim != 2 or b.ndim != 2 or not typed or a.shape[1] != codes * b.shape[1]:
        name = " or ".join(str(dtype).removeprefix("torch.") for dtype in types)
        raise UsageError(f"a is {words(a)} and b {words(b)} (allowed: {name} [M, K] and [N, K])")
    where = torch_device.here().kind
    if a.device != b.device or a.device.type != where:
        raise UsageError(f"a is on {a.device} and b on {b.device} (allowed: one device, {where})")
    a, b = (x if x.stride(1) == 1 and x.stride(0) > 0 else x.contiguous() for x in (a, b))
    return a, b, ProblemSize(a.shape[0], b.shape[0], a.shape[1])


def like(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None, where: Any) -> Tensor:
    """x, if it has this shape and type (None: any of floats) and is there."""
    types = FLOATS if dtype is None else (dtype,)
    if tuple(x.shape) != shape or x.dtype not in types or x.device != where:
        names = " or ".join(str(t).removeprefix("torch.") for t in types)
        raise UsageError(f"{name} is {words(x)} on {x.device} (allowed: {names} {list(shape)} on {where})")
    return x


def one_or_per_row(name: str, x: Tensor, rows: int, dtype: torch.dtype, where: Any) -> Tensor:
    """One number, or one for each of `rows`, side by side."""
    shaped = tuple(x.shape) in ((), (1,), (1, 1), (rows,), (rows, 1))
    if not shaped or x.dtype != dtype or x.device != where:
        wanted = f"{str(dtype).removeprefix('torch.')} [] or [{rows}, 1] on {where}"
        raise UsageError(f"{name} is {words(x)} on {x.device} (allowed: {wanted})")
    return x.reshape(-1).contiguous()


def per_group(name: str, x: Tensor, rows: int, groups: int, dtype: torch.dtype, where: Any) -> Tensor:
    """A number for each of `rows` and groups, [rows, groups], from one for each as that, for each row, or for all."""
    if tuple(x.shape) == (rows, groups) and x.dtype == dtype and x.device == where:
        return x.contiguous()
    return one_or_per_row(name, x, rows, dtype, where)[:, None].expand(rows, groups).contiguous()


def step(scale: Tensor | None) -> int:
    """1 where there is one for each row, 0 where all share one."""
    return int(scale is not None and len(scale) > 1)


def words(x: Tensor) -> str:
    """Type and shape as errors say them."""
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
