"""Products of a few tokens of 8 bits with 4-bit weights by int8 `mma.sync`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.backends.gpu.launch.arguments import Constant, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import TokenCodes
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


MOST_TOKENS = 16
"""Of which all are multiplied with a lane's codes as soon as these are unpacked."""


def mma_shape(w: RowWeight, tokens: int, arch: str) -> W4A8MmaShape | None:
    """The shape for some tokens; None for more, and where there is no `mma.sync`."""
    if w.codes.dtype != torch.uint8 or not 0 < tokens <= MOST_TOKENS or arch.startswith("gfx"):
        return None
    tiles = 1 << (-(-tokens // 8) - 1).bit_length()
    if arch == "interpreter":
        return W4A8MmaShape(w.k, 2, tiles, 2)
    return W4A8MmaShape(w.k, 1, tiles, 8)


def mma_product(
    c: Context, shape: W4A8MmaShape, w: RowWeight, x: TokenCodes, y: torch.Tensor, terms: Sequence[torch.Tensor]
) -> Launch:
    """The call for y [T, n] = x [T, k] @ w.T + terms."""
    groups = None if w.groups is None else w.groups.t()
    return c.launch(
        w4a8_mma_kernel, (-(-w.n // (16 * shape.row_tiles)),), w.codes.view(torch.int32), w.scale, groups,
        x.bytes.view(torch.int32), x.scales, tuple(map(matrix, terms)), matrix(y), w.n, x.tokens, shape=shape,
        ASM=c.target.asm, warps=shape.warps,
    )
