"""Products of some tokens whose weights become float16 in registers, on compute capability 9.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import multiprocessors
from octavo.backends.gpu.launch.arguments import Results, SplitK, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, parts
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import (
    HopperShape,
    MultiCtaPair,
    MultiCtaShape,
    StreamKShape,
    W4A16Shape,
)
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import MultiCtaPart, ProblemSize
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import TILE, PlaneLayout, scale_stride
from octavo.graph.protocol import Call

NAMES: dict[type, gluon.Name] = {HopperShape: "w4a16", StreamKShape: "w4a16_streamk", MultiCtaShape: "w4a16_multicta"}
MIN_STREAMK_STEPS = 4
"""Tiles of 128 values of K that a stream-K program has at least; one of several to a multiprocessor has a stage."""


def w4a16_product(
    c: Context, shape: W4A16Shape, w: QuantWeight, x: torch.Tensor | Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> list[Call]:
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
    from octavo.backends.gpu.matmul.w4a16.hopper_kernel import reorder_kernel

    size = x.numel()
    ordered = c.shared("ordered", size, torch.float16)
    return ordered.view(x.shape), c.launch(reorder_kernel, (-(-size // 2048),), x, ordered, size, B=2048)


def _multiply(
    c: Context, name: gluon.Name, shape: W4A16Shape, w: QuantWeight, x: torch.Tensor,
    y: torch.Tensor, terms: Sequence[torch.Tensor], otherwise: Callable[[], list[Call]],
) -> Call:
    (m, kp), layout = x.shape, w.layout
    tiles = -(-m // shape.block_m) * -(-w.n // shape.block_n)
    if isinstance(shape, StreamKShape | MultiCtaShape):
        resident, least = (shape.resident, shape.depth) if isinstance(shape, MultiCtaShape) else (1, MIN_STREAMK_STEPS)
        programs = max(1, min(multiprocessors() * resident, tiles * (kp // TILE) // least))
        sums = c.shared("partial sums", 2 * programs * shape.block_m * shape.block_n, torch.float32)
        splits: SplitK | None = SplitK(sums, c.counters(2 * tiles))
    else:
        programs = tiles * shape.split_k
        splits = c.split_k(tiles, shape.block_m * shape.block_n, shape.split_k)
    of_x = tile_shapes(layout, shape)[0]
    return gluon.Preferred(
        name, otherwise, c.target, (programs,), gluon.tiles(x, *of_x), *tiles_of(c, shape, w),
        tuple(map(matrix, terms)), results(c, w, y), splits, ProblemSize(m, w.n, kp), layout=layout, shape=shape,
        warps=shape.warps,
    )


def w4a16_product_pair(
    c: Context, pair: MultiCtaPair, weights: Sequence[QuantWeight], x: Activation, ys: Sequence[torch.Tensor],
    otherwise: Callable[[], list[Call]],
) -> list[Call]:
    """`w4a16_product` by two weights in one launch."""
    from octavo.backends.gpu.matmul.w4a16.streamk_multicta_kernel import w4a16_multicta_pair_kernel

    shapes = (pair.shape, pair.other_shape)
    with suppress(gluon.Unusable), gluon.attempt("w4a16_multicta"):
        tiles = [-(-w.n // s.block_n) for w, s in zip(weights, shapes, strict=True)]
        steps = -(-x.kp // (TILE * pair.shape.depth))
        programs = _shared_out(weights, [n * steps for n in tiles], multiprocessors() * pair.shape.resident)
        sizes = [2 * n * s.block_m * s.block_n for n, s in zip(programs, shapes, strict=True)]
        sums = parts(c.shared("partial sums", sum(sizes), torch.float32), sizes)
        counters = parts(c.counters(sum(tiles)), tiles)
        of_each = [
            MultiCtaPart(results(c, w, y), SplitK(*memory), ProblemSize(x.tokens, w.n, x.kp), n)
            for y, memory, w, n in zip(ys, zip(sums, counters, strict=True), weights, programs, strict=True)
        ]
        of_x = tile_shapes(weights[0].layout, pair.shape)[0]
        sources = [tiles_of(c, s, w) for w, s in zip(weights, shapes, strict=True)]
        assert x.ordered is not None
        return [gluon.Preferred(
            "w4a16_multicta", otherwise, c.target, (sum(programs),), gluon.tiles(x.ordered, *of_x), *sources[0],
            *sources[1], *of_each, kernel=w4a16_multicta_pair_kernel, pair=pair, warps=pair.shape.warps,
        )]
    return otherwise()


def _shared_out(weights: Sequence[QuantWeight], steps: Sequence[int], most: int) -> list[int]:
    """Programs of two products, `most` together, by the bits that each reads; not more than it has steps."""
    if sum(steps) <= most:
        return list(steps)
    one, other = (w.layout.bits * w.n for w in weights)
    second = min(steps[1], max(1, most * other // (one + other)))
    return [min(steps[0], most - second), second]


def tiles_of(c: Context, shape: W4A16Shape, w: QuantWeight) -> tuple[Any, Any, Any]:
    """Descriptors of tiles of codes, of their upper bits or None, and of scales."""
    rows = w.experts * w.n
    codes, upper = code_planes(w)
    _, of_codes, of_upper, of_scales = tile_shapes(w.layout, shape)
    return (
        gluon.tiles(codes.view(rows, -1), *of_codes),
        None if upper is None else gluon.tiles(upper.view(rows, -1), *of_upper),
        gluon.tiles(f16_scales(c, w), *of_scales),
    )


def code_planes(w: QuantWeight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The plane of 4 or 8 bits, and that of 2 bits or of 1, or None, as bytes."""
    planes = w.planes(torch.int8)
    codes = planes.codes8 if w.layout.planes[0] == 8 else planes.codes4
    assert codes is not None
    return codes, planes.codes1 if planes.codes2 is None else planes.codes2


