"""Products of a few tokens of 8 bits with 4-bit weights by int8 `mma.sync`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.backends.gpu.launch.arguments import Constant, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import TokenCodes
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import INT32_MAX_K
from octavo.backends.gpu.matmul.w8a8.w4a8_mma_kernel import w4a8_mma_kernel
from octavo.backends.gpu.weights.row_scales import RowWeight


@dataclass(frozen=True)
class W4A8MmaShape(Constant):
    """What `w4a8_mma_kernel` is compiled for.

    k            values of a row
    row_tiles    tiles of 16 rows of weights
    token_tiles  tiles of 8 tokens
    warps        each takes a part of K
    """

    k: int
    row_tiles: int
    token_tiles: int
    warps: int


FEW_ROWS, MOST_ROWS, MOST_TOKENS = 4096, 8192, 16
"""Rows of weights of which programs of 16 warps are few enough, and up to which the kernel is used: 28,672 x 4096 took
19.3 and 22.1 us with 8 and 16 tokens on an H200, 18.5 and 19.9 by `w4a8_multicta`."""


def mma_shape(w: RowWeight, tokens: int, arch: str) -> W4A8MmaShape | None:
    """The shape for some tokens; None for more, for more rows or values than it takes, for scales of groups, and where
    there is no `mma.sync`."""
    taken = w.codes.dtype == torch.uint8 and w.groups is None and w.n <= MOST_ROWS and w.k <= INT32_MAX_K
    if not taken or not 0 < tokens <= MOST_TOKENS or arch.startswith("gfx"):
        return None
    return W4A8MmaShape(w.k, 1, 1 if tokens <= 8 else 2, 2 if arch == "interpreter" else 16 if w.n <= FEW_ROWS else 8)


def mma_product(
    c: Context, shape: W4A8MmaShape, w: RowWeight, x: TokenCodes, y: torch.Tensor, terms: Sequence[torch.Tensor]
) -> Launch:
    """The call for y [T, n] = x [T, k] @ w.T + terms, of weights without groups."""
    return c.launch(
        w4a8_mma_kernel, (-(-w.n // (16 * shape.row_tiles)),), w.codes.view(torch.int32), w.scale,
        x.bytes.view(torch.int32), x.scales, tuple(map(matrix, terms)), matrix(y), w.n, x.tokens, shape=shape,
        ASM=c.target.asm, warps=shape.warps,
    )
