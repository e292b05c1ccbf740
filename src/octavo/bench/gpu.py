"""Times on a GPU: by its own events, calls captured in a graph, so that no launch from the host is in between."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device.driver import driver_version
from octavo.backends.gpu.launch.call import Calls
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.formats import QTensor
from octavo.graph.plan import Plan
from octavo.graph.protocol import Backend

Call = Callable[[], object]

READ_BYTES, LEAST_READ = 1 << 30, 128 << 20
READ_SHAPES = ((2048, 4, 4), (4096, 4, 8), (1024, 8, 4))  # values of a block, blocks of a program, warps
LEAST_CALLS = 8
SPIN_CYCLES = 2_000_000_000  # cycles of a second, about: a card that is slower spins longer


def has_events(backend: Backend) -> bool:
    """Whether a backend is a GPU whose own events tell the time (not one whose kernels are interpreted)."""
    return isinstance(backend, GpuBackend) and backend.target.kind == "cuda"


def describe(backend: Backend) -> dict[str, Any]:
    """Name, architecture, bytes of memory and driver of a GPU."""
    assert isinstance(backend, GpuBackend)
    found: dict[str, Any] = {"gpu": backend.target.name, "arch": backend.target.arch}
    if has_events(backend):
        import torch

        found["gpu_memory"] = torch.cuda.get_device_properties(0).total_memory
        found["driver"] = driver_version()
    return found


def versions() -> dict[str, str]:
    """Versions of what kernels are compiled and launched with."""
    import torch
    import triton

    return {"torch": str(torch.__version__), "triton": str(triton.__version__)}


def seconds(calls: Sequence[Call], replays: int = 9) -> list[float]:
    """Seconds of one call in each replay of a graph in which `calls` run in turn; all have run once before."""
    import torch

    for call in calls:
        call()
    torch.cuda.synchronize()
    rounds = -(-LEAST_CALLS // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    times = []
    for i in range(replays + 1):
        start, stop = _event(), _event()
        graph.replay()  # and the host is ahead of the device when the first event is recorded
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        if i:
            times.append(start.elapsed_time(stop) / (rounds * len(calls)) * 1e-3)
    return times


def read_limit(nbytes: int = READ_BYTES) -> float:
    """GB/s of the fastest of some ways to read memory that is in no cache; of less where a card is nearly full."""
    import torch

    from octavo.backends.gpu.device.bandwidth import read_kernel

    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    while nbytes > LEAST_READ and 2 * nbytes > free - LEAST_READ:
        nbytes //= 2
    x = torch.randint(-(2**31), 2**31 - 1, (nbytes // 4,), dtype=torch.int32, device="cuda")
    out = torch.zeros(x.numel(), dtype=torch.int32, device="cuda")

    def read(block: int, blocks: int, warps: int) -> None:
        read_kernel[(x.numel() // (block * blocks),)](x, out, block, blocks, num_warps=warps, enable_fp_fusion=True)

    return max(nbytes / statistics.median(seconds([partial(read, *shape)])) / 1e9 for shape in READ_SHAPES)


class Copying(GpuBackend):
    """A GPU backend that keeps a copy of its own of each weight that it loads again."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[int, tuple[QTensor, Any]] = {}

    def load(self, tensor: QTensor) -> Any:
        """The weight, packed the first time, and each later time a copy of that."""
        if id(tensor) not in self._first:
            self._first[id(tensor)] = tensor, super().load(tensor)
            return self._first[id(tensor)][1]
        return copied(self._first[id(tensor)][1])


def copied(weight: Any) -> Any:
    """A weight with memory of its own."""
    if isinstance(weight, QuantWeight):
        parts = {name: part.clone() for name, part in weight.parts.items()}
        return QuantWeight(weight.layout, weight.experts, weight.n, weight.k, parts)
    if isinstance(weight, FloatWeight):
        return FloatWeight(weight.experts, weight.n, weight.k, weight.data.clone())
    return weight.clone()


def calls_of(plan: Plan) -> Calls:
    """The calls of a step but for those that quantize activations, as one to capture."""
    parts = [
        part for node, call in plan.calls if node.op != "quantize" and isinstance(call, Calls) for part in call.calls
    ]
    return Calls(parts)


def node_times(plan: Plan) -> tuple[float, list[float]]:
    """Seconds of a step as it runs, and of each of its calls; all in order, so that each finds what a step leaves."""
    whole = _spinning(plan.steps, [0, len(plan.steps)])
    calls = [call for _, call in plan.calls]
    each = _spinning(calls, range(len(calls) + 1))
    return whole[0], each


def _spinning(calls: Sequence[Call], marks: Sequence[int]) -> list[float]:
    """Seconds on the device between these places among the calls.

    The device waits until the host has launched them all, so what is timed is not the host.
    """
    import torch

    start = time.perf_counter()
    for call in calls:
        call()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    events = {i: _event() for i in marks}
    spin: Any = torch.cuda._sleep
    spin(int((1.5 * host + 1e-3) * SPIN_CYCLES))
    for i in range(len(calls) + 1):
        if i in events:
            events[i].record()
        if i < len(calls):
            calls[i]()
    torch.cuda.synchronize()
    return [events[a].elapsed_time(events[b]) * 1e-3 for a, b in pairwise(marks)]


def _event() -> Any:
    import torch

    made: Any = torch.cuda.Event
    return made(enable_timing=True)
