"""Products with experts: which kernel for how many pairs of a token and an expert."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from octavo.backends.gpu.attention.attention_tiles import exact_products
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import multiprocessors
from octavo.backends.gpu.launch.arguments import Matrix, Results, Source, SplitK, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import q8_1, q8_1_bytes
from octavo.backends.gpu.launch.sizes import QUANTIZE_BLOCK, block_of, warps_of
from octavo.backends.gpu.matmul import activations, dispatch
from octavo.backends.gpu.matmul.experts import kernel as experts
from octavo.backends.gpu.matmul.experts import mma_kernel as mma
from octavo.backends.gpu.matmul.experts.expert_shapes import (
    LISTED_BEYOND,
    ExpertsGroupedShape,
    ExpertsHopperShape,
    ExpertsMmaShape,
    ExpertsShape,
)
from octavo.backends.gpu.matmul.w4a16.launch import code_planes, f16_scales, results, tile_shapes, tiles_of
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.backends.gpu.weights.layout import TILE
from octavo.graph.protocol import Call

MOST_READS: dict[type, float] = {
    ExpertsShape: 1.75, ExpertsMmaShape: 1.5, ExpertsHopperShape: 1.5, ExpertsGroupedShape: 1.2,
}
"""Times that an expert in use may be read on average, by matvecs, before kernels of a shape take less time."""
SORT_BLOCK = 1024
FEW_SLOTS = 512
"""Slots for which there is memory at least, then four times as many, and so on: kernels are compiled for each."""
FLOAT_BLOCK = 1024
MANY_PAIRS, GATHERED = 1024, 4
"""Of more pairs, a program gathers some: 8,192 programs take longer to begin than to copy."""
GATED_ROWS = 128
"""Of a tile, gate's and up's: in halves of 64 both are in one thread."""


def sorts(n_pairs: int, n_experts: int, most_reads: float = MOST_READS[ExpertsShape]) -> bool:
    """Whether that many pairs are to be sorted, so that an expert's weights are read for all of its pairs together."""
    in_use = n_experts * (1 - (1 - 1 / n_experts) ** n_pairs)
    return n_pairs > most_reads * in_use


def product(
    c: Context, w: QuantWeight | FloatWeight, rows: Rows, ids: torch.Tensor, out: torch.Tensor, sharing: int
) -> list[Call] | None:
    """The calls for out f32 [T, used, n] of pairs that are sorted; None where each is better multiplied by itself.

    Row i = (token, choice) is expert ids[i] times row i // sharing of `rows`.
    """
    n_pairs = ids.numel()
    if isinstance(w, FloatWeight):
        return float_product(c, w, rows, ids, out, sharing) if sorts(n_pairs, w.experts) else None
    shape = sorted_shape(c, w, n_pairs)
    return product_in(c, shape, w, rows, ids, out, sharing) if shape else None


def sorted_shape(c: Context, w: QuantWeight, n_pairs: int) -> dispatch.ExpertShape | None:
    """The shape of a product of pairs that are sorted; None where each is better multiplied by itself."""
    shape = dispatch.experts(w.layout, w.n, w.kp, n_pairs / w.experts, c.target.arch)
    return shape if sorts(n_pairs, w.experts, MOST_READS[type(shape)]) else None


@dataclass(frozen=True, eq=False)
class Rows:
    """Activations of products with experts.

    x       what they are made of, to tell them from others
    source  float32 rows, and what is made of them: `kind`
    count   of rows
    """

    x: torch.Tensor
    source: Source
    kind: Any
    count: int


@dataclass(frozen=True, eq=False)
class BoundProduct:
    """A product by `weight` with its calls; the others are what `product` takes."""

    weight: QuantWeight
    rows: Rows
    ids: torch.Tensor
    out: torch.Tensor
    sharing: int
    calls: list[Call]


