"""GpuBackend: values in the device's memory, Triton kernels, a step captured into one graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from octavo.backends.gpu.device.torch_device import interpreted, on_card, target
from octavo.errors import DeviceMemoryError, RankError
from octavo.formats import QTensor
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.rotation import block_of
from octavo.formats.spec import F32, U8, AnyArray
from octavo.graph.collective_ops import COLLECTIVES
from octavo.graph.communicator import Communicator
from octavo.graph.node import PAGE_SIZE, Attention, DType, Graph, Node, Sizes, is_static
from octavo.graph.pointwise import POINTWISE
from octavo.graph.protocol import Call, Saved
from octavo.graph.schedule import root

if TYPE_CHECKING:
    import torch

    from octavo.backends.gpu.collectives.communicator import GpuCommunicator
    from octavo.backends.gpu.launch.context import Context
    from octavo.backends.gpu.launch.device_values import DeviceCopy
    from octavo.backends.gpu.matmul.epilogue_fusion import BoundNode
    from octavo.backends.gpu.matmul.lora import AdapterTable

Bind = Callable[["Context", "BoundNode"], list[Call]]
"""Gives the calls of a node."""
MOST_DIM = 512  # values of a head
MOST_SHARED_DIM = 576  # where keys are values too
TOKEN_KINDS = ("int8_token", "fp8_token", "int8_static", "fp8_static")
HALVES: dict[str, DType] = {"F16": "f16", "BF16": "bf16"}
"""Formats of weights whose products take activations rounded as the weights are."""
FUSIONS = frozenset({
    "mul_mat", "mul_mat_concat_add", "mul_mat_concat", "mul_mat_add", "mul_mat_id_concat", "mul_mat_id_gated",
    "rope_set_rows", "soft_max_top_k", "sum_experts", "lora",
})
QUANTIZES = frozenset({"rms_norm", "attention", *(op.name for op in POINTWISE.values() if op.quantizes)})


class GpuBackend:
    """Runs graphs on a GPU, NVIDIA's or AMD's.

    deterministic  sums are in the same order for any number of tokens, which takes longer: one kernel for products, and
                   one for attention, whatever is in a step
    attention      what attention of prompts multiplies, where there is a kernel for it
    communicator   what a graph of one of several ranks exchanges values by, a `GpuCommunicator`
    card           its number, where this process uses several; without, it is the first

    Raises UsageError where these can't be together, and BackendError where the device has no such attention, where
    torch, Triton or a GPU is missing, and in a process forked from one that used the GPU.
    """

    name = "gpu"
    fusions = FUSIONS
    quantizes = QUANTIZES
    chooses = True

    def __init__(
        self, deterministic: bool = False, attention: Attention = "exact",
        communicator: Communicator | None = None, card: int | None = None,
    ) -> None:
        self.target, self.deterministic, self.attention = target(card), deterministic, attention
        self.communicator, self.card = communicator, card
        import torch

        from octavo.backends.gpu import ops as binders
        from octavo.backends.gpu.launch.context import Context
        from octavo.backends.gpu.launch.template import Lasting

        self._torch = torch
        self._binders = binders
        if attention != "exact":
            from octavo.backends.gpu.attention.prefill_hopper_launch import require

            require(attention, self.target, deterministic)
        self._context = Context(self.target, deterministic, attention, communicator=communicator)
        self.lasting = Lasting()
        """For the binders of plans."""
        self._dtypes = {
            "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64
        }

    @property
    def device(self) -> str:
        return self.target.device

    def supports(self, node: Node) -> tuple[bool, str]:
        if node.op in COLLECTIVES and self.communicator is None:
            return False, "made without a communicator"
        if self._binders.binder_of(node.op) is None and node.op not in ("reshape", "columns", "after", "copy"):
            return False, f"no kernel for {node.op}"
        if node.op == "attention":
            dim, page_size = node.inputs[0].shape[2], node.attrs["page_size"]
            most = MOST_SHARED_DIM if node.inputs[1] is node.inputs[2] else MOST_DIM
            if not isinstance(dim, int) or dim > most or page_size != PAGE_SIZE:
                return False, f"heads of {dim} in pages of {page_size} (allowed: up to {most}, {PAGE_SIZE})"
            if node.inputs[1] is node.inputs[2] and (problem := _unshared(node)):
                return False, f"keys that are values too {problem}"
        if node.op == "mul_mat_add" and len(node.inputs) > 4:
            return False, f"{len(node.inputs) - 2} terms added to a product (allowed: up to 2)"
        if node.quantizes and (node.op not in QUANTIZES or (node.op == "attention" and node.dtype in TOKEN_KINDS)):
            return False, f"no kernel for {node.op} to {node.dtype}"
        from octavo.backends.gpu.weights.load import supported

        if any(i.op == "weight" and i.tensor.format.per_row for i in node.inputs):
            if self.deterministic:
                return False, "products of weights with a scale for each row have no order of sums that is kept"
            from octavo.backends.gpu.matmul.w8a8.row_scales import supports

            return supports(node)
        for weight in (i for i in node.inputs if i.op == "weight" and len(i.shape) > 1):
            ok, reason = supported(weight.tensor)
            if not ok:
                return False, reason
        return True, ""

    def activation(self, weight: QTensor, op: str = "mul_mat") -> DType:
        fmt = weight.format
        if op != "mul_mat" or (self.deterministic and fmt.is_float):
            return "f32"
        if fmt.number is not None and not fmt.is_float and not fmt.per_row:
            return "f16_tiles"
        return HALVES.get(fmt.name) or cast(DType, fmt.activation)

    def adds_in_place(self, node: Node) -> bool:
        return node.op == "lora" or bool(node.inputs[0].tensor.format.is_float)

    def load(self, tensor: QTensor) -> Any:
        from octavo.backends.gpu.weights.load import load, vector

        if tensor.format.per_row:
            from octavo.backends.gpu.weights.row_scales import load_rows

            with self._enough_memory(f"tensor {tensor.name}"):
                return load_rows(tensor, self.target.device)
        with self._enough_memory(f"tensor {tensor.name}"):
            if len(tensor.shape) == 1:
                return vector(tensor, self.target.device)
            return load(tensor, self.target.device)

    def nbytes(self, shape: tuple[int, ...], dtype: DType) -> int:
        if dtype in TOKEN_KINDS:
            from octavo.backends.gpu.launch.device_values import token_bytes

            return token_bytes(*shape)
        if dtype == "q8_1":
            from octavo.backends.gpu.launch.device_values import activation_bytes

            tokens, k = shape
            return activation_bytes(tokens, k, self.target.arch, codes=self.deterministic)
        if dtype == "f16_tiles":
            from octavo.backends.gpu.launch.device_values import half_activation_bytes

            return half_activation_bytes(*shape)
        size = math.prod(shape) * int(self._dtypes[dtype].itemsize)
        return max(size, 4 * math.prod(shape[1:])) if dtype in HALVES.values() else size  # of one token in f32

    def allocate(self, nbytes: int) -> torch.Tensor:
        target(self.card)  # which a process that was forked since may not have
        with self._enough_memory("values"):
            return self._torch.full((nbytes,), 0xFF, dtype=self._torch.uint8, device=self.target.device)

    def view(self, memory: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: DType) -> Any:
        raw = memory[offset : offset + self.nbytes(shape, dtype)]
        if dtype in TOKEN_KINDS:
            from octavo.backends.gpu.launch.device_values import TokenCodes

            tokens, k = shape
            return TokenCodes(raw, tokens, k, dtype)
        if dtype in ("q8_1", "f16_tiles"):
            from octavo.backends.gpu.launch.device_values import Activation, float_activation
            from octavo.backends.gpu.matmul import dispatch

            tokens, k = shape
            if dtype == "f16_tiles":
                return float_activation(raw, tokens, k, self.target.arch, self.deterministic)
            both = not self.deterministic and dispatch.ordered(tokens, self.target.arch)
            return Activation(raw, tokens, k, self.deterministic, both)
        if dtype in HALVES.values():
            from octavo.backends.gpu.matmul import dispatch

            dtype = "f32" if shape[0] <= dispatch.FLOAT_MATVEC_MAX_TOKENS else dtype
        return raw[: math.prod(shape) * self._dtypes[dtype].itemsize].view(self._dtypes[dtype]).view(shape)

    def cache(self, shape: tuple[int, ...], dtype: DType, static: F32 | None = None) -> Any:
        from octavo.backends.gpu.launch.device_values import GROUPED, Cache

        with self._enough_memory("a layer's KV cache; a smaller context needs less"):
            (rows, heads, dim), torch, device = shape, self._torch, self.target.device
            if dtype in self._dtypes:
                return Cache(torch.zeros(shape, dtype=self._dtypes[dtype], device=device))
            if dtype in GROUPED:
                scales = torch.zeros((rows, heads, dim // 32), dtype=torch.float16, device=device)
            elif static is None:
                scales = torch.zeros((rows // PAGE_SIZE, heads, PAGE_SIZE), dtype=torch.float32, device=device)
            else:
                scales = torch.from_numpy(static).to(device)
            packed = dim * CACHE_FORMATS[dtype].bits // 8
            return Cache(torch.zeros((rows, heads, packed), dtype=torch.int8, device=device), scales, dtype)

    def states(self, shape: tuple[int, ...]) -> torch.Tensor:
        with self._enough_memory("a layer's states; fewer sequences need less"):
            return self._torch.zeros(shape, dtype=self._torch.float32, device=self.target.device)

    def adapters(self, shape: tuple[int, ...]) -> AdapterTable:
        from octavo.backends.gpu.matmul.lora import AdapterTable

        with self._enough_memory("tables of adapters; fewer of them, or a smaller rank, need less"):
            return AdapterTable(shape, self.target.device)

    def copy_state(self, states: torch.Tensor, target: int, source: int) -> None:
        states[target].copy_(states[source])

    def page_parts(self, cache: Any, page: int) -> list[torch.Tensor]:
        pages = [cache.data.unflatten(0, (-1, PAGE_SIZE))]
        if cache.scaling == "dynamic":
            pages.append(cache.scales)
        elif cache.scales is not None and not cache.scaling:
            pages.append(cache.scales.unflatten(0, (-1, PAGE_SIZE)))
        return [of_pages[page] for of_pages in pages]

    def copy_page(self, cache: Any, target: int, source: int) -> None:
        for into, part in zip(self.page_parts(cache, target), self.page_parts(cache, source), strict=True):
            into.copy_(part)

    def save(self, values: Sequence[torch.Tensor]) -> DeviceCopy:
        from octavo.backends.gpu.launch.device_values import DeviceCopy, raw_parts

        host = self._host(sum(value.nbytes for value in values))
        for value, part in zip(values, raw_parts(host, values), strict=True):
            part.copy_(value, non_blocking=True)
        return DeviceCopy(host, self._copied(values[0].device))

    def restore(self, values: Sequence[torch.Tensor], data: U8 | Saved) -> None:
        from octavo.backends.gpu.launch.device_values import DeviceCopy, raw_parts

        if isinstance(data, DeviceCopy):  # made before on this stream, so that nobody has to wait for it
            host = data.host
        else:
            raw = data if isinstance(data, np.ndarray) else data.data()
            host = self._host(raw.nbytes)
            host.numpy()[...] = raw
        for value, part in zip(values, raw_parts(host, values), strict=True):
            value.copy_(part, non_blocking=True)

    def alias(self, node: Node, value: Any, shape: tuple[int, ...]) -> Any:
        if node.op == "reshape":
            return value.unflatten(1, shape[1:]) if value.ndim == 2 else value.view(shape)
        if node.op == "columns":
            start = node.attrs["start"]
            return value[..., start : start + node.attrs["size"]]
        return value

    def begin_plan(self, graph: Graph) -> GpuBinder:
        return GpuBinder(self, self._context.begin_plan(), graph)

    def launches(self, context: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
        """The calls for a node of the plan that `context` belongs to; none for a result without values, of which a
        copy engine would say that its shape is none."""
        if not (out.numel() if isinstance(out, self._torch.Tensor) else getattr(out, "tokens", 1)):
            return []
        target(self.card)
        with self._enough_memory("a step's workspace; a smaller --gpu-layers leaves more"):
            bind = self._binders.binder_of(node.op)
            assert bind is not None
            calls: list[Call] = bind(context, node, inputs, out)
        return calls

    def write(self, value: torch.Tensor, data: AnyArray) -> None:
        target(self.card)
        host = self._host(value.shape, value.dtype)
        host.numpy()[...] = data
        value.copy_(host, non_blocking=True)

    def read(self, value: torch.Tensor) -> AnyArray:
        return self.begin_read(value)()

    def begin_read(self, value: torch.Tensor) -> Callable[[], AnyArray]:
        host = self._host(value.shape, value.dtype)
        host.copy_(value, non_blocking=True)
        if self.target.kind != "cuda":
            return host.numpy
        done = self._copied(value.device)

        def wait() -> AnyArray:
            done()
            return np.array(host.numpy())

        return wait

    def _copied(self, device: torch.device) -> Callable[[], None]:
        """What waits for the copies that were begun so far."""
        if self.target.kind != "cuda":
            return lambda: None
        cuda = cast(Any, self._torch.cuda)
        done, ranks = cuda.Event(), self.communicator
        done.record(cuda.current_stream(device))
        if ranks is None:
            return cast("Callable[[], None]", done.synchronize)

        def wait() -> None:
            while not done.query():  # it may never be, where a kernel waits for a rank that has ended
                if ranks.failure:
                    raise RankError(ranks.failure)
                sleep(0)

        return wait

    def copy(self, target: torch.Tensor, source: torch.Tensor, places: Sequence[int] | None = None) -> None:
        if places is not None:
            at = self._torch.tensor(places, pin_memory=self.target.kind == "cuda")
            source = source.index_select(0, at.to(source.device, non_blocking=True))
        target.view(-1)[: source.numel()].copy_(source.reshape(-1), non_blocking=True)

    def _host(self, shape: int | torch.Size, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Memory of the host, by default of bytes, page-locked; torch keeps it until copies are done with it."""
        return self._torch.empty(shape, dtype=dtype or self._torch.uint8, pin_memory=self.target.kind == "cuda")

    def synchronize(self) -> None:
        if self.target.kind == "cuda":
            self._torch.cuda.synchronize(self.target.device)

    def remembers(self) -> tuple[Path | None, str]:
        from octavo.backends.gpu.compile.cache import folder

        settings = f"{self.target.name} {self.target.arch} {self.deterministic} {self.attention}"
        return None if interpreted() else folder(), settings

    def free(self) -> int:
        from octavo.backends.gpu.device.memory import free

        return free(self.target)

    def needs(self, nodes: Sequence[Node], limits: Sizes) -> int:
        from octavo.backends.gpu.device.memory import needs

        if self.attention != "exact":
            from octavo.backends.gpu.attention.prefill_hopper_launch import require_served

            require_served(self.attention, nodes)
        return needs(nodes, limits, self.target.arch, self.attention)

    def _enough_memory(self, what: str) -> Any:
        return _EnoughMemory(self._torch, what, self.target.device)


