"""Launches of `streamk_kernel`: products of up to 128 tokens with weights of the activations' type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from octavo.backends import row_products
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import multiprocessors
from octavo.backends.gpu.launch.arguments import SplitK, matrix
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import (
    INT32_MAX_K,
    BlockScales,
    Epilogue,
    GemmConfig,
    ProblemSize,
)
from octavo.backends.gpu.matmul.w8a8.shapes import GemmShape, streamk_shape
from octavo.graph.protocol import Call

if TYPE_CHECKING:
    from octavo.backends.gpu.launch.context import Context

STREAMK_KINDS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8", torch.bfloat16: "f16", torch.float16: "f16"}
"""Types of both factors, and what `streamk_shape` calls them."""


def is_usable(*factors: torch.Tensor) -> bool:
    """Whether there is the kernel, and its copies take matrices as they lie, of K that an int32 sum holds."""
    aligned = all(t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in factors)
    filled = all(t.numel() for t in factors)
    return aligned and filled and factors[0].shape[1] <= INT32_MAX_K and gluon.usable("streamk")


def launch_of(
    shape: GemmShape, a: torch.Tensor, b: torch.Tensor, blocks: BlockScales | None, end: Epilogue, config: GemmConfig,
    memory: Callable[[int, int, torch.dtype], tuple[torch.Tensor, torch.Tensor]],
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
    """The kernel's grid, arguments and constants; `memory` gives that many partial sums and counters, of a type."""
    (m, k), n = a.shape, len(b)
    tiles, steps, slots = -(-n // shape.block_n), -(-k // shape.block_k), multiprocessors() * shape.ctas_per_sm
    programs = min(slots, tiles * steps) if shape.persistent else tiles * max(1, min(slots // tiles, steps))
    kind = torch.int32 if b.dtype == torch.int8 else torch.float32
    splits = SplitK(*memory(2 * programs * shape.block_m * shape.block_n, tiles, kind))
    of_a, of_b = gluon.tiles(a, shape.block_m, shape.block_k), gluon.tiles(b, shape.block_n, shape.block_k)
    return (programs,), (of_a, of_b, ProblemSize(m, n, k), blocks, end, splits), {"shape": shape, "config": config}


def streamk_product(
    c: Context, a: torch.Tensor, b: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor] | None, y: torch.Tensor,
    terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> list[Call]:
    """The calls for y f32 [M, N] = a [M, K] @ b [N, K].T + terms, a row and a matrix at the most; those that
    `otherwise` makes where there is no such kernel. `scales` are float32, of tokens [M] and of rows [N]."""
    shape = streamk_shape(STREAMK_KINDS[b.dtype], len(a), len(b))
    if c.target.arch != "sm_90" or shape is None or not is_usable(a, b):
        return otherwise()
    bias, residual = row_products.bias_and_residual(terms)
    of_token, of_row = scales or (None, None)
    end = Epilogue(matrix(y), of_token, of_row, bias=bias, residual=None if residual is None else matrix(residual))

    def memory(sums: int, counters: int, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return c.shared("partial sums", sums, kind), c.counters(counters)

    with suppress(gluon.Unusable), gluon.attempt("streamk"):
        grid, arguments, constants = launch_of(shape, a, b, None, end, GemmConfig(None, 1, 1), memory)
        return [gluon.Preferred("streamk", otherwise, c.target, grid, *arguments, **constants, warps=shape.warps)]
    return otherwise()
