"""CpuBackend: values in plain memory, a KernelCall for each node, one Program a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from octavo.backends.collectives import collective_call
from octavo.backends.cores import cores
from octavo.backends.cpu.device.large_pages import Arena, Room, zeroed
from octavo.backends.cpu.kernel_limits import problem
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.launch.thread_count import threads_for, work_of
from octavo.backends.cpu.launch.views import reshaped
from octavo.backends.host_memory import HostMemory
from octavo.formats import QTensor, dequantize
from octavo.formats.spec import F32, U8, AnyArray
from octavo.graph.collective_ops import COLLECTIVES
from octavo.graph.communicator import Communicator
from octavo.graph.node import PAGE_SIZE, DType, Graph, Node, Sizes, kept_bytes
from octavo.graph.ops import VIEWS
from octavo.graph.pointwise import POINTWISE
from octavo.graph.protocol import Call, WeightSource
from octavo.jit.parallel_compile import compile_together
from octavo.jit.prepare import prepare

if TYPE_CHECKING:
    from octavo.backends.cpu.matmul.adapters import AdapterTable
    from octavo.backends.cpu.packed.store import Store
    from octavo.backends.cpu.stand_in import StandInBackend
    from octavo.jit.program import KernelCall

INT8_KINDS, FP8_KINDS = ("int8_token", "int8_static"), ("fp8_token", "fp8_static")
DTYPES = {
    "f32": np.float32, **dict.fromkeys(FP8_KINDS, np.float32), "f16": np.float16, "i32": np.int32, "i64": np.int64,
}
FUSIONS = frozenset({"mul_mat_concat", "mul_mat_add", "rope_set_rows", "lora"})
QUANTIZES = frozenset({"rms_norm", *(op.name for op in POINTWISE.values() if op.quantizes)})


class CpuBackend(HostMemory):
    """Runs graphs on the CPU. Raises BackendError where Numba or its OpenMP layer is missing.

    `communicator` is for graphs of one of several ranks. `later`: Numba is imported, which takes a third of a second,
    only when a node is to run here. `exact`: a token's numbers are the same whatever else is in a step, also where
    matrix tiles would round prompts otherwise.
    """

    name = "cpu"
    fusions = FUSIONS
    quantizes = QUANTIZES
    chooses = True

    def __init__(
        self, *, threads: int | None = None, later: bool = False, communicator: Communicator | None = None,
        exact: bool = False,
    ) -> None:
        self.threads, self.communicator, self.exact = threads or cores(), communicator, exact
        self._arena = Arena()
        self._store: Store | None = None
        if not later:
            _ = self._binders

    @cached_property
    def _binders(self) -> ModuleType:
        prepare()
        from octavo.backends.cpu import ops as binders

        return binders

    def supports(self, node: Node) -> tuple[bool, str]:
        if node.op in COLLECTIVES:
            return (True, "") if self.communicator is not None else (False, "made without a communicator")
        if self._binders.binder_of(node.op) is None and node.op not in VIEWS and node.op != "copy":
            return False, f"no kernel for {node.op}"
        if why := problem(node):
            return False, why
        if node.quantizes and not (
            node.op in QUANTIZES and node.dtype not in FP8_KINDS and self._binders.quantize.makes(node.op)
        ):
            return False, f"no kernel for {node.op} to {node.dtype}"
        weights = [i.tensor for i in node.inputs if i.op == "weight" and len(i.shape) > 1]
        if any(w.format.per_row and w.format.number is None for w in weights):
            from octavo.backends.cpu.matmul.w8a8.row_scales import supports

            return supports(node)
        return True, ""

    def activation(self, weight: QTensor, op: str = "mul_mat") -> DType:
        if weight.format.is_float or op != "mul_mat":
            return "f32"
        if weight.shape[-1] % 32 and not weight.format.per_row:
            return "f32"
        return cast(DType, weight.format.activation)

    def load(self, tensor: QTensor) -> Any:
        _ = self._binders
        if self._store is not None:
            return self._store.load(tensor, self._pack, self._arena)
        return self._pack(tensor, self._arena)

    def _pack(self, tensor: QTensor, room: Room) -> Any:
        from octavo.backends.cpu.matmul.w8a8.row_scales import is_row_weight, pack_rows
        from octavo.backends.cpu.weights.pack import pack

        if len(tensor.shape) == 1:
            return dequantize(tensor)
        return (pack_rows if is_row_weight(tensor) else pack)(tensor, self.threads, room)

    @contextmanager
    def keeping(self, nodes: Sequence[Node], source: WeightSource) -> Iterator[int]:
        _ = self._binders
        from octavo.backends.cpu.device.memory import packed_bytes, weights_of
        from octavo.backends.cpu.packed.store import open_store

        self._store = open_store(source, weights_of(nodes), packed_bytes)
        try:
            yield 0 if self._store is None else self._store.nbytes
        finally:
            store, self._store = self._store, None
            if store is not None:
                store.close()

    def stand_in(self, plans: str) -> StandInBackend | None:
        _ = self._binders
        from octavo.jit.compile import digest_of_sources
        from octavo.jit.stored_code import Mark

        mark = Mark(f"{plans} {self.exact} {digest_of_sources(__file__)}")
        if mark.is_set():
            return None
        from octavo.backends.cpu.stand_in import StandInBackend

        return StandInBackend(self, mark)

    def begin_loading(self) -> None:
        self._arena = Arena()

    def weight_bytes(self, nodes: Sequence[Node]) -> int:
        from octavo.backends.cpu.device.memory import weight_bytes

        return weight_bytes(nodes)

    def cache_bytes(self, nodes: Sequence[Node], limits: Sizes) -> int:
        return kept_bytes(nodes, limits)

    def nbytes(self, shape: tuple[int, ...], dtype: DType) -> int:
        size = math.prod(shape)
        if dtype in INT8_KINDS:
            from octavo.backends.cpu.matmul.w8a8.activations import token_bytes

            return token_bytes(*shape)
        if dtype == "q8_1":
            from octavo.backends.cpu.matmul.quantize_kernel import TOKEN_BYTES

            return size // 32 * TOKEN_BYTES
        return size * int(np.dtype(DTYPES[dtype]).itemsize)

    def allocate(self, nbytes: int) -> U8:
        raw = np.full(nbytes + 64, 0xFF, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + nbytes]

    def view(self, memory: U8, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        raw = memory[offset : offset + self.nbytes(shape, dtype)]
        if dtype in INT8_KINDS:
            from octavo.backends.cpu.matmul.w8a8.activations import Int8Tokens

            return Int8Tokens(raw, *shape)
        return raw if dtype == "q8_1" else raw.view(DTYPES[dtype]).reshape(shape)

    def cache(self, shape: tuple[int, ...], dtype: DType, static: F32 | None = None) -> AnyArray:
        _ = self._binders
        from octavo.backends.cpu.attention.cache_layout import head_bytes, kind_of

        rows, heads, dim = shape
        memory = zeroed(rows // PAGE_SIZE * heads * head_bytes(kind_of(dtype, static), dim))
        return memory.view(DTYPES[dtype]).reshape(shape) if dtype in DTYPES else memory.reshape(rows, heads, -1)

    def states(self, shape: tuple[int, ...]) -> AnyArray:
        return zeroed(4 * math.prod(shape)).view(np.float32).reshape(shape)

    def adapters(self, shape: tuple[int, ...]) -> AdapterTable:
        _ = self._binders
        from octavo.backends.cpu.matmul.adapters import AdapterTable

        return AdapterTable(shape)

    def adds_in_place(self, node: Node) -> bool:
        return node.op == "lora"

    def alias(self, node: Node, value: AnyArray, shape: tuple[int, ...]) -> AnyArray:
        if node.op == "reshape":
            return reshaped(value, *shape)
        if node.op == "columns":
            start = node.attrs["start"]
            return value[..., start : start + node.attrs["size"]]
        return value

    def begin_plan(self, graph: Graph) -> CpuBinder:
        return CpuBinder(self)

    def kernel_calls(self, node: Node, inputs: Sequence[Any], out: Any, shared: PlanMemory) -> list[KernelCall]:
        """The calls for a node; `shared` is that of its plan."""
        calls: list[KernelCall] = self._binders.binder_of(node.op)(node, inputs, out, shared)
        return calls


class CpuBinder:
    """Kernel calls of one plan, and the memory that they share; between them, calls of the communicator."""

    def __init__(self, backend: CpuBackend) -> None:
        self._backend = backend
        self._calls: list[KernelCall] = []
        self._done: list[Call] = []
        self._shared, self._work = PlanMemory(exact=backend.exact, threads=backend.threads), 0

    def bind(self, node: Node, inputs: Sequence[Any], out: Any) -> Call:
        from octavo.jit.program import Program

        if node.op in COLLECTIVES:
            self._end_program()
            self._done.append(collective_call(node, inputs, out, self._backend.communicator))
            return self._done[-1]
        calls = self._backend.kernel_calls(node, inputs, out, self._shared)
        self._calls += calls
        self._work += work_of(node, inputs, out)
        return Program(calls, self._backend.threads)

    def finish(self) -> list[Call]:
        from octavo.jit.program import Program

        self._end_program()
        done, self._done = self._done, []
        programs = [program for program in done if isinstance(program, Program)]
        calls = [call for program in programs for call in program.calls]
        wanted = [*(program.kernel for program in programs), *(call.kernel for call in calls)]
        compile_together([*wanted, *(k for call in calls for k in call.other_kernels())], self._backend.threads)
        return done

    def _end_program(self) -> None:
        from octavo.jit.program import Program

        if self._calls:
            waits = sum(not call.overlaps for call in self._calls)
            self._done.append(Program(self._calls, threads_for(self._work, waits, self._backend.threads)))
            self._calls, self._work = [], 0