class GpuBinder:
    """Launches of one plan, captured into a graph for each run of them, on the backend's card."""

    def __init__(self, backend: GpuBackend, context: Context, graph: Graph) -> None:
        self._backend, self._context, self._graph = backend, context, graph
        self._bound: list[BoundNode] = []
        self._alone = context.begin_plan()
        """For calls that run node by node."""

    def bind(self, node: Node, inputs: Sequence[Any], out: Any) -> Call:
        from octavo.backends.gpu.launch.call import LateCalls
        from octavo.backends.gpu.matmul.epilogue_fusion import BoundNode

        self._bound.append(BoundNode(node, inputs, out, []))
        return self._there(LateCalls(lambda: self._backend.launches(self._alone, node, inputs, out)))

    def finish(self) -> list[Call]:
        with on_card(self._backend.card):
            return [self._there(call) for call in self._finish()]

    def _there(self, call: Call) -> Call:
        """A call that runs on the card that it is bound for, whatever card is the one that others use."""
        from octavo.backends.gpu.launch.call import OnCard

        return call if self._backend.card is None else OnCard(self._backend.card, call)

    def _finish(self) -> list[Call]:
        from octavo.backends.gpu.launch.call import Calls, Captured
        from octavo.backends.gpu.launch.template import Templates
        from octavo.backends.gpu.matmul.activation_layouts import ReadLayouts, copies, may_copy, read_layouts

        bound, self._bound = self._bound, []
        context, captures = self._context, not interpreted() and self._may_capture()
        if may_copy(context) and not copies(context, bound):
            context = replace(context, copies=False)
        found = read_layouts(context, bound, self._graph)
        narrow = {i: replace(context, wanted=kinds) for i, kinds in found.items()}
        bind = Templates(self._launches, self._backend.lasting).calls if captures else self._launches
        calls = self._fused(context, bound, bind, narrow)
        if not captures or not calls:
            return [Calls(calls)]
        if not found:
            return [Captured(calls)]
        return [ReadLayouts(calls, lambda: self._fused(context.begin_plan(), bound, self._launches, {}))]

    def _fused(
        self, context: Context, bound: Sequence[BoundNode], bind: Bind, contexts: Mapping[int, Context]
    ) -> list[Call]:
        """The calls of nodes, of which some have contexts of their own, several nodes' as one launch."""
        from octavo.backends.gpu.matmul.epilogue_fusion import fuse_epilogues
        from octavo.backends.gpu.matmul.experts.gating_fusion import fuse_gating
        from octavo.backends.gpu.matmul.experts.routing_fusion import fuse_routing

        def again(b: BoundNode, c: Context) -> BoundNode:
            return b._replace(calls=bind(c, b))

        bound = [again(b, contexts.get(i, context)) for i, b in enumerate(bound)]
        bound = fuse_routing(context, bound, self._graph, again, contexts)
        if not self._backend.deterministic:
            bound = fuse_gating(context, bound, self._graph)
        return fuse_epilogues(context, bound, self._graph)

    def _may_capture(self) -> bool:
        ranks = cast("GpuCommunicator | None", self._backend.communicator)
        return ranks is None or ranks.captures

    def _launches(self, context: Context, b: BoundNode) -> list[Call]:
        return self._backend.launches(context, b.node, b.inputs, b.out)


class _EnoughMemory:
    """Turns the device's out-of-memory error into one that says what it was for."""

    def __init__(self, torch_module: Any, what: str, device: str) -> None:
        self._torch, self._what, self._device = torch_module, what, device

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and issubclass(kind, self._torch.OutOfMemoryError):
            free, total = self._torch.cuda.mem_get_info(self._device)
            card = self._device.partition(":")[2]
            raise DeviceMemoryError(
                f"device gpu{card and f' {card}'}: not enough memory for {self._what}: {free >> 20} MiB of "
                f"{total >> 20} MiB are free"
            ) from None


def _unshared(node: Node) -> str:
    """Why keys that are values too can't lie in the cache that attention reads, "" if they can."""
    if is_static(root(node.inputs[1])):
        return "with static scales, not dynamic ones"
    kept, dim, values = CACHE_FORMATS[node.inputs[1].dtype], node.inputs[0].shape[2], node.attrs.get("value_dim", 0)
    multiple = block_of(dim) if kept.rotated and isinstance(dim, int) else kept.group or 1
    if values % multiple:
        return f"of which {values} are values, in a cache of {kept.name} (allowed: multiples of {multiple})"
    return ""