def results(c: Context, w: QuantWeight, y: torch.Tensor) -> Results:
    """Where results go, and the factors of rows whose codes are floats."""
    f16_scales(c, w)
    return Results(y, y.stride(0), w.halves[1] if w.layout.folds_rows else w.parts.get("factors"))


def tile_shapes(layout: PlaneLayout, shape: W4A16Shape) -> tuple[tuple[int, int], ...]:
    """Rows and columns of what is copied at once: of x, codes of 4 or 8 bits, upper bits, and scales."""
    depth, wide = (shape.depth, TILE) if isinstance(shape, MultiCtaShape) else (1, TILE // 2)
    pairs = TILE // (2 * layout.group) * (1 + layout.has_min)
    return (
        (shape.block_m, depth * wide),
        (shape.block_n, depth * TILE * layout.planes[0] // 8),
        (shape.block_n, depth * TILE * (layout.bits - layout.planes[0]) // 8),
        (depth * pairs, shape.block_n),
    )


def f16_scales(c: Context, w: QuantWeight) -> torch.Tensor:
    """Scales of a weight's groups as `scales_kernel` makes them, or of codes that are floats `folded_scales_kernel`,
    when they are first wanted, and kept."""
    from octavo.backends.gpu.matmul.w4a16.hopper_kernel import folded_scales_kernel, scales_kernel

    if not w.halves:
        n = w.experts * w.n
        pairs, stride = w.kp // (2 * w.layout.group), scale_stride(n)
        rows = pairs * (1 + w.layout.has_min)
        made = torch.zeros((rows, stride), dtype=torch.int32, device=c.target.device)
        grid = (-(-n // 64), -(-pairs // 16))
        if not w.layout.folds_rows:
            c.launch(scales_kernel, grid, w.planes(), made, n, stride, BLOCK_N=64, PAIRS=16)()
            w.halves.append(made)
        else:
            factors = torch.empty(n, dtype=torch.float32, device=c.target.device)
            c.launch(folded_scales_kernel, grid[:1], w.planes(), made, factors, n, stride, BLOCK_N=64, PAIRS=16)()
            w.halves.extend((made, factors * w.parts["factors"].view(n) if "factors" in w.parts else factors))
    return w.halves[0]
