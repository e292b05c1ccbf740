"""Products of some tokens whose weights become float16 in registers, on compute capability 9.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from octavo.backends.gpu import gluon
from octavo.backends.gpu.arguments import SplitK, matrix
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.device import multiprocessors
from octavo.backends.gpu.gemm_arguments import Size
from octavo.backends.gpu.layout import TILE, Layout, scale_stride
from octavo.backends.gpu.mixed_shapes import EvenShape, MixedGemmShape, MixedShape, StreamShape
from octavo.backends.gpu.values import Activation
from octavo.backends.gpu.weights import QuantWeight
from octavo.graph.protocol import Call

NAMES: dict[type, gluon.Name] = {MixedGemmShape: "mixed", StreamShape: "mixed_stream", EvenShape: "mixed_even"}
LEAST_STEPS = 4
"""Tiles of 128 values of K that a program of a stream has at least."""


def mixed_gemm(
    c: Context, shape: MixedShape, w: QuantWeight, x: torch.Tensor | Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> list[Call]:  # fmt: skip
    """The calls for y f32 [T, n] = x @ w.T + terms; x is float16 [T, kp], or an Activation that has such values in the
    kernel's order. If Triton can't compile the kernel, those that `otherwise` makes. The weight's scales become float16
    the first time."""
    name = NAMES[type(shape)]
    with suppress(gluon.Unusable), gluon.attempt(name):
        calls: list[Call] = []
        if isinstance(x, torch.Tensor):
            x, reorder = _reordered(c, x)
            calls.append(reorder)
        else:
            assert x.ordered is not None
            x = x.ordered
        return [*calls, _multiply(c, name, shape, w, x, y, terms, otherwise)]
    return otherwise()


def _reordered(c: Context, x: torch.Tensor) -> tuple[torch.Tensor, Call]:
    """Memory for x in the kernel's order, and the call that fills it."""
    from octavo.backends.gpu.kernels.gemm_mixed_hopper import reorder_kernel

    size = x.numel()
    ordered = c.shared("ordered", size, torch.float16)
    return ordered.view(x.shape), c.launch(reorder_kernel, (-(-size // 2048),), x, ordered, size, B=2048)


def _multiply(
    c: Context, name: gluon.Name, shape: MixedShape, w: QuantWeight, x: torch.Tensor,
    y: torch.Tensor, terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> Call:  # fmt: skip
    (m, kp), layout = x.shape, w.layout
    planes, widest = w.planes(torch.int8), layout.planes[0]
    codes: Any = planes.codes8 if widest == 8 else planes.codes4
    tiles = -(-m // shape.block_m) * -(-w.n // shape.block_n)
    if isinstance(shape, StreamShape | EvenShape):
        most = multiprocessors() * (shape.resident if isinstance(shape, EvenShape) else 1)
        programs = max(1, min(most, tiles * (kp // TILE) // LEAST_STEPS))
        sums = c.shared("partial sums", 2 * programs * shape.block_m * shape.block_n, torch.float32)
        splits: SplitK | None = SplitK(sums, c.counters(2 * tiles))
    else:
        programs = tiles * shape.split_k
        splits = c.split_k(tiles, shape.block_m * shape.block_n, shape.split_k)
    of_x, of_codes, of_codes2, of_scales = tile_shapes(layout, shape)
    return gluon.Preferred(
        name, otherwise, c.target, (programs,),
        gluon.tiles(x, *of_x), gluon.tiles(codes.view(w.n, -1), *of_codes),
        gluon.tiles(planes.codes2.view(w.n, -1), *of_codes2) if planes.codes2 is not None else None,
        gluon.tiles(f16_scales(c, w), *of_scales),
        tuple(map(matrix, terms)), matrix(y), splits, Size(m, w.n, kp), layout=layout, shape=shape, warps=shape.warps,
    )  # fmt: skip


def tile_shapes(layout: Layout, shape: MixedShape) -> tuple[tuple[int, int], ...]:
    """Rows and columns of what is copied at once: of x, codes of 4 or 8 bits, codes of 2 bits, and scales."""
    depth, wide = (shape.depth, TILE) if isinstance(shape, EvenShape) else (1, TILE // 2)
    pairs = TILE // (2 * layout.group) * (1 + layout.has_min)
    return (
        (shape.block_m, depth * wide),
        (shape.block_n, depth * TILE * layout.planes[0] // 8),
        (shape.block_n, depth * TILE // 4),
        (depth * pairs, shape.block_n),
    )


def f16_scales(c: Context, w: QuantWeight) -> torch.Tensor:
    """Scales of a weight's groups as `scales_kernel` makes them, when they are first wanted, and kept."""
    from octavo.backends.gpu.kernels.gemm_mixed_hopper import scales_kernel

    if not w.halves:
        n = w.experts * w.n
        pairs, stride = w.kp // (2 * w.layout.group), scale_stride(n)
        rows = pairs * (1 + w.layout.has_min)
        made = torch.zeros((rows, stride), dtype=torch.int32, device=c.target.device)
        grid = (-(-n // 64), -(-pairs // 16))
        c.launch(scales_kernel, grid, w.planes(), made, n, stride, BLOCK_N=64, PAIRS=16)()
        w.halves.append(made)
    return w.halves[0]
