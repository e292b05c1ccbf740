"""Products of 8-bit numbers as functions of torch tensors: int8, int8 by 4-bit weights, fp8; see `octavo.ops`.

    y [M, N] = activation(acc * scale_a * scale_b + bias) + residual

Sums of integers are exact whatever K: in int32 up to what that holds, and beyond it parts of K are added in int64.
Results are the same from run to run, with split-K too: partial sums are added in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Unpack, cast

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.launch.arguments import SplitK, for_triton
from octavo.backends.gpu.matmul.w8a8 import streamk
from octavo.backends.gpu.matmul.w8a8.fp8_kernel import fp8_gemm_kernel
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import (
    INT32_MAX_K,
    OUT_TYPES,
    After,
    BlockScales,
    Epilogue,
    Fp8Config,
    GemmConfig,
    GroupFactors,
    GroupScales,
    ProblemSize,
    Strides,
    Workspace,
    epilogue,
    factors,
    like,
    one_or_per_row,
    per_group,
    step,
    words,
)
from octavo.backends.gpu.matmul.w8a8.int8_kernel import int8_gemm_kernel, int8_groups_kernel, row_sums_kernel
from octavo.backends.gpu.matmul.w8a8.quantize import BLOCK, FP8_NAMES, FP8_TYPES, quantize_fp8, quantize_int8
from octavo.backends.gpu.matmul.w8a8.shapes import GemmShape, Scheme, shape_of, streamk_shape
from octavo.backends.gpu.matmul.w8a8.w4a8_kernel import w4a8_gemm_kernel
from octavo.errors import UsageError
from octavo.formats.rows import groups_of

__all__ = [
    "OUT_TYPES",
    "Workspace",
    "fp8_gemm",
    "int8_gemm",
    "quantize_fp8",
    "quantize_int8",
    "row_sums",
    "w4a8_gemm",
]

Tensor = torch.Tensor

SHORT_SUMS = ("sm_89", "sm_90", "interpreter")
"""Architectures whose tensor cores keep some 14 bits of a sum of fp8 (and the interpreter, for tests)."""
KEPT = 1024
"""Values of K that such tensor cores add up before float32 sums take over: an error of 5e-4, and half the cost of
256."""

FP8_GROUPS = 2
"""Of four warps, that share a tile of 128 tokens of fp8 on compute capability 9.0; each counts its partial sums."""


@gluon.or_portable
def int8_gemm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, zero_a: Tensor | None = None,
    sums: Tensor | None = None, **after: Unpack[After],
) -> Tensor:
    """y [M, N] of codes int8 a [M, K] and b [N, K]: acc = sum((a - zero_a) * b).

    Scales are float32: scale_a [] or [M, 1] (or [M]), scale_b [] or [N, 1]; zero_a is int32 like scale_a, from -128 to
    127: tokens with another zero point are NaN. Of groups of K, a multiple of 32 values each, scale_a and zero_a are
    [M, groups] and scale_b [N, groups], or as before. `sums` are `row_sums(b)`, which are worked out if zero_a is given
    without. `after` is what follows the sums, see `After`.
    Raises UsageError for what does not fit.
    """
    a, b, size = factors(a, b, (torch.int8,))
    end = epilogue(size, a.device, after)
    y: Tensor = end.y.data
    if (count := groups_of(size.k, scale_a=scale_a, scale_b=scale_b, zero_a=zero_a)) > 1:
        zero = None if zero_a is None else per_group("zero_a", zero_a, size.m, count, torch.int32, a.device)
        of_a = per_group("scale_a", scale_a, size.m, count, torch.float32, a.device)
        of_b = per_group("scale_b", scale_b, size.n, count, torch.float32, a.device)
        if y.numel():
            _int8_groups(a, b, size, GroupFactors(of_a, of_b, zero, count, size.k // count), end, after)
        return y
    if zero_a is not None:
        sums = row_sums(b) if sums is None else like("sums", sums, (size.n,), torch.int32, a.device)
        zero_a = one_or_per_row("zero_a", zero_a, size.m, torch.int32, a.device)
        end = end._replace(zero_a=zero_a, sums_b=sums)
    scale_a = one_or_per_row("scale_a", scale_a, size.m, torch.float32, a.device)
    scale_b = one_or_per_row("scale_b", scale_b, size.n, torch.float32, a.device)
    if not y.numel():
        return y
    end = end._replace(scale_a=scale_a, scale_b=scale_b)
    steps = step(scale_a), step(scale_b), step(zero_a)
    if size.k <= INT32_MAX_K // 2 and _streamed("int8", a, b, None, end, steps, after):
        return y
    how = _how("int8", size, zero_a is not None, after.get("shape"), a, b)
    s = how.shape
    split_k = _split_k(s, size, torch.int32, a.device, after.get("workspace"))
    config = GemmConfig(after.get("activation"), *steps, 1.0, how.wide, how.tma, size.k % s.block_k == 0)
    end, *constants = for_triton((end, s, config))
    options = {"num_warps": s.warps, "enable_fp_fusion": True}
    if how.hopper:
        with gluon.attempt("int8"):
            tiles = gluon.tiles(a, s.block_m, s.block_k), gluon.tiles(b, s.block_n, s.block_k)
            options |= _overlap(after)
            gluon.kernel("int8")[_grid(s, size)](*tiles, size, end, split_k, *constants, **options)
    else:
        tiles = _tiles(a, s.block_m, s.block_k, how.tma), _tiles(b, s.block_n, s.block_k, how.tma)
        strides = Strides(a.stride(0), b.stride(0))
        int8_gemm_kernel[_grid(s, size)](*tiles, strides, size, end, split_k, *constants, **options)
    return y


def _int8_groups(a: Tensor, b: Tensor, size: ProblemSize, groups: GroupFactors, end: Epilogue, after: After) -> None:
    """`int8_gemm` with scales of groups, in steps of values of one group each."""
    arch, tma = torch_device.here().arch, _tma(a, b)
    chosen = after.get("shape") or shape_of("int8_groups", *size, arch, torch_device.multiprocessors())
    depth = min(chosen.block_k, groups.width & -groups.width)
    s = replace(chosen, block_k=depth, persistent=False)
    split_k = _split_k(s, size, torch.float32, a.device, after.get("workspace"))
    end, *constants = for_triton((end, s, GemmConfig(after.get("activation"), tma=tma)))
    int8_groups_kernel[_grid(s, size)](
        _tiles(a, s.block_m, depth, tma), _tiles(b, s.block_n, depth, tma), Strides(a.stride(0), b.stride(0)), size,
        groups, end, split_k, *constants, num_warps=s.warps, enable_fp_fusion=True,
    )


def row_sums(b: Tensor) -> Tensor:
    """int32 [N]: the sum of each row of codes int8 b [N, K]."""
    out = torch.empty(len(b), dtype=torch.int32, device=b.device)
    if len(b):
        row_sums_kernel[len(b),](b, out, b.shape[1], b.stride(0), B=1024, num_warps=4, enable_fp_fusion=True)
    return out


@gluon.or_portable
def w4a8_gemm(
    a: Tensor, packed: Tensor, scale_a: Tensor, channel_scale: Tensor, group_scale: Tensor | None = None,
    **after: Unpack[After],
) -> Tensor:
    """y [M, N] of codes int8 a [M, K] and 4-bit weights [N, K] as `octavo.ops.W4A8Weight` has them.

    packed is uint8 [N, K / 2], K a multiple of 128; channel_scale float32 [N]; group_scale float16 [N, K / 128], of any
    strides (rows beside one another are read fastest). Everything else is that of `int8_gemm`.
    """
    if packed.dtype != torch.uint8 or packed.ndim != 2 or packed.shape[1] % (BLOCK // 2):
        raise UsageError(f"packed is {words(packed)} (allowed: uint8 [N, K / 2], K a multiple of {BLOCK})")
    a, packed, size = factors(a, packed.view(torch.int8), (torch.int8,), 2)
    end, groups = epilogue(size, a.device, after), None
    y: Tensor = end.y.data
    scale_a = one_or_per_row("scale_a", scale_a, size.m, torch.float32, a.device)
    channel_scale = one_or_per_row("channel_scale", channel_scale, size.n, torch.float32, a.device)
    if group_scale is not None:
        like("group_scale", group_scale, (size.n, size.k // BLOCK), torch.float16, a.device)
        groups = GroupScales(group_scale, group_scale.stride(0), group_scale.stride(1))
    if not y.numel():
        return y
    end = end._replace(scale_a=scale_a, scale_b=channel_scale)
    how = _how("w4a8" if groups is None else "w4a8_g128", size, False, after.get("shape"), a, packed)
    s = how.shape
    split_k = _split_k(s, size, torch.int32, a.device, after.get("workspace"))
    factor = 1 / 16 if groups is None else 1.0
    config = GemmConfig(
        after.get("activation"), step(scale_a), step(channel_scale), 0, factor, how.wide, how.tma
    )
    end, *constants = for_triton((end, s, config))
    options = {"num_warps": s.warps, "enable_fp_fusion": True}
    if how.hopper:
        with gluon.attempt("w4a8"):
            tiles = gluon.tiles(a, s.block_m, BLOCK), gluon.tiles(packed, s.block_n, s.block_k // 2)
            options |= _overlap(after)
            gluon.kernel("w4a8")[_grid(s, size)](*tiles, size, groups, end, split_k, *constants, **options)
    else:
        tiles = _tiles(a, s.block_m, BLOCK // 2, how.tma), _tiles(packed, s.block_n, BLOCK // 2, how.tma)
        strides, asm = Strides(a.stride(0), packed.stride(0)), torch_device.here().asm
        w4a8_gemm_kernel[_grid(s, size)](*tiles, strides, size, groups, end, split_k, *constants, ASM=asm, **options)
    return y


@gluon.or_portable
def fp8_gemm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, fast: bool = False, **after: Unpack[After]
) -> Tensor:
    """y [M, N] of float8_e4m3fn or float8_e5m2 a [M, K] and b [N, K], of one type or two, NaN excluded.

    Scales are those of `int8_gemm`, or of blocks: scale_a [M, ceil(K / 128)] and scale_b [ceil(N / 128),
    ceil(K / 128)]. `fast` leaves all sums to the tensor cores, which on compute capability 9.0 keep some 14 bits.
    Raises UsageError for what does not fit.
    """
    a, b, size = factors(a, b, tuple(FP8_TYPES.values()))
    kinds = FP8_NAMES[a.dtype], FP8_NAMES[b.dtype]
    end, blocks = epilogue(size, a.device, after), None
    y: Tensor = end.y.data
    grid = (-(-size.n // BLOCK), -(-size.k // BLOCK))
    of_blocks = scale_b.numel() not in (1, size.n) or (scale_a.ndim == 2 and scale_a.shape[1] > 1)
    if of_blocks:
        scale_a = like("scale_a", scale_a, (size.m, grid[1]), torch.float32, a.device).contiguous()
        scale_b = like("scale_b", scale_b, grid, torch.float32, a.device).contiguous()
        blocks = BlockScales(scale_a, scale_b, grid[1])
    else:
        scale_a = one_or_per_row("scale_a", scale_a, size.m, torch.float32, a.device)
        scale_b = one_or_per_row("scale_b", scale_b, size.n, torch.float32, a.device)
        end = end._replace(scale_a=scale_a, scale_b=scale_b)
    if not y.numel():
        return y
    steps = (0, 0, 0) if of_blocks else (step(scale_a), step(scale_b), 0)
    if _streamed("fp8_blocks" if of_blocks else "fp8", a, b, blocks, end, steps, after):
        return y
    scheme: Scheme = "fp8_blocks" if of_blocks else "fp8_fast" if fast else "fp8"
    how = _how(scheme, size, False, after.get("shape"), a, b)
    s = how.shape
    split_k = _split_k(s, size, torch.float32, a.device, after.get("workspace"))
    config = partial(GemmConfig, after.get("activation"), *steps, tma=how.tma, even=size.k % s.block_k == 0)
    end = for_triton(end)
    if how.hopper:
        with gluon.attempt("fp8"):
            gluon.kernel("fp8")[min(s.programs(size.m, size.n) * s.split_k, torch_device.multiprocessors()),](
                gluon.tiles(a, s.block_m, s.block_k), gluon.tiles(b, s.block_n, s.block_k), size, blocks, end, split_k,
                *for_triton((s, config())), FAST=scheme == "fp8_fast", num_warps=s.warps // FP8_GROUPS,
                enable_fp_fusion=True,
            )
        return y
    operands = fp8_operands(torch_device.here().arch, *kinds)
    if operands != "fp8":
        a, b = a.view(torch.int8), b.view(torch.int8)
    fp8 = Fp8Config(*kinds, operands, KEPT if not fast and torch_device.here().arch in SHORT_SUMS else 0)
    fp8_gemm_kernel[_grid(s, size)](
        _tiles(a, s.block_m, s.block_k, how.tma), _tiles(b, s.block_n, s.block_k, how.tma),
        Strides(a.stride(0), b.stride(0)), size, blocks, end, split_k,
        *for_triton((s, config(factor=fp8_factor(operands, *kinds)), fp8)), num_warps=s.warps, enable_fp_fusion=True,
        **_overlap(after),
    )
    return y


def fp8_operands(arch: str, *kinds: str) -> Literal["fp8", "fnuz", "f16"]:
    """What the tensor cores of an architecture take for both types of fp8; see `kernels.gemm_fp8`."""
    if arch == "gfx942":
        return "f16" if "e5m2" in kinds else "fnuz"
    native = arch.startswith(("sm_89", "sm_9", "sm_1", "gfx95", "gfx12")) or arch == "interpreter"
    return "fp8" if native else "f16"


def fp8_factor(operands: str, *kinds: str) -> float:
    """What makes good that `kernels.gemm_fp8.operand` makes numbers of both types smaller."""
    smaller = {"fp8": 1.0, "fnuz": 2.0, "f16": 256.0}[operands]
    return math.prod(smaller if kind == "e4m3" else 1.0 for kind in kinds)


@dataclass(frozen=True)
class _How:
    """Which kernel computes a product.

    shape   its tiles
    wide    split-K adds in int64
    tma     tiles are loaded by descriptors
    hopper  the kernel of Gluon for compute capability 9.0
    """

    shape: GemmShape
    wide: bool
    tma: bool
    hopper: bool


def _how(scheme: Scheme, size: ProblemSize, zero: bool, given: GemmShape | None, a: Tensor, b: Tensor) -> _How:
    """Products of integers with as much split-K as int32 sums need; those whose total does not fit are Triton's, and
    those of fp8 with few tokens."""
    arch, tma = torch_device.here().arch, _tma(a, b)
    integers = not scheme.startswith("fp8")
    wide = integers and size.k > (INT32_MAX_K // 2 if zero else INT32_MAX_K)
    hopper = arch == "sm_90" and tma and not wide and gluon.usable(cast("gluon.Name", scheme.split("_")[0]))
    shape = given or shape_of(scheme, *size, arch, torch_device.multiprocessors(), hopper)
    needed = max(-(-size.k // (INT32_MAX_K // shape.block_k * shape.block_k)), 2 if wide else 1) if integers else 1
    hopper = hopper and (integers or (shape.block_m == 128 and shape.warps == 4 * FP8_GROUPS))
    return _How(shape.with_split_k(max(shape.split_k, needed)), wide, tma, hopper)


def _streamed(
    kind: str, a: Tensor, b: Tensor, blocks: BlockScales | None, end: Epilogue, steps: tuple[int, int, int],
    after: After,
) -> bool:
    """Whether these are few tokens, which `streamk_kernel` has multiplied."""
    shape = None if after.get("shape") else streamk_shape(kind, len(a), len(b))
    if shape is None or torch_device.here().arch != "sm_90" or not streamk.is_usable(a, b):
        return False
    take = (after.get("workspace") or Workspace()).take
    with gluon.attempt("streamk"):
        grid, arguments, constants = streamk.launch_of(
            shape, a, b, blocks, end, GemmConfig(after.get("activation"), *steps), partial(take, where=a.device)
        )
        given = zip(constants, for_triton(tuple(constants.values())), strict=True)
        gluon.kernel("streamk")[grid](
            *for_triton(arguments), **dict(given), num_warps=shape.warps, enable_fp_fusion=True, **_overlap(after)
        )
    return True


def _overlap(after: After) -> dict[str, bool]:
    """Options of a kernel that say whether it may begin before the one before it ends."""
    pdl = after.get("overlaps", False) and torch_device.here().pdl
    return {"PDL": pdl} | ({"launch_pdl": True} if pdl else {})


def _split_k(
    shape: GemmShape, size: ProblemSize, dtype: torch.dtype, where: Any, workspace: Workspace | None
) -> SplitK | None:
    """Memory for partial sums and counters, if programs need it."""
    if shape.split_k == 1:
        return None
    programs = shape.programs(size.m, size.n)
    values = programs * shape.split_k * shape.block_m * shape.block_n
    return SplitK(*(workspace or Workspace()).take(values, programs * FP8_GROUPS, dtype, where))


def _grid(shape: GemmShape, size: ProblemSize) -> tuple[int]:
    programs = shape.programs(size.m, size.n) * shape.split_k
    return (min(programs, torch_device.multiprocessors()) if shape.persistent else programs,)


def _tma(*tensors: Tensor) -> bool:
    """Whether tiles can be loaded by descriptors: on compute capability 9.0 and later, rows and base at 16 bytes."""
    arch = torch_device.here().arch
    if not (arch == "interpreter" or arch.startswith(("sm_9", "sm_1"))):
        return False
    return all(x.data_ptr() % 16 == 0 and x.stride(0) % 16 == 0 and x.shape[1] > 0 for x in tensors)


def _tiles(x: Tensor, rows: int, columns: int, tma: bool) -> Any:
    return TensorDescriptor.from_tensor(x, [rows, columns]) if tma else x
