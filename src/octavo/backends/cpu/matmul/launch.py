"""The calls for the product of a weight with the rows of x."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.launch.calls import Weight, product_kernel, stride, tiles_of, weight_arguments, x_stride
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.matmul import amx_kernel
from octavo.backends.cpu.matmul import quantize_kernel as quantize
from octavo.backends.cpu.matmul.tasks import TERM
from octavo.backends.cpu.matmul.tile_sweep import TILE_BYTES, N, panels_of_task
from octavo.backends.cpu.matmul.w8a8.row_scales import TiledRowWeight, row_product
from octavo.backends.cpu.weights.layout import STEP
from octavo.backends.cpu.weights.pack import TiledWeight
from octavo.formats.spec import AnyArray
from octavo.jit import host_cpu
from octavo.jit.compile import Kernel
from octavo.jit.program import KernelCall, address


def product(
    weight: Weight | TiledRowWeight, x: Any, y: AnyArray, terms: Sequence[AnyArray], shared: PlanMemory,
    source: object = None,
) -> list[KernelCall]:
    """The calls for y [T, n] = x [T, k] @ weight.T + terms: whole tiles of tokens, and as its tail one of the rest.

    Products of a plan with the same `source`, what x is computed by, share what is made of x.
    """
    if isinstance(weight, TiledRowWeight):
        return row_product(weight, x, y, terms, shared)
    if takes_tiles(weight, len(y), shared):
        return tile_product(weight, x, y, terms, shared, source)
    first, call = len(y), None
    for n, count in reversed(quantize.tiles(len(y), tiles_of(weight))):
        first -= n * count
        call = _tile_call(weight, x, y, terms, first, n, count, call)
    return [] if call is None else [call]


def _tile_call(
    weight: Weight, x: AnyArray, y: AnyArray, terms: Sequence[AnyArray],
    first: int, n: int, tiles: int, tail: KernelCall | None,
) -> KernelCall:
    """The product for tokens `first` to `first` + n * tiles; `tail` is the call for those after."""
    shape = weight_arguments(weight)
    if not isinstance(weight, TiledWeight):
        assert x.dtype == np.float32
        shape["x_stride"] = stride(x)
    added = _records(terms, first)
    call = KernelCall(
        product_kernel(weight, n, tiles), -(-weight.n // 16), (weight, x, y, terms, tail),
        weights=weight.data, **shape,
        x=address(x) + first * shape["x_stride"], y=address(y) + first * stride(y), y_stride=stride(y), tiles=tiles,
        terms=added, term_count=len(terms),
        tail=tail or 0, tail_arguments=tail.args if tail else 0,
    )
    call.reads = address(weight.data), weight.data.nbytes // call.tasks
    return call


def _records(terms: Sequence[AnyArray], first: int) -> AnyArray:
    """`TERM` of terms from token `first` on."""
    added = np.zeros(len(terms), TERM.dtype)
    for i, term in enumerate(terms):
        of_token = stride(term) if term.ndim == 2 else 0
        added[i] = address(term) + first * of_token, of_token
    return added


MIN_TOKENS = {"bf16": 8, "e4m3": 8, "f16": 16}
BLOCKS_MIN_TOKENS = 48
"""From this number of tokens on, matrix tiles are faster: than vectors of floats, and than products of codes."""


def takes_tiles(weight: Weight, tokens: int, shared: PlanMemory) -> bool:
    """Whether matrix tiles make a weight's products, in bfloat16: where that is faster, and need not be exact."""
    if isinstance(weight, TiledWeight):
        fits, least = True, BLOCKS_MIN_TOKENS
    else:
        fits, least = weight.kind in MIN_TOKENS and weight.group % STEP == 0, MIN_TOKENS.get(weight.kind, 0)
    return fits and tokens >= least and not shared.exact and host_cpu.has_tiles()


def tile_product(
    weight: Weight, x: AnyArray, y: AnyArray, terms: Sequence[AnyArray], shared: PlanMemory, source: object
) -> list[KernelCall]:
    """The product by matrix tiles in bfloat16, for all tokens, and before it x so, unless the plan made it."""
    tiles, before = _rounded_tokens(weight, x, len(y), shared, source)
    panels = panels_of_task(weight.n, shared.threads)
    call = KernelCall(
        tile_kernel(weight), -(-weight.n // (16 * panels)), (weight, y, terms), **tile_arguments(weight, panels),
        x=tiles, y=y, y_stride=stride(y), tokens=len(y), terms=_records(terms, 0), term_count=len(terms),
    )
    return [*before, call]


def tile_kernel(weight: Weight) -> Kernel:
    """The kernel of products in bfloat16."""
    made: Kernel = (
        amx_kernel.block_product_kernel(weight.layout) if isinstance(weight, TiledWeight)
        else amx_kernel.float_product_kernel(weight.kind, weight.group)
    )
    return made


def tile_arguments(weight: Weight, panels: int) -> dict[str, Any]:
    """What `tile_kernel` is told of a weight."""
    shape = weight_arguments(weight)
    kept = {name: shape[name] for name in ("rows", "k", "table", "scales")}
    return {"weights": weight.data, "panels": panels, **kept}


def tile_parts(weight: Weight) -> int:
    """How many bfloat16 make an activation."""
    return 1 if isinstance(weight, TiledWeight) else amx_kernel.parts_of(weight.kind)


def _rounded_tokens(
    weight: Weight, x: AnyArray, tokens: int, shared: PlanMemory, source: object
) -> tuple[AnyArray, list[KernelCall]]:
    """Memory for tiles of x, float32 [T, k] or blocks of 8 bits, and the call that makes them."""
    blocks, parts = isinstance(weight, TiledWeight), tile_parts(weight)
    count, steps = -(-tokens // N), -(-weight.k // STEP)
    size = count * steps * parts * TILE_BYTES
    memory = shared.memory(("tiles", tokens), (size + 64,), np.uint8)
    tiles = memory[-memory.ctypes.data % 64 :][:size]
    if shared.holds(memory, source, parts) and source is not None:
        return tiles, []
    chunks = max(1, min(steps // quantize.CHUNK, -(-quantize.CHUNK // count)))
    call = KernelCall(
        amx_kernel.block_tokens_kernel() if blocks else amx_kernel.tokens_kernel(parts), count * chunks, (x, memory),
        out=tiles, x=x, x_stride=x_stride(weight) if blocks else stride(x), tokens=tokens, k=weight.k, chunks=chunks,
    )
    return tiles, [call]
