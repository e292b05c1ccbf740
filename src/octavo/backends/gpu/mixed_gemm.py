"""Products with many tokens whose weights become float16 in registers, on compute capability 9.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from octavo.backends.gpu import gluon
from octavo.backends.gpu.arguments import F16Scales, matrix
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.dispatch import MixedGemmShape
from octavo.backends.gpu.gemm_arguments import Size
from octavo.backends.gpu.layout import TILE
from octavo.backends.gpu.values import Activation
from octavo.backends.gpu.weights import QuantWeight
from octavo.graph.protocol import Call


def mixed_gemm(
    c: Context, shape: MixedGemmShape, w: QuantWeight, x: torch.Tensor | Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> list[Call]:  # fmt: skip
    """The calls for y f32 [T, n] = x @ w.T + terms, two at the most; x is float16 [T, kp], or q8_1. If Triton can't
    compile the kernel, those that `otherwise` makes. The weight's scales become float16 the first time."""
    with suppress(gluon.Unusable), gluon.attempt("mixed"):
        return _mixed_gemm(c, shape, w, x, y, terms, otherwise)
    return otherwise()


def _mixed_gemm(
    c: Context, shape: MixedGemmShape, w: QuantWeight, x: torch.Tensor | Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> list[Call]:  # fmt: skip
    from octavo.backends.gpu.kernels import gemm_mixed_hopper as kernels

    m, kp, layout = len(y), w.kp, w.layout
    ordered = c.shared("ordered", m * kp, torch.float16)
    grid = (-(-m * kp // 2048),)
    if isinstance(x, torch.Tensor):
        reorder = c.launch(kernels.reorder_kernel, grid, x, ordered, m * kp, B=2048)
    else:
        quantized = x.q8_1
        reorder = c.launch(
            kernels.reorder_codes_kernel, grid, quantized.codes, quantized.scale, ordered, m * kp, x.tp, kp=kp, B=2048
        )
    planes, groups = w.planes(torch.int8), f16_scales(c, w)
    widest = layout.planes[0]
    codes: Any = planes.codes8 if widest == 8 else planes.codes4
    tiles = -(-m // shape.block_m) * -(-w.n // shape.block_n)
    multiply = gluon.Preferred(
        "mixed", otherwise, c.target, (tiles * shape.split_k,),
        gluon.tiles(ordered.view(m, kp), shape.block_m, TILE // 2),
        gluon.tiles(codes.view(w.n, -1), shape.block_n, TILE * widest // 8),
        gluon.tiles(planes.codes2.view(w.n, -1), shape.block_n, TILE // 4) if planes.codes2 is not None else None,
        groups, tuple(map(matrix, terms)), matrix(y), c.split_k(tiles, shape.block_m * shape.block_n, shape.split_k),
        Size(m, w.n, kp), layout=layout, shape=shape, warps=shape.warps,
    )  # fmt: skip
    return [reorder, multiply]


def f16_scales(c: Context, w: QuantWeight) -> F16Scales:
    """Scales of a weight's groups for the kernel, made when they are first wanted, and kept."""
    from octavo.backends.gpu.kernels.gemm_mixed_hopper import scales_kernel

    if not w.halves:
        shape, pairs = (w.kp // w.layout.group, w.n), w.kp // (2 * w.layout.group)
        scale, minimum = (torch.empty(shape, dtype=torch.int32, device=c.target.device) for _ in range(2))
        made = F16Scales(scale, minimum if w.layout.has_min else None)
        grid = (-(-w.n // 64), -(-pairs // 16))
        c.launch(scales_kernel, grid, w.planes(), made, w.n, BLOCK_N=64, PAIRS=16)()
        w.halves.append(made)
    return w.halves[0]
