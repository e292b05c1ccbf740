"""Adapters that tokens choose: their factors as `lora_kernel` reads them, and its calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.cpu.launch.calls import copy_rows, stride
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.matmul.lora_kernel import (
    BLOCKS,
    CHUNK,
    FACTORS,
    KINDS,
    lora_down_kernel,
    lora_up_kernel,
)
from octavo.backends.cpu.weights.layout import ROWS
from octavo.backends.cpu.weights.pack import float_kind
from octavo.formats import QTensor
from octavo.formats.spec import AnyArray
from octavo.graph.factors import LowRank
from octavo.jit.program import KernelCall, address

DTYPES = {"f32": "<f4", "f16": "<u2", "bf16": "<u2"}


class AdapterTable:
    """Factors of up to S adapters for products [N, K] of one activation; what nobody has put takes no memory."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.slots, self.rank, self.k, *sizes = shape
        self.sizes = np.array(sizes, np.int64)
        self.factors = np.zeros((self.slots, len(sizes)), FACTORS.dtype)
        self._kept: dict[int, list[AnyArray]] = {}

    def put(self, slot: int, pairs: Sequence[LowRank | None]) -> None:
        kept: list[AnyArray] = []
        for part, pair in enumerate(pairs):
            if pair is None:
                self.factors[slot, part] = 0
                continue
            a, b = _tiles(pair.a), _tiles(pair.b)
            kinds = (KINDS.index(float_kind(factor)) for factor in (pair.a, pair.b))
            self.factors[slot, part] = address(a), address(b), *kinds, pair.a.shape[0]
            kept += [a, b]
        self._kept[slot] = kept


def _tiles(tensor: QTensor) -> AnyArray:
    """A matrix [n, k] of floats as [n / 16, k, 16], the last rows zeros."""
    n, k = tensor.shape
    values = np.ascontiguousarray(tensor.data).view(DTYPES[float_kind(tensor)]).reshape(n, k)
    padded = np.zeros((-(-n // ROWS) * ROWS, k), values.dtype)
    padded[:n] = values
    return np.ascontiguousarray(padded.reshape(-1, ROWS, k).transpose(0, 2, 1))


def lora_calls(
    table: AdapterTable, x: AnyArray, rows: AnyArray, starts: AnyArray, y: AnyArray, out: AnyArray, part: int | None,
    shared: PlanMemory,
) -> list[KernelCall]:
    """The calls for out [T, N] = y + B A x; y may be `out`."""
    tokens, tiles = len(x), -(-table.rank // ROWS)
    chosen = slice(None) if part is None else slice(part, part + 1)
    sizes = np.ascontiguousarray(table.sizes[chosen])
    parts = len(sizes)
    h = shared.memory("adapters", (tokens, parts * tiles * ROWS), np.float32)
    first = 0 if part is None else part
    down, up = (
        KernelCall(
            kernel, tasks, (table,),
            x=x, x_stride=stride(x), h=h, h_stride=stride(h), y=out, y_stride=stride(out), rows=rows, starts=starts,
            slots=table.slots, factors=table.factors[:, first:], parts=parts, all_parts=table.factors.shape[1],
            tiles=tiles, k=table.k, sizes=sizes,
        )
        for kernel, tasks in (
            (lora_down_kernel(), -(-tokens // CHUNK) * table.slots * parts * tiles),
            (lora_up_kernel(), int((-(-sizes // (ROWS * BLOCKS))).sum())),
        )
    )
    same = address(out) == address(y)
    return [down, up] if same else [copy_rows(out, y, np.arange(tokens, dtype=np.int32)), down, up]
