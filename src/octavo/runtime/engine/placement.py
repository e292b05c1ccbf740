"""Placement: which of a model's layers lie on the first of an engine's backends, where memory is short.

The last layers and the output are on it, the layers before them on the second backend. So a step goes over once, with a
vector for each token, and the largest matrix, the output, is where reading is fastest. An embedding that is the output
too lies with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from octavo.backends import concrete, one_name, select
from octavo.backends.cores import cores, threads_of
from octavo.errors import BackendError, UsageError
from octavo.graph.communicator import Communicator
from octavo.graph.low_rank import EMBEDDING, OF_A, OF_B, OUTPUT
from octavo.graph.lower import lower
from octavo.graph.names import split_layer
from octavo.graph.node import Attention, Graph, Node, Sizes
from octavo.graph.protocol import Backend, BoundedBackend
from octavo.graph.schedule import Place, Schedule, assign, schedule, with_fallbacks_told
from octavo.runtime.argument_checks import integer
from octavo.runtime.sampling.top_k import finder, with_candidates

log = logging.getLogger("octavo")

GpuLayers = int | Literal["all", "auto"]
"""How many of the last layers are on the first backend: a number (more than there are: all), all, or what fits (-1)."""

GIB = 1 << 30
MOST_RANKS = 64


def backends_for(
    device: str,
    threads: int | None = None,
    gpu_layers: GpuLayers | None = None,
    *,
    deterministic: bool = False,
    attention: Attention = "exact",
    tensor_parallel: int = 1,
    step_timeout: float = 600.0,
    communicator: Communicator | None = None,
) -> tuple[list[Backend], GpuLayers]:
    """The backends for a device, and how many layers the first is to have.

    Without `gpu_layers` that is all of them, but on a GPU that "auto" found what fits. 0 layers need no GPU. Where
    "auto" finds none, others than 0 run on the CPU, which a warning tells of. `deterministic` and `attention` are as of
    `octavo.backends.select`. With `tensor_parallel` they are those of rank 0 of that many; `communicator` is
    that of another one. Raises what that raises, and UsageError for layers on a device that is not a GPU.
    """
    device = one_name(device)
    if tensor_parallel != 1:
        integer("tensor_parallel", tensor_parallel, 1, MOST_RANKS)
        if gpu_layers is not None:
            problem = f"tensor_parallel is {tensor_parallel}, beside gpu_layers {gpu_layers} (allowed: one of them)"
            raise UsageError(problem, argument="tensor_parallel")
        from octavo.runtime.parallel.group import RankGroup

        threads = max(1, (cores() if threads is None else threads_of(threads)) // tensor_parallel)
        group = RankGroup(
            tensor_parallel, device=concrete(device), threads=threads, deterministic=deterministic, attention=attention,
            step_timeout=step_timeout,
        )
        communicator = group.communicator
    if communicator is not None:
        return select(
            device, threads, deterministic=deterministic, attention=attention, communicator=communicator
        ), "all"
    if gpu_layers == -1:
        gpu_layers = None if device in ("cpu", "reference") else "auto"
    if gpu_layers is None:
        return select(
            device, threads, deterministic=deterministic, attention=attention
        ), "auto" if device == "auto" else "all"
    checked(gpu_layers)
    if device in ("cpu", "reference") and gpu_layers != 0:
        problem = f"gpu_layers is {gpu_layers} on device {device} (allowed: 0, or device gpu or auto)"
        raise UsageError(problem, argument="gpu_layers")
    if gpu_layers == 0 and device in ("auto", "gpu"):
        device = "cpu"
    found = select(device, threads, deterministic=deterministic, attention=attention)
    if gpu_layers not in (0, "auto") and found[0].name == "cpu":
        log.warning("gpu_layers is %s, but there is no usable GPU: all layers run on the CPU", gpu_layers)
        return found, "all"
    return found, gpu_layers if gpu_layers != 0 else "all"


def checked(gpu_layers: GpuLayers) -> GpuLayers:
    """`gpu_layers`, if it is one. Raises UsageError for anything else."""
    if gpu_layers in ("all", "auto") or (
        isinstance(gpu_layers, int) and not isinstance(gpu_layers, bool) and gpu_layers >= 0
    ):
        return gpu_layers
    raise UsageError(f"gpu_layers is {gpu_layers!r} (allowed: 0 or more, all, auto)", argument="gpu_layers")


def last_layers(graph: Graph, n_layer: int, count: int) -> Place:
    """Places the last `count` layers, and with any of them the output, on backend 0, and all others on 1."""
    tied = all(w.name != OUTPUT for w in graph.leaves("weight"))
    first = n_layer - count

    def place(weight: Node) -> int:
        layer, _ = split_layer(weight.name)
        if layer is not None:
            return int(layer < first)
        if weight.name.removesuffix(OF_A).removesuffix(OF_B) == EMBEDDING and not tied:
            return int(first > 0)
        return int(count == 0)

    return place


class Placement:
    """The layers of a graph on backends, of which the first may have little memory.

    `layers` is how many of `n_layer` are on the first; logits are `searched` for candidates where they are made. Raises
    UsageError where layers are to lie on a second backend and there is none, BackendError where they do not fit, saying
    how many would.
    """

    def __init__(
        self, graph: Graph, n_layer: int, backends: Sequence[Backend], limits: Sizes, gpu_layers: GpuLayers,
        *, fused: bool = True, searched: bool = True,
    ) -> None:
        self.n_layer, self._searched = n_layer, searched
        self._graph, self._backends, self._limits, self._fused = graph, backends, limits, fused
        self._schedules: dict[int, Schedule] = {}
        wanted = checked(gpu_layers)
        self.layers = n_layer if isinstance(wanted, str) else min(wanted, n_layer)
        if self.layers < n_layer and len(backends) < 2:
            problem = f"gpu_layers is {wanted}, but there is no backend for the other layers: use all"
            raise UsageError(problem, argument="gpu_layers")
        if isinstance(backends[0], BoundedBackend) and self.layers:
            self._fit(backends[0], wanted)

    def _fit(self, backend: BoundedBackend, wanted: GpuLayers) -> None:
        free, needed = backend.free(), self.needed(self.layers)
        if needed <= free:
            return
        fitting = self.fitting(free)
        if wanted != "auto" or len(self._backends) < 2:
            raise BackendError(
                f"device {backend.name}: {self.layers} of {self.n_layer} layers take {needed / GIB:.2f} GiB, but "
                f"{free / GIB:.2f} GiB are free: {self.advice(fitting)}"
            )
        self.layers = fitting
        log.warning("%d of %d layers fit the GPU's memory; the others run on the CPU", fitting, self.n_layer)

    @staticmethod
    def advice(layers: int) -> str:
        """What to do where memory is short and this many layers would fit."""
        return f"--gpu-layers {layers} would fit" if layers else "none fits: try a smaller --ctx-size, or --device cpu"

    def advice_after(self) -> str:
        """What to do after memory was short although all seemed to fit: at least one layer fewer."""
        backend = self._backends[0]
        free = backend.free() if isinstance(backend, BoundedBackend) else 0
        return self.advice(min(self.fitting(free), max(self.layers - 1, 0)))

    def needed(self, layers: int) -> int:
        """Bytes on the first backend with this many layers on it; 0 if it does not count them."""
        backend = self._backends[0]
        if not isinstance(backend, BoundedBackend):
            return 0
        made = self._scheduled(layers)
        nodes = [n for n in made.graph.nodes if not n.is_leaf and made.backends[id(n)] == 0]
        return made.memory[0] + backend.needs(nodes, self._limits)

    def scheduled(self, place: Place | None, *, strict: bool) -> Schedule:
        """The graph as it runs with the layers as they are placed, or each weight as `place` says.

        Warns of nodes that run elsewhere than meant; with `strict` they raise GraphError.
        """
        made = self._scheduled(self.layers) if place is None else self._schedule(place)
        return with_fallbacks_told(made, strict=strict)

    def _scheduled(self, layers: int) -> Schedule:
        if layers not in self._schedules:
            self._schedules[layers] = self._schedule(last_layers(self._graph, self.n_layer, layers))
        return self._schedules[layers]

    def _schedule(self, place: Place) -> Schedule:
        """The graph lowered, its logits searched for candidates where they are made, if that can be, and scheduled."""
        graph = lower(self._graph, self._backends, place, fused=self._fused)
        where, _ = assign(graph, self._backends, place)
        if self._searched and (backend := finder(graph, where, self._backends)) is not None:
            graph = with_candidates(graph, backend)
        return schedule(graph, self._backends, self._limits, place=place, quiet=True)

    def fitting(self, free: int) -> int:
        """The most layers that `free` bytes hold; one layer fewer never takes more."""
        return last_true(self.n_layer, lambda layers: self.needed(layers) <= free)


def last_true(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` of which `holds` is true, which it is up to there; 0 if of none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
