"""A CPU backend that loads and computes nothing: plans are bound on it to learn which kernels they will run.

A weight is of the kind and the layout that it will be packed in, and all of its data is one byte, as is that of caches
and states. Where the scales of a tensor decide its layout, it is the smallest that the format may take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.matmul.adapters import AdapterTable
from octavo.backends.cpu.matmul.w8a8.activations import whole
from octavo.backends.cpu.matmul.w8a8.gemm import whole_vectors
from octavo.backends.cpu.matmul.w8a8.row_scales import TiledRowWeight, is_row_weight, row_kind
from octavo.backends.cpu.weights.layout import ROWS, STEP
from octavo.backends.cpu.weights.pack import TiledFloatWeight, TiledWeight, float_kind, forecast_layout, packing_of
from octavo.backends.host_memory import HostMemory
from octavo.formats import QTensor
from octavo.formats.spec import U8, AnyArray
from octavo.graph.node import DType, Graph, Node
from octavo.graph.protocol import Call
from octavo.jit.compile import Kernel
from octavo.jit.parallel_compile import compile_together
from octavo.jit.stored_code import Mark
from octavo.jit.task_driver import share_kernel


class StandInBackend(HostMemory):
    """Stands in for a `CpuBackend`; `kernels` are those of the weights loaded and the plans bound so far, in order."""

    name, chooses = "cpu", True

    def __init__(self, of: Any, mark: Mark) -> None:
        self._of, self._mark = of, mark
        self.fusions: frozenset[str] = of.fusions
        self.quantizes: frozenset[str] = of.quantizes
        self.kernels: dict[Kernel, None] = {share_kernel(): None}

    def supports(self, node: Node) -> tuple[bool, str]:
        found: tuple[bool, str] = self._of.supports(node)
        return found

    def activation(self, weight: QTensor, op: str) -> DType:
        found: DType = self._of.activation(weight, op)
        return found

    def nbytes(self, shape: tuple[int, ...], dtype: DType) -> int:
        return int(self._of.nbytes(shape, dtype))

    def view(self, memory: U8, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        return self._of.view(memory, offset, shape, dtype)

    def alias(self, node: Node, value: AnyArray, shape: tuple[int, ...]) -> Any:
        return self._of.alias(node, value, shape)

    def compile(self) -> None:
        """Compile those that are not on disk yet, on all cores at once."""
        compile_together(self.kernels, self._of.threads)
        self._mark.set()

    def load(self, tensor: QTensor) -> Any:
        shape = tensor.shape
        if len(shape) == 1:
            return np.zeros(shape, np.float32)
        experts, (n, k) = shape[0] if len(shape) == 3 else 1, shape[-2:]
        fmt, tiles = tensor.format, -(-n // ROWS)
        if is_row_weight(tensor):
            groups = _array((n, k // fmt.group), np.float16) if fmt.folds else None
            codes = _array((n, whole(k)), np.int8) if fmt.bits == 8 else _array((n, k // 2), np.uint8)
            return TiledRowWeight(row_kind(fmt), n, k, codes, groups, np.zeros(whole_vectors(n), np.float32))
        if fmt.number is not None or k % STEP:
            kind = float_kind(tensor)
            group = fmt.group if kind == "e4m3" and k > fmt.group else 0
            scale = _array((tiles, k // fmt.group, ROWS), np.float32) if kind == "e4m3" else None
            return TiledFloatWeight(kind, n, k, _array((experts, tiles, k, ROWS), np.uint8), scale, group)
        layout, table = forecast_layout(fmt)
        self.kernels[packing_of(fmt, layout).kernel] = None
        return TiledWeight(layout, n, k, _array((experts, tiles, layout.tile_bytes(k)), np.uint8), table)

    def allocate(self, nbytes: int) -> U8:
        return np.empty(nbytes, np.uint8)

    def cache(self, shape: tuple[int, ...], dtype: DType, static: Any = None) -> AnyArray:
        return _array(shape, np.uint8)

    def states(self, shape: tuple[int, ...]) -> AnyArray:
        return _array(shape, np.float32)

    def adapters(self, shape: tuple[int, ...]) -> AdapterTable:
        return AdapterTable(shape)

    def begin_plan(self, graph: Graph) -> StandInBinder:
        return StandInBinder(self._of, self.kernels)


class StandInBinder:
    """Notes the kernels of a plan's calls, none of which is made."""

    def __init__(self, of: Any, kernels: dict[Kernel, None]) -> None:
        self._of, self._kernels, self._shared = of, kernels, PlanMemory(exact=of.exact)

    def bind(self, node: Node, inputs: Sequence[Any], out: Any) -> Call:
        for call in self._of.kernel_calls(node, inputs, out, self._shared):
            self._kernels |= dict.fromkeys((call.kernel, *call.other_kernels()))
        return _nothing

    def finish(self) -> list[Call]:
        return []


def _nothing() -> None:
    return


def _array(shape: tuple[int, ...], dtype: Any) -> AnyArray:
    """An array of this shape, whose elements are all the same one in memory."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, [0] * len(shape))
