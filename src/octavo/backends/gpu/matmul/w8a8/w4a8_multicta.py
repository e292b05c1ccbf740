"""Products of a few tokens of 8 bits with 4-bit weights on compute capability 9.0, several programs to a
multiprocessor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from octavo.backends import row_products
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import multiprocessors
from octavo.backends.gpu.launch.arguments import Constant, SplitK, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import TokenCodes
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import INT32_MAX_K, Epilogue, GemmConfig, ProblemSize, step
from octavo.backends.gpu.weights.row_scales import RowWeight
from octavo.graph.protocol import Call

STEP = 256
"""Values of K that are loaded at once."""
ALIGNMENT = 16
"""Bytes that rows of what is copied begin at multiples of."""


@dataclass(frozen=True)
class W4A8MultiCtaShape(Constant):
    """A program of `w4a8_multicta_kernel`.

    block_m   tokens, all that there are
    block_n   rows of weights of a tile
    stages    of loads
    resident  programs to a multiprocessor
    """

    block_m: int
    block_n: int
    stages: int
    resident: int

    @property
    def warps(self) -> int:
        return 4


SHAPES = (
    W4A8MultiCtaShape(8, 64, 4, 4),
    W4A8MultiCtaShape(16, 64, 3, 4),
    W4A8MultiCtaShape(32, 128, 3, 2),
)
"""For up to `block_m` tokens."""


def multicta_shape(w: RowWeight, tokens: int, arch: str) -> W4A8MultiCtaShape | None:
    """The shape for some tokens; None for more, and for weights that are not copied or whose int32 sums may be too
    large."""
    copied = w.codes.data_ptr() % ALIGNMENT == 0
    if w.groups is not None:
        scales = w.groups.t()
        copied &= scales.data_ptr() % ALIGNMENT == 0 and scales.stride(0) * 2 % ALIGNMENT == 0
    usable = arch == "sm_90" and w.codes.dtype == torch.uint8 and copied and w.k <= INT32_MAX_K
    if not usable or not gluon.usable("w4a8_multicta"):
        return None
    return next((shape for shape in SHAPES if tokens <= shape.block_m), None)


def multicta_product(
    c: Context, shape: W4A8MultiCtaShape, w: RowWeight, x: TokenCodes, y: torch.Tensor, terms: Sequence[torch.Tensor],
    otherwise: Callable[[], list[Call]],
) -> list[Call]:
    """The call for y [T, n] = x [T, k] @ w.T + terms; those that `otherwise` makes if Triton can't compile it."""
    bias, residual = row_products.bias_and_residual(terms)
    size = ProblemSize(x.tokens, w.n, w.k)
    tiles, steps = -(-w.n // shape.block_n), -(-w.k // STEP)
    programs = min(multiprocessors() * shape.resident, tiles * steps)
    sums = c.shared("partial sums", 2 * programs * shape.block_m * shape.block_n, torch.float32)
    splits = SplitK(sums if w.groups is not None else sums.view(torch.int32), c.counters(tiles))
    end = Epilogue(matrix(y), x.scales, w.scale, bias=bias, residual=None if residual is None else matrix(residual))
    config = GemmConfig(None, step(x.scales), step(w.scale), factor=1 / 16)
    with suppress(gluon.Unusable), gluon.attempt("w4a8_multicta"):
        scales = None if w.groups is None else gluon.tiles(w.groups.t(), 2, shape.block_n, plain=True)
        return [gluon.Preferred(
            "w4a8_multicta", otherwise, c.target, (programs,), gluon.tiles(x.codes, shape.block_m, STEP),
            gluon.tiles(w.codes.view(torch.int8), shape.block_n, STEP // 2), scales, end, splits, size, shape=shape,
            config=config, warps=shape.warps,
        )]
    return otherwise()
