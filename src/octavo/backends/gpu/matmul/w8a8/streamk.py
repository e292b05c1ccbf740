"""Launches of `streamk_kernel`: products of up to 128 tokens with weights of the activations' type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from octavo.backends import row_products
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import multiprocessors
from octavo.backends.gpu.launch.arguments import SplitK, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.w8a8.gemm import INT32_MAX_K
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import Epilogue, GemmConfig, ProblemSize
from octavo.backends.gpu.matmul.w8a8.shapes import GemmShape, streamk_shape
from octavo.graph.protocol import Call

STREAMK_KINDS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8", torch.bfloat16: "f16", torch.float16: "f16"}
"""Types of both factors, and what `streamk_shape` calls them."""


def streamk_product(
    c: Context, a: torch.Tensor, b: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor] | None, y: torch.Tensor,
    terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]], shape: GemmShape | None = None,
) -> list[Call]:
    """The calls for y f32 [M, N] = a [M, K] @ b [N, K].T + terms, a row and a matrix at the most; those that
    `otherwise` makes where there is no such kernel. `scales` are float32, of tokens [M] and of rows [N]."""
    (m, k), n = a.shape, len(b)
    aligned = all(t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in (a, b))
    if c.target.arch == "sm_90" and aligned and 0 < k <= INT32_MAX_K and gluon.usable("streamk"):
        shape = shape or streamk_shape(STREAMK_KINDS[b.dtype], m, n)
    if shape is None:
        return otherwise()
    tiles = -(-n // shape.block_n)
    programs = min(multiprocessors() * shape.ctas_per_sm or tiles, tiles * -(-k // shape.block_k))
    kind = torch.int32 if b.dtype == torch.int8 else torch.float32
    sums = c.shared("partial sums", 2 * programs * shape.block_m * shape.block_n, kind)
    bias, residual = row_products.bias_and_residual(terms)
    of_token, of_row = scales or (None, None)
    end = Epilogue(matrix(y), of_token, of_row, bias=bias, residual=None if residual is None else matrix(residual))
    with suppress(gluon.Unusable), gluon.attempt("streamk"):
        return [gluon.Preferred(
            "streamk", otherwise, c.target, (programs,), gluon.tiles(a, shape.block_m, shape.block_k),
            gluon.tiles(b, shape.block_n, shape.block_k), ProblemSize(m, n, k),
            end, SplitK(sums, c.counters(tiles)), shape=shape, config=GemmConfig(None, 1, 1), warps=shape.warps,
        )]
    return otherwise()
