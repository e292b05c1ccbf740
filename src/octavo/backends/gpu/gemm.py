"""Products of 8-bit numbers as functions of torch tensors: int8, int8 by 4-bit weights, fp8; see `octavo.ops`.

    y [M, N] = activation(acc * scale_a * scale_b + bias) + residual

Sums of integers are exact whatever K: in int32 up to what that holds, and beyond it parts of K are added in int64.
Results are the same from run to run, also where programs share K: their parts are added in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Literal, ParamSpec, cast, get_args

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo.backends.gpu import device, gluon
from octavo.backends.gpu.gemm_shapes import GemmShape, Scheme, shape_of
from octavo.backends.gpu.kernels.gemm_fp8 import fp8_gemm_kernel
from octavo.backends.gpu.kernels.gemm_int8 import int8_gemm_kernel, row_sums_kernel
from octavo.backends.gpu.kernels.gemm_w4a8 import w4a8_gemm_kernel
from octavo.backends.gpu.quantize8 import BLOCK, FLOATS, FP8_TYPES, quantize_fp8, quantize_int8
from octavo.errors import UsageError

__all__ = ["Workspace", "fp8_gemm", "int8_gemm", "quantize_fp8", "quantize_int8", "row_sums", "w4a8_gemm"]

Activation = Literal["relu", "gelu", "silu"]
OutDType = Literal["f32", "f16", "bf16"]
Tensor = torch.Tensor
P = ParamSpec("P")

OUT_TYPES: dict[OutDType, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
MOST = (1 << 17) - 1
"""Values of K whose products, 2^14 at most each, an int32 sum holds; with a zero point a product is below 2^15."""

SHORT_SUMS = ("sm_89", "sm_90", "interpreter")
"""Architectures whose matrix units keep some 14 bits of a sum of fp8 (and the interpreter, for tests)."""
KEPT = 1024
"""Values of K that such units add up before float32 sums take over: an error of 5e-4, and half the cost of 256."""

FP8_GROUPS = 2
"""Of four warps, that share a tile of 128 tokens of fp8 on compute capability 9.0; each counts its partial sums."""


class Workspace:
    """Memory for products that divide K: partial sums, and counters that are zero between calls.

    Calls one after the other on one stream can share it. Without one a call takes and clears memory of its own.
    """

    def __init__(self) -> None:
        self._shares: dict[Any, Tensor] = {}
        self._counters: dict[Any, Tensor] = {}

    def take(self, shares: int, counters: int, dtype: torch.dtype, where: Any) -> tuple[Tensor, Tensor]:
        """Memory for `shares` values and, all zero, `counters` int32."""
        for kept, key, size, made in (
            (self._shares, (dtype, where), shares, torch.empty),
            (self._counters, where, counters, torch.zeros),
        ):
            if key not in kept or len(kept[key]) < size:
                kept[key] = made(size, dtype=dtype if made is torch.empty else torch.int32, device=where)
        return self._shares[dtype, where], self._counters[where]


@dataclass(frozen=True)
class _End:
    """What comes after the sums, checked: arguments and constants of a kernel's epilogue."""

    y: Tensor
    bias: Tensor
    residual: Tensor
    constants: dict[str, Any]


