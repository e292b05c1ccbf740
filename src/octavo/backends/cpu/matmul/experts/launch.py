"""The calls for products with the experts that each token chose: mul_mat_id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.launch.calls import (
    Weight,
    copy_rows,
    product_kernel,
    quantize_rows,
    stride,
    tiles_of,
    weight_arguments,
    x_stride,
)
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.launch.views import reshaped
from octavo.backends.cpu.matmul import amx_kernel
from octavo.backends.cpu.matmul import quantize_kernel as quantize
from octavo.backends.cpu.matmul.experts import kernel as experts
from octavo.backends.cpu.matmul.launch import takes_tiles, tile_arguments, tile_kernel, tile_parts
from octavo.backends.cpu.matmul.tasks import PRODUCT
from octavo.backends.cpu.matmul.tile_sweep import TILE_BYTES, N, panels_of_task
from octavo.backends.cpu.weights.layout import STEP
from octavo.backends.cpu.weights.pack import TiledWeight
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.jit.program import KernelCall


def product_of_experts(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    """y [T, k, N] of weights [E, N, K], x [T, K] or [T, k, K] and the experts ids [T, k]."""
    weight, x, ids = inputs
    sharing = ids.shape[1] if x.ndim == 2 else 1  # pairs of a token and an expert that share a row of x
    x = reshaped(x, ids.size // sharing, x.shape[-1])
    if ids.size <= len(weight.data):  # as few pairs as experts: most experts have at most one token
        return _one_by_one(weight, x, ids, sharing, out)
    return _Sorted(node, weight, x, ids, sharing, shared).calls(out)


def _one_by_one(weight: Weight, x: AnyArray, ids: AnyArray, sharing: int, out: AnyArray) -> list[KernelCall]:
    """A product for each (token, expert) pair; activations are quantized before, one row at a time."""
    calls, source, of_token = [], x, stride(x)
    if isinstance(weight, TiledWeight):
        of_token = x_stride(weight)
        source = np.empty(len(x) * of_token, np.uint8)
        calls.append(quantize_rows(x, source, 1))
    kernel, tiles = product_kernel(weight, 1), -(-weight.n // 16)
    product = _expert_product(weight, source, of_token, out)
    call = KernelCall(
        experts.mul_mat_id_kernel(), ids.size * tiles, (weight, source, out),
        kernel=kernel, product=product, ids=ids, sharing=sharing,
        expert_bytes=weight.data[0].nbytes, tiles=tiles,
    )
    return [*calls, call]


def _expert_product(weight: Weight, x: AnyArray, of_token: int, y: AnyArray) -> AnyArray:
    """The record of a product of expert 0 and the first token; rows of y have no gaps."""
    shape = weight_arguments(weight) | {"x_stride": of_token}
    return PRODUCT.new(
        weights=weight.data, **shape, x=x, y=y, y_stride=weight.n * 4, tiles=1,
        terms=0, term_count=0, tail=0, tail_arguments=0,
    )


class _Sorted:
    """Pairs sorted by expert, so that each expert's weights are read once for all its tokens.

    The products of a layer share the order, and gate and up also the sorted rows. The memory for these is that of the
    layer before, which is done with it.
    """

    def __init__(
        self, node: Node, weight: Weight, x: AnyArray, ids: AnyArray, sharing: int, shared: PlanMemory
    ) -> None:
        self._weight, self._x, self._ids, self._sharing, self._shared = weight, x, ids, sharing, shared
        self._x_node, self._ids_node = node.inputs[1], node.inputs[2]

    def calls(self, out: AnyArray) -> list[KernelCall]:
        weight, pairs, n_experts = self._weight, self._ids.size, len(self._weight.data)
        calls: list[KernelCall] = []
        starts, sources, places = self._order(calls)
        if takes_tiles(weight, pairs // n_experts, self._shared):
            products = self._tile_products(starts, sources, calls)
            return [*calls, copy_rows(reshaped(out, pairs, weight.n), products, places)]
        rows = self._rows(starts, sources, calls)
        products = self._shared.memory("products", (pairs, weight.n), np.float32)
        sizes = tiles_of(weight)
        tiles, tokens = -(-weight.n // 16), (*sizes, *range(1, sizes[-1]))
        kernels = [product_kernel(weight, n, pairs // n_experts // n) for n in tokens]
        product = _expert_product(weight, rows, x_stride(weight), products)
        calls.append(KernelCall(
            experts.mul_mat_sorted_kernel(sizes), n_experts * tiles, (weight, rows, products),
            kernels=tuple(kernels), product=product, starts=starts,
            expert_bytes=weight.data[0].nbytes, tiles=tiles,
        ))
        return [*calls, copy_rows(reshaped(out, pairs, weight.n), products, places)]

    def _tile_products(self, starts: AnyArray, sources: AnyArray, calls: list[KernelCall]) -> AnyArray:
        """Products by matrix tiles, in the order of `sources`; rows of x become bfloat16 without being codes before."""
        weight, shared, pairs, n_experts = self._weight, self._shared, len(sources), len(self._weight.data)
        parts, steps = tile_parts(weight), -(-weight.k // STEP)
        of_tile, chunks = steps * parts * TILE_BYTES, quantize.tasks_of(N, weight.k, N)[1]
        rows = shared.memory("rows", (pairs, weight.k), np.float32)
        tiles = shared.memory("tiles", ((pairs // N + n_experts + 1) * of_tile,), np.uint8)
        if not shared.holds(rows, self._x_node, self._ids_node, f"tiles {parts}"):
            calls.append(copy_rows(rows, self._x, sources))
            record = amx_kernel.TOKENS_BF16.new(
                out=tiles, x=rows, x_stride=stride(rows), tokens=0, k=weight.k, chunks=chunks
            )
            calls.append(KernelCall(
                experts.tokens_sorted_kernel(), n_experts * chunks, (rows, tiles),
                kernel=amx_kernel.tokens_kernel(parts), tokens=record, starts=starts,
                x_stride=stride(rows), of_tile=of_tile, chunks=chunks,
            ))
        products = shared.memory("products", (pairs, weight.n), np.float32)
        panels = min(panels_of_task(n_experts * weight.n, shared.threads), -(-weight.n // N))
        tasks = -(-weight.n // (16 * panels))
        product = amx_kernel.PRODUCT.new(
            **tile_arguments(weight, panels), x=tiles, y=products, y_stride=stride(products), tokens=0,
            terms=0, term_count=0,
        )
        calls.append(KernelCall(
            experts.tile_sorted_kernel(), n_experts * tasks, (weight, tiles, products),
            kernel=tile_kernel(weight), product=product, starts=starts,
            expert_bytes=weight.data[0].nbytes, of_tile=of_tile, tasks=tasks,
        ))
        return products

    def _order(self, calls: list[KernelCall]) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Where each expert's pairs start, their rows of x, and where each pair went."""
        ids, n_experts = self._ids, len(self._weight.data)
        made = tuple(
            self._shared.memory(f"{name} {self._sharing}", (size,), np.int32)
            for name, size in (("starts", n_experts + 1), ("sources", ids.size), ("places", ids.size))
        )
        starts, sources, places = made
        if not self._shared.holds(sources, self._ids_node):
            calls.append(KernelCall(
                experts.sort_pairs_kernel(), 1, ids=ids, pairs=ids.size, experts=n_experts, sharing=self._sharing,
                starts=starts, sources=sources, places=places,
            ))
        return starts, sources, places

    def _rows(self, starts: AnyArray, sources: AnyArray, calls: list[KernelCall]) -> AnyArray:
        """Rows of x in the order of `sources`, as the product wants them: codes or floats."""
        weight, quantized = self._weight, isinstance(self._weight, TiledWeight)
        rows = self._shared.memory("rows", (len(sources), weight.k), np.float32)
        codes = self._shared.memory("codes", (len(sources) * x_stride(weight),), np.uint8) if quantized else rows
        if not self._shared.holds(rows, self._x_node, self._ids_node, quantized):
            calls.append(copy_rows(rows, self._x, sources))
            if quantized:
                calls.append(_quantize_sorted(rows, codes, starts, x_stride(weight)))
        return codes


def _quantize_sorted(rows: AnyArray, codes: AnyArray, starts: AnyArray, codes_stride: int) -> KernelCall:
    """The codes of rows [pairs, k], each expert's in tiles of their own."""
    tile, k = quantize.TILES[0], rows.shape[1]
    kernel, chunks = quantize.quantize_kernel("values", tile), quantize.tasks_of(tile, k, tile)[1]
    record = quantize.QUANTIZE.new(
        codes=codes, tokens=0, k=k, x=rows, x_stride=stride(rows), chunks=chunks,
        other=0, other_stride=0, eps=0.0,
    )
    return KernelCall(
        experts.quantize_sorted_kernel(tile), (len(starts) - 1) * chunks, (rows, codes),
        kernel=kernel, quantize=record, starts=starts,
        x_stride=stride(rows), codes_stride=codes_stride, chunks=chunks,
    )