def product_in(
    c: Context, shape: dispatch.ExpertShape, w: QuantWeight, rows: Rows, ids: torch.Tensor, out: torch.Tensor,
    sharing: int,
) -> list[Call]:
    """The calls of `product` in a shape of the caller's choice.

    Pairs are sorted, and rows rounded, by the first product of a plan that has them; others find both."""
    if isinstance(shape, ExpertsMmaShape):
        return _by_mma(c, shape, w, rows, ids, out, sharing)
    if isinstance(shape, ExpertsGroupedShape):
        with suppress(gluon.Unusable), gluon.attempt("experts_grouped"):
            return _grouped(c, shape, w, rows, ids, out, sharing)
    if isinstance(shape, ExpertsHopperShape):
        with suppress(gluon.Unusable), gluon.attempt("experts"):
            return _by_hopper(c, shape, w, rows, ids, out, sharing)
    return _portable(c, w, rows, ids, out, sharing)


def _by_mma(
    c: Context, shape: ExpertsMmaShape, w: QuantWeight, rows: Rows, ids: torch.Tensor, out: torch.Tensor, sharing: int
) -> list[Call]:
    """As `product_in`, of few pairs: each has a slot, at which what it multiplies is quantized."""
    n_pairs, size = ids.numel(), shape.block_m
    n_tiles = n_pairs // size + min(w.experts, n_pairs)
    slots = c.shared(f"slots of {size}", n_pairs, torch.int32)
    pairs = c.shared(f"pairs of {size}", n_tiles * size, torch.int32)
    tiles = c.shared(f"experts of {size}", n_tiles, torch.int32)
    calls = list[Call]()
    slotted = c.holds(f"slots of {size}", ids)
    if not slotted:
        calls.append(c.launch(
            mma.slot_kernel, (w.experts,), ids, slots, pairs, tiles, n_pairs, n_tiles, SLOTS=size,
            EXPERTS=1 << (w.experts - 1).bit_length(), B=min(SORT_BLOCK, max(64, 1 << (n_pairs - 1).bit_length())),
        ))
    stride = FEW_SLOTS
    while stride < n_tiles * size:
        stride *= 4
    memory = c.shared(f"codes of {size}", q8_1_bytes(n_tiles * size, w.kp, stride), torch.uint8)
    x = q8_1(memory, n_tiles * size, w.kp, stride)
    if not c.holds(f"codes of {size}", rows.x) or not slotted:
        block = block_of(w.kp, QUANTIZE_BLOCK)
        calls.append(c.launch(
            mma.quantize_slots_kernel, (n_pairs, -(-w.kp // block)), rows.source, slots, x, sharing, w.k, w.kp,
            KIND=rows.kind, B=block, warps=warps_of(block),
        ))
    calls.append(c.launch(
        mma.experts_mma_kernel, (-(-w.n // (16 * shape.row_tiles)), n_tiles), w.planes(), x, pairs, tiles,
        matrix(out.view(n_pairs, w.n)), w.n, shape=shape, STRIDE=stride, ASM=c.target.asm, warps=shape.warps,
    ))
    return calls


def _portable(c: Context, w: QuantWeight, rows: Rows, ids: torch.Tensor, out: torch.Tensor, sharing: int) -> list[Call]:
    n_pairs = ids.numel()
    calls, order, counts = _sorted(c, w, ids), *_order(c, w, n_pairs)
    halves = c.shared("expert inputs", rows.count * w.kp, torch.float16)
    if not c.holds("halved", rows.x):
        grid = (rows.count, -(-w.kp // FLOAT_BLOCK))
        calls.append(c.launch(activations.float_kernel, grid, rows.source, Matrix(halves, w.kp), None, w.k, w.kp,
                              KIND=rows.kind, B=FLOAT_BLOCK, PLANES=1))
    shape = dispatch.portable_experts(w.layout, w.n, w.kp, n_pairs / w.experts, c.target.arch)
    most = -(-n_pairs // shape.block_m) + min(w.experts, n_pairs)  # an expert's last tile may be short
    y = out.view(n_pairs, w.n)
    calls.append(c.launch(
        experts.experts_kernel, (-(-w.n // shape.block_n), most), w.planes(), halves, order, counts, matrix(y), w.n,
        w.experts, sharing, EXPERTS=1 << (w.experts - 1).bit_length(), shape=shape, ASM=c.target.asm,
        warps=shape.warps, stages=shape.stages,
    ))
    return calls


def float_product(
    c: Context, w: FloatWeight, rows: Rows, ids: torch.Tensor, out: torch.Tensor, sharing: int
) -> list[Call]:
    """As `product`, with weights that are floats: rows are rounded to their type."""
    n_pairs = ids.numel()
    dtype = torch.float32 if c.target.arch == "interpreter" else w.data.dtype  # which multiplies no bfloat16
    calls, order, counts = _sorted(c, w, ids), *_order(c, w, n_pairs)
    x = c.shared("expert inputs", rows.count * w.k, dtype)
    if not c.holds(f"expert inputs {dtype}", rows.x):
        grid = (rows.count, -(-w.k // FLOAT_BLOCK))
        calls.append(c.launch(activations.float_kernel, grid, rows.source, Matrix(x, w.k), None, w.k, w.k,
                              KIND=rows.kind, B=FLOAT_BLOCK, PLANES=1))
    shape = dispatch.portable_experts(None, w.n, w.k, n_pairs / w.experts, c.target.arch)
    most = -(-n_pairs // shape.block_m) + min(w.experts, n_pairs)  # an expert's last tile may be short
    calls.append(c.launch(
        experts.float_experts_kernel, (-(-w.n // shape.block_n), most), w.data, Matrix(x, w.k), order, counts,
        matrix(out.view(n_pairs, w.n)), w.n, w.experts, sharing, EXPERTS=1 << (w.experts - 1).bit_length(),
        shape=shape, PRECISION=exact_products(c.target.arch) if dtype == torch.float32 else None, warps=shape.warps,
        stages=shape.stages,
    ))
    return calls


def _order(c: Context, w: QuantWeight | FloatWeight, n_pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for what `sort_kernel` finds: the order of pairs, and how many an expert has."""
    return c.shared("order", n_pairs, torch.int32), c.shared("counts", w.experts, torch.int32)


def _sorted(
    c: Context, w: QuantWeight | FloatWeight, ids: torch.Tensor, tiles: torch.Tensor | None = None, most: int = 0,
    *, listed: bool = False,
) -> list[Call]:
    """The call that sorts pairs, unless a product before has left these; also in `tiles` of up to `most`, which may be
    `listed` without gaps."""
    held = c.holds("sorted", ids)
    if tiles is None and held:
        return []
    if tiles is not None and c.holds(f"{'list' if listed else 'tiles'} of {most}", ids) and held:
        return []
    order, counts = _order(c, w, ids.numel())
    block, warps = min(SORT_BLOCK, max(64, 1 << (ids.numel() - 1).bit_length())), 4
    if ids.numel() > 4 * SORT_BLOCK:
        block, warps = 4 * SORT_BLOCK, 16
    return [c.launch(experts.sort_kernel, (w.experts,), ids, order, counts, tiles, ids.numel(), BLOCK_M=most,
                     B=block, EXPERTS=1 << (w.experts - 1).bit_length() if listed else 0, warps=warps)]


def _gathered(
    c: Context, w: QuantWeight, rows: Rows, ids: torch.Tensor, sharing: int, *, again: bool = False
) -> tuple[torch.Tensor, list[Call]]:
    """Float16 rows of sorted pairs, and the call that makes them unless a product before has left them, or `again`."""
    n_pairs = ids.numel()
    x = c.shared("sorted inputs", n_pairs * w.kp, torch.float16)
    held = c.holds("gathered for", ids)
    if c.holds("gathered", rows.x) and held and not again:
        return x.view(n_pairs, w.kp), []
    return x.view(n_pairs, w.kp), [_gather(c, w, rows, _order(c, w, n_pairs)[0], x, sharing)]


def _gather(
    c: Context, w: QuantWeight, rows: Rows, order: torch.Tensor, x: torch.Tensor, sharing: int
) -> Call:
    """The call that fills x with rows in the order of their pairs."""
    n_pairs, block = order.numel(), min(FLOAT_BLOCK, 1 << (w.kp - 1).bit_length())
    together = GATHERED if n_pairs > MANY_PAIRS else 1
    return c.launch(
        experts.gather_kernel, (-(-n_pairs // together), -(-w.kp // block)), rows.source, order, x, n_pairs, sharing,
        w.k, w.kp, KIND=rows.kind, ROWS=together, B=block,
    )


def _by_hopper(
    c: Context, shape: ExpertsHopperShape, w: QuantWeight, rows: Rows, ids: torch.Tensor, out: torch.Tensor,
    sharing: int,
) -> list[Call]:
    """As `product_in`, by `experts_hopper`: rows are sorted, too. Scales become float16 the first time."""
    calls = _sorted(c, w, ids, _tiles_of_pairs(c, shape, w, ids), shape.block_m)
    x, gathers = _gathered(c, w, rows, ids, sharing)
    return [*calls, *gathers, _hopper_call(
        c, shape, w, x, ids, results(c, w, out.view(-1, w.n)),
        lambda: _portable(c.begin_plan(), w, rows, ids, out, sharing),
    )]


def _tiles_of_pairs(c: Context, shape: ExpertsHopperShape, w: QuantWeight, ids: torch.Tensor) -> torch.Tensor:
    """Memory for tiles, some of which are empty."""
    n_tiles = ids.numel() // shape.block_m + w.experts
    return c.shared(f"tiles of {shape.block_m}", 3 * n_tiles, torch.int32)


def _hopper_call(
    c: Context, shape: ExpertsHopperShape, w: QuantWeight, x: torch.Tensor, ids: torch.Tensor, y: Results,
    otherwise: Callable[[], list[Call]], gate: Matrix | None = None, rows: Rows | None = None,
) -> Launch:
    """The product of sorted rows x by tiles, its results in `y`, or in `gate` what `rows` makes of them."""
    n, tiles = w.n // (1 + shape.gated), _tiles_of_pairs(c, shape, w, ids)
    sources = _gated_tiles(c, shape, w) if shape.gated else tiles_of(c, shape, w)
    return gluon.Preferred(
        "experts", otherwise, c.target, (-(-n // shape.rows) * (tiles.numel() // 3),),
        gluon.tiles(x, *tile_shapes(w.layout, shape)[0]), *sources, _order(c, w, ids.numel())[0], tiles, y, gate,
        *_gating(rows), n, w.kp, layout=w.layout, shape=shape, KIND=rows and rows.kind, warps=shape.warps,
    )


def _grouped(
    c: Context, shape: ExpertsGroupedShape, w: QuantWeight, rows: Rows, ids: torch.Tensor, out: torch.Tensor,
    sharing: int,
) -> list[Call]:
    """As `product_in`, by `experts_grouped`. Scales become float16 the first time."""
    calls = _sorted(c, w, ids, _list_of(c, shape, w, ids), shape.block_m, listed=True)
    x, gathers = _gathered(c, w, rows, ids, sharing, again=bool(calls))  # the kernel reads the list without a wait
    return [*calls, *gathers, _grouped_call(
        c, shape, w, x, ids, results(c, w, out.view(-1, w.n)),
        lambda: _portable(c.begin_plan(), w, rows, ids, out, sharing),
    )]


def _list_of(c: Context, shape: ExpertsGroupedShape, w: QuantWeight, ids: torch.Tensor) -> torch.Tensor:
    """Memory for the list of tiles."""
    return c.shared(f"list of {shape.block_m}", 3 * (1 + _most_tiles(shape, w, ids) + LISTED_BEYOND), torch.int32)


def _most_tiles(shape: ExpertsGroupedShape, w: QuantWeight, ids: torch.Tensor) -> int:
    return ids.numel() // shape.block_m + min(w.experts, ids.numel())


def _grouped_call(
    c: Context, shape: ExpertsGroupedShape, w: QuantWeight, x: torch.Tensor, ids: torch.Tensor, y: Results,
    otherwise: Callable[[], list[Call]], gate: Matrix | None = None, rows: Rows | None = None,
) -> Launch:
    """The product of sorted rows x by listed tiles, its results in `y`, or in `gate` what `rows` makes of them."""
    n, most = w.n // (1 + shape.gated), _most_tiles(shape, w, ids)
    items, steps = most * -(-n // shape.rows), -(-w.kp // (TILE * shape.depth))
    programs = min(multiprocessors() * shape.resident, items * steps)
    sums = c.shared("partial sums", 2 * programs * shape.block_m * shape.block_n, torch.float32)
    order, _ = _order(c, w, ids.numel())
    sources = _gated_tiles(c, shape, w) if shape.gated else tiles_of(c, shape, w)
    return gluon.Preferred(
        "experts_grouped", otherwise, c.target, (programs,), gluon.tiles(x, *tile_shapes(w.layout, shape)[0]), *sources,
        order, _list_of(c, shape, w, ids), y, gate, *_gating(rows), SplitK(sums, c.counters(items)), n, w.kp,
        layout=w.layout, shape=shape, KIND=rows and rows.kind, warps=shape.warps,
        **({"maxnreg": shape.registers} if shape.registers else {}),
    )


def _gating(rows: Rows | None) -> tuple[Any, tuple[float, ...]]:
    """Biases and numbers of what gate and up become."""
    return (None, ()) if rows is None else (rows.source.biases, rows.source.numbers)


def _gated_tiles(c: Context, shape: ExpertsGroupedShape | ExpertsHopperShape, w: QuantWeight) -> tuple[Any, Any, Any]:
    """As `tiles_of`, of tiles that have as many rows of gate as of up, [2, rows, columns]."""
    parts, n, scales = 2 * w.experts, w.n // 2, f16_scales(c, w)
    codes, upper = code_planes(w)
    _, of_codes, of_upper, of_scales = tile_shapes(w.layout, shape)
    return (
        gluon.tiles(codes.view(parts, n, -1), 2, shape.rows, of_codes[1]),
        None if upper is None else gluon.tiles(upper.view(parts, n, -1), 2, shape.rows, of_upper[1]),
        gluon.tiles(scales.view(len(scales), parts, n), of_scales[0], 2, shape.rows),
    )


def gated_products(
    c: Context, one: BoundProduct, other: BoundProduct
) -> tuple[list[Call], list[Call]] | None:
    """The calls of a product by gate and up and of the one by what these are gated to, which is computed in the first
    one's epilogue and stays sorted; None where that can't be. The first one's results are not stored."""
    pairs, w, down = one.ids.numel(), one.weight, other.weight
    shape, then = sorted_shape(c, w, pairs), sorted_shape(c, down, pairs)
    gates, sorted_rows = ExpertsGroupedShape | ExpertsHopperShape, len(other.calls) == 2
    if not isinstance(shape, gates) or not isinstance(then, gates) or not sorted_rows:
        return None
    if shape.block_n != GATED_ROWS or w.n % 8:
        return None
    shape = replace(shape, gated=True)
    memory = c.shared(f"gated inputs of {down.k}", pairs * down.kp, torch.float16).view(pairs, down.kp)
    y, results_of_gate = results(c, down, other.out.view(-1, down.n)), results(c, w, one.out.view(-1, w.n))

    def products() -> list[Call]:
        return _portable(c.begin_plan(), w, one.rows, one.ids, one.out, one.sharing)

    def first() -> list[Call]:
        return [*products(), _gather(c, down, other.rows, _order(c, w, pairs)[0], memory, 1)]

    def second() -> list[Call]:
        return [*products(), *_portable(c.begin_plan(), down, other.rows, one.ids, other.out, 1)]

    def call(shape: ExpertsGroupedShape | ExpertsHopperShape, *more: Any) -> Launch:
        if isinstance(shape, ExpertsGroupedShape):
            return _grouped_call(c, shape, *more)
        return _hopper_call(c, shape, *more)

    with suppress(gluon.Unusable), gluon.attempt("experts_grouped"):
        x = c.shared("sorted inputs", pairs * w.kp, torch.float16).view(pairs, w.kp)
        made = call(shape, w, x, one.ids, results_of_gate, first, Matrix(memory, down.kp), other.rows)
        return [*one.calls[:-1], made], [call(then, down, memory, one.ids, y, second)]
    return None