def _or_portable(product: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The product once more if a kernel of Gluon turns out not to compile: `_how` takes another then."""

    @wraps(product)
    def either(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        try:
            return product(*args, **kwargs)
        except gluon.Unusable:
            return product(*args, **kwargs)

    return either


@_or_portable
def int8_gemm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, zero_a: Tensor | None = None, bias: Tensor | None = None,
    activation: Activation | None = None, residual: Tensor | None = None, out_dtype: OutDType = "f32",
    sums: Tensor | None = None, workspace: Workspace | None = None, shape: GemmShape | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """y [M, N] of codes int8 a [M, K] and b [N, K]: acc = sum((a - zero_a) * b).

    Scales are float32: scale_a [] or [M, 1] (or [M]), scale_b [] or [N, 1]; zero_a is int32 like scale_a, from -128 to
    127: tokens with another zero point are NaN. bias is [N], residual [M, N], of any float type. `sums` are
    `row_sums(b)`, which are worked out if zero_a is given without. The result goes to `out` if there is one, [M, N] of
    out_dtype; the residual may be the same.
    Raises UsageError for what does not fit.
    """
    a, b, m, n, k = _factors(a, b, torch.int8)
    end = _end(m, n, a.device, bias, activation, residual, out_dtype, out)
    if zero_a is not None:
        sums = row_sums(b) if sums is None else _like("sums", sums, (n,), torch.int32, a.device)
        zero_a = _per("zero_a", zero_a, m, torch.int32, a.device)
    scale_a = _per("scale_a", scale_a, m, torch.float32, a.device)
    scale_b = _per("scale_b", scale_b, n, torch.float32, a.device)
    if not end.y.numel():
        return end.y
    how = _how("int8", m, n, k, zero_a is not None, shape, a, b)
    s = how.shape
    shares, finished = _room(s, m, n, torch.int32, a.device, workspace)
    arguments = (
        scale_a, scale_b, scale_a if zero_a is None else zero_a, scale_a if sums is None else sums, end.bias,
        end.residual, end.y, shares, finished, m, n, k,
    )  # fmt: skip
    constants = {
        "A_STEP": _step(scale_a), "B_STEP": _step(scale_b), "ZERO_STEP": 0 if zero_a is None else _step(zero_a),
        "ZERO": zero_a is not None, **end.constants, "GROUP": s.group_m, "SPLITS": s.split_k, "STAGES": s.stages,
        "num_warps": s.warps, "enable_fp_fusion": True,
    }  # fmt: skip
    if how.hopper:
        with gluon.attempt("int8"):
            gluon.kernel("int8")[_grid(s, m, n)](
                gluon.tiles(a, s.block_m, s.block_k), gluon.tiles(b, s.block_n, s.block_k), *arguments, end.y.stride(0),
                end.residual.stride(0), **constants,
            )  # fmt: skip
    else:
        int8_gemm_kernel[_grid(s, m, n)](
            _tiles(a, s.block_m, s.block_k, how.tma), _tiles(b, s.block_n, s.block_k, how.tma), *arguments, a.stride(0),
            b.stride(0), end.y.stride(0), end.residual.stride(0), **constants, BM=s.block_m, BN=s.block_n, BK=s.block_k,
            PERSISTENT=s.persistent, WIDE=how.wide, TMA=how.tma, EVEN=k % s.block_k == 0,
        )  # fmt: skip
    return end.y


def row_sums(b: Tensor) -> Tensor:
    """int32 [N]: the sum of each row of codes int8 b [N, K]."""
    out = torch.empty(len(b), dtype=torch.int32, device=b.device)
    if len(b):
        row_sums_kernel[len(b),](b, out, b.shape[1], b.stride(0), B=1024, num_warps=4, enable_fp_fusion=True)
    return out


@_or_portable
def w4a8_gemm(
    a: Tensor, packed: Tensor, scale_a: Tensor, channel_scale: Tensor, group_scale: Tensor | None = None, *,
    bias: Tensor | None = None, activation: Activation | None = None, residual: Tensor | None = None,
    out_dtype: OutDType = "f32", workspace: Workspace | None = None, shape: GemmShape | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """y [M, N] of codes int8 a [M, K] and 4-bit weights [N, K] as `octavo.ops.W4A8Weight` has them.

    packed is uint8 [N, K / 2], K a multiple of 128; channel_scale float32 [N]; group_scale float16 [N, K / 128], of any
    strides (rows beside one another are read fastest). Everything else is that of `int8_gemm`.
    """
    if packed.dtype != torch.uint8 or packed.ndim != 2 or packed.shape[1] % (BLOCK // 2):
        raise UsageError(f"packed is {_words(packed)} (allowed: uint8 [N, K / 2], K a multiple of {BLOCK})")
    a, packed, m, n, k = _factors(a, packed.view(torch.int8), torch.int8, 2)
    end = _end(m, n, a.device, bias, activation, residual, out_dtype, out)
    scale_a = _per("scale_a", scale_a, m, torch.float32, a.device)
    channel_scale = _per("channel_scale", channel_scale, n, torch.float32, a.device)
    if group_scale is not None:
        group_scale = _like("group_scale", group_scale, (n, k // BLOCK), torch.float16, a.device)
    if not end.y.numel():
        return end.y
    how = _how("w4a8" if group_scale is None else "w4a8_g128", m, n, k, False, shape, a, packed)
    s = how.shape
    shares, finished = _room(s, m, n, torch.int32, a.device, workspace)
    groups = channel_scale.view(-1, 1) if group_scale is None else group_scale
    arguments = (scale_a, channel_scale, groups, end.bias, end.residual, end.y, shares, finished, m, n, k)
    strides = (groups.stride(0), groups.stride(1), end.y.stride(0), end.residual.stride(0))
    constants = {
        "A_STEP": _step(scale_a), "B_STEP": _step(channel_scale), "GROUPED": group_scale is not None, **end.constants,
        "GROUP": s.group_m, "SPLITS": s.split_k, "STAGES": s.stages, "num_warps": s.warps, "enable_fp_fusion": True,
    }  # fmt: skip
    if how.hopper:
        with gluon.attempt("w4a8"):
            gluon.kernel("w4a8")[_grid(s, m, n)](
                gluon.tiles(a, s.block_m, BLOCK), gluon.tiles(packed, s.block_n, s.block_k // 2), *arguments, *strides,
                **constants,
            )  # fmt: skip
    else:
        w4a8_gemm_kernel[_grid(s, m, n)](
            _tiles(a, s.block_m, BLOCK // 2, how.tma), _tiles(packed, s.block_n, BLOCK // 2, how.tma), *arguments,
            a.stride(0), packed.stride(0), *strides, **constants, BM=s.block_m, BN=s.block_n, WIDE=how.wide,
            TMA=how.tma, ASM=device.target().asm,
        )  # fmt: skip
    return end.y


@_or_portable
def fp8_gemm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, bias: Tensor | None = None,
    activation: Activation | None = None, residual: Tensor | None = None, out_dtype: OutDType = "f32",
    fast: bool = False, workspace: Workspace | None = None, shape: GemmShape | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """y [M, N] of float8_e4m3fn or float8_e5m2 a [M, K] and b [N, K], NaN excluded.

    Scales are those of `int8_gemm`, or of blocks: scale_a [M, ceil(K / 128)] and scale_b [ceil(N / 128),
    ceil(K / 128)]. `fast` leaves all sums to the matrix units, which on compute capability 9.0 keep some 14 bits.
    Raises UsageError for what does not fit.
    """
    kind = next((name for name, dtype in FP8_TYPES.items() if dtype == a.dtype), None)
    if kind is None:
        raise UsageError(f"a is {_words(a)} (allowed: float8_e4m3fn or float8_e5m2 [M, K])")
    a, b, m, n, k = _factors(a, b, a.dtype)
    end = _end(m, n, a.device, bias, activation, residual, out_dtype, out)
    grid = (-(-n // BLOCK), -(-k // BLOCK))
    blocks = scale_b.numel() not in (1, n) or (scale_a.ndim == 2 and scale_a.shape[1] > 1)
    if blocks:
        scale_a = _like("scale_a", scale_a, (m, grid[1]), torch.float32, a.device).contiguous()
        scale_b = _like("scale_b", scale_b, grid, torch.float32, a.device).contiguous()
    else:
        scale_a = _per("scale_a", scale_a, m, torch.float32, a.device)
        scale_b = _per("scale_b", scale_b, n, torch.float32, a.device)
    if not end.y.numel():
        return end.y
    how = _how("fp8_blocks" if blocks else "fp8_fast" if fast else "fp8", m, n, k, False, shape, a, b)
    s = how.shape
    shares, finished = _room(s, m, n, torch.float32, a.device, workspace)
    arguments = (scale_a, scale_b, end.bias, end.residual, end.y, shares, finished, m, n, k)
    constants = {
        "A_STEP": None if blocks else _step(scale_a), "B_STEP": None if blocks else _step(scale_b), "BLOCKS": blocks,
        **end.constants, "GROUP": s.group_m, "SPLITS": s.split_k, "STAGES": s.stages, "enable_fp_fusion": True,
    }  # fmt: skip
    if how.hopper:
        with gluon.attempt("fp8"):
            gluon.kernel("fp8")[min(s.programs(m, n) * s.split_k, _multiprocessors()),](
                gluon.tiles(a, s.block_m, s.block_k), gluon.tiles(b, s.block_n, s.block_k), *arguments, end.y.stride(0),
                end.residual.stride(0), grid[1], **constants, FAST=fast and not blocks, num_warps=s.warps // FP8_GROUPS,
            )  # fmt: skip
        return end.y
    units = fp8_units(device.target().arch, kind)
    if units != "fp8":
        a, b = a.view(torch.int8), b.view(torch.int8)
    kept = KEPT if not fast and device.target().arch in SHORT_SUMS else 0
    fp8_gemm_kernel[_grid(s, m, n)](
        _tiles(a, s.block_m, s.block_k, how.tma), _tiles(b, s.block_n, s.block_k, how.tma), *arguments, a.stride(0),
        b.stride(0), end.y.stride(0), end.residual.stride(0), grid[1], **constants, KIND=kind, UNITS=units, KEPT=kept,
        BM=s.block_m, BN=s.block_n, BK=s.block_k, TMA=how.tma, EVEN=k % s.block_k == 0, num_warps=s.warps,
    )  # fmt: skip
    return end.y


def fp8_units(arch: str, kind: str) -> Literal["fp8", "fnuz", "f16"]:
    """What the matrix units of an architecture take for a type of fp8; see `kernels.gemm_fp8`."""
    if arch == "gfx942":
        return "fnuz" if kind == "e4m3" else "f16"
    native = arch.startswith(("sm_89", "sm_9", "sm_1", "gfx95", "gfx12")) or arch == "interpreter"
    return "fp8" if native else "f16"


def _factors(a: Tensor, b: Tensor, dtype: torch.dtype, codes: int = 1) -> tuple[Tensor, Tensor, int, int, int]:
    """Both with neighbours along K side by side, and M, N and K; a byte of b holds so many codes."""
    if a.ndim != 2 or b.ndim != 2 or a.dtype != dtype or b.dtype != dtype or a.shape[1] != codes * b.shape[1]:
        name = str(dtype).removeprefix("torch.")
        raise UsageError(f"a is {_words(a)} and b {_words(b)} (allowed: {name} [M, K] and [N, K])")
    where = device.target().device
    if a.device != b.device or a.device.type != where:
        raise UsageError(f"a is on {a.device} and b on {b.device} (allowed: one device, {where})")
    a, b = (x if x.stride(1) == 1 and x.stride(0) > 0 else x.contiguous() for x in (a, b))
    return a, b, a.shape[0], b.shape[0], a.shape[1]


def _end(
    m: int, n: int, where: Any, bias: Tensor | None, activation: Activation | None, residual: Tensor | None,
    out_dtype: OutDType, out: Tensor | None,
) -> _End:  # fmt: skip
    if out_dtype not in OUT_TYPES:
        raise UsageError(f"out_dtype {out_dtype!r} (allowed: {', '.join(OUT_TYPES)})")
    if activation is not None and activation not in get_args(Activation):
        raise UsageError(f"activation {activation!r} (allowed: {', '.join(get_args(Activation))})")
    if out is None:
        y = torch.empty((m, n), dtype=OUT_TYPES[out_dtype], device=where)
    else:
        y = _like("out", out, (m, n), OUT_TYPES[out_dtype], where)
        if n > 1 and y.stride(1) != 1:
            raise UsageError(f"out has strides {list(y.stride())} (allowed: neighbours in a row side by side)")
    constants = {"BIAS": bias is not None, "ACTIVATION": activation, "RESIDUAL": residual is not None}
    bias = y if bias is None else _like("bias", bias, (n,), None, where).contiguous()
    residual = y if residual is None else _like("residual", residual, (m, n), None, where)
    return _End(y, bias, residual if residual.stride(1) == 1 else residual.contiguous(), constants)


def _like(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None, where: Any) -> Tensor:
    """x, if it has this shape and type (None: any of floats) and is there."""
    types = FLOATS if dtype is None else (dtype,)
    if tuple(x.shape) != shape or x.dtype not in types or x.device != where:
        names = " or ".join(str(t).removeprefix("torch.") for t in types)
        raise UsageError(f"{name} is {_words(x)} on {x.device} (allowed: {names} {list(shape)} on {where})")
    return x


def _per(name: str, x: Tensor, rows: int, dtype: torch.dtype, where: Any) -> Tensor:
    """One number, or one for each of `rows`, side by side."""
    shaped = tuple(x.shape) in ((), (1,), (1, 1), (rows,), (rows, 1))
    if not shaped or x.dtype != dtype or x.device != where:
        wanted = f"{str(dtype).removeprefix('torch.')} [] or [{rows}, 1] on {where}"
        raise UsageError(f"{name} is {_words(x)} on {x.device} (allowed: {wanted})")
    return x.reshape(-1).contiguous()


def _words(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def _step(scale: Tensor) -> int:
    return int(len(scale) > 1)


@cache
def _multiprocessors() -> int:
    if device.target().device == "cpu":
        return 1
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


@dataclass(frozen=True)
class _How:
    """Which kernel computes a product: its shape, whether sums need int64, descriptors, and the one for Hopper."""

    shape: GemmShape
    wide: bool
    tma: bool
    hopper: bool


def _how(scheme: Scheme, m: int, n: int, k: int, zero: bool, given: GemmShape | None, a: Tensor, b: Tensor) -> _How:
    """Products of integers with as many splits as int32 sums need; those whose total does not fit are Triton's, and
    those of fp8 with few tokens."""
    arch, tma = device.target().arch, _tma(a, b)
    integers = not scheme.startswith("fp8")
    wide = integers and k > (MOST // 2 if zero else MOST)
    hopper = arch == "sm_90" and tma and not wide and gluon.usable(cast("gluon.Name", scheme.split("_")[0]))
    shape = given or shape_of(scheme, m, n, k, arch, _multiprocessors(), hopper)
    needed = max(-(-k // (MOST // shape.block_k * shape.block_k)), 2 if wide else 1) if integers else 1
    hopper = hopper and (integers or (shape.block_m == 128 and shape.warps == 4 * FP8_GROUPS))
    return _How(shape.with_split_k(max(shape.split_k, needed)), wide, tma, hopper)


def _room(shape: GemmShape, m: int, n: int, dtype: torch.dtype, where: Any, workspace: Workspace | None) -> Any:
    """Partial sums and counters, or anything where there are none."""
    programs = shape.programs(m, n) if shape.split_k > 1 else 0
    values = programs * shape.split_k * shape.block_m * shape.block_n
    return (workspace or Workspace()).take(values, programs * FP8_GROUPS, dtype, where)


def _grid(shape: GemmShape, m: int, n: int) -> tuple[int]:
    programs = shape.programs(m, n) * shape.split_k
    return (min(programs, _multiprocessors()) if shape.persistent else programs,)


def _tma(*tensors: Tensor) -> bool:
    """Whether tiles can be loaded by descriptors: on compute capability 9.0 and later, rows and base at 16 bytes."""
    arch = device.target().arch
    if not (arch == "interpreter" or arch.startswith(("sm_9", "sm_1"))):
        return False
    return all(x.data_ptr() % 16 == 0 and x.stride(0) % 16 == 0 and x.shape[1] > 0 for x in tensors)


def _tiles(x: Tensor, rows: int, columns: int, tma: bool) -> Any:
    return TensorDescriptor.from_tensor(x, [rows, columns]) if tma else x
