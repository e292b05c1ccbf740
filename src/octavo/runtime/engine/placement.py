"""Placement: on which of an engine's backends each of a model's layers lies.

The first backends are the device's: one, or one for each stage of a pipeline. They have the last layers, each a run of
them, as even in bytes as memory lets them be; layers before those are on the backend after them. So a step goes over
each backend once, with a vector for each token, and the largest matrix, the output, is where reading is fastest. An
embedding lies with the first layer, and once more with the output if it is that too: so the first stage does not wait
for the last one.

Where "auto" is too little memory, experts of the first layers go to the CPU before any whole layer does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Literal

from octavo.backends import concrete, one_name, select
from octavo.backends.cores import cores, threads_of
from octavo.errors import BackendError, UsageError
from octavo.graph.communicator import Communicator
from octavo.graph.lower import lower
from octavo.graph.names import split_layer
from octavo.graph.node import Attention, Graph, Node, Sizes, lasting, leaf_bytes
from octavo.graph.protocol import Backend, BoundedBackend, HostBackend
from octavo.graph.schedule import Place, Schedule, assign, root, schedule, with_fallbacks_told
from octavo.runtime.argument_checks import integer
from octavo.runtime.engine.tensor_overrides import Overrides, device_of, experts_on_cpu, require_matches
from octavo.runtime.sampling.top_k import finder, with_candidates

log = logging.getLogger("octavo")

GpuLayers = int | Literal["all", "auto"]
"""How many of the last layers are on the device: a number (more than there are: all), all, or what fits (-1)."""
Pipeline = int | Sequence[int]
"""How many of the first backends have layers, or how many layers each of them has."""

GIB = 1 << 30
MOST_RANKS = MOST_STAGES = 64
TRIES = 4
"""Divisions of layers among stages that are tried, each by what is known of the one before."""


def backends_for(
    device: str,
    threads: int | None = None,
    gpu_layers: GpuLayers | None = None,
    *,
    deterministic: bool = False,
    attention: Attention = "exact",
    tensor_parallel: int = 1,
    pipeline: int = 1,
    step_timeout: float = 600.0,
    communicators: Sequence[Communicator] = (),
) -> tuple[list[Backend], GpuLayers]:
    """The backends for a device, `pipeline` of them first, and how many layers these are to have.

    Without `gpu_layers` that is all of them, but on a GPU that "auto" found what fits. 0 layers need no GPU. Where
    "auto" finds none, others than 0 run on the CPU, which a warning tells of. `deterministic` and `attention` are as of
    `octavo.backends.select`. With `tensor_parallel` they are those of rank 0 of that many; `communicators` are those of
    another one, for each stage. Raises what that raises, and UsageError for layers on a device that is not a GPU.
    """
    device = one_name(device)
    integer("pipeline", pipeline, 1, MOST_STAGES)
    if tensor_parallel != 1:
        integer("tensor_parallel", tensor_parallel, 1, MOST_RANKS)
        if gpu_layers is not None:
            problem = f"tensor_parallel is {tensor_parallel}, beside gpu_layers {gpu_layers} (allowed: one of them)"
            raise UsageError(problem, argument="tensor_parallel")
        from octavo.runtime.parallel.group import RankGroup

        threads = max(1, (cores() if threads is None else threads_of(threads)) // tensor_parallel)
        group = RankGroup(
            tensor_parallel, pipeline, device=concrete(device), threads=threads, deterministic=deterministic,
            attention=attention, step_timeout=step_timeout,
        )
        communicators = group.communicators

    def found_on(device: str) -> list[Backend]:
        return select(
            device, threads, deterministic=deterministic, attention=attention, stages=pipeline,
            communicators=communicators,
        )

    if communicators:
        return found_on(device), "all"
    if gpu_layers == -1:
        gpu_layers = None if device in ("cpu", "reference") else "auto"
    if gpu_layers is None:
        return found_on(device), "auto" if device == "auto" else "all"
    checked(gpu_layers)
    if device in ("cpu", "reference") and gpu_layers != 0:
        problem = f"gpu_layers is {gpu_layers} on device {device} (allowed: 0, or device gpu or auto)"
        raise UsageError(problem, argument="gpu_layers")
    if gpu_layers == 0 and device in ("auto", "gpu"):
        device = "cpu"
    found = found_on(device)
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


def in_order(graph: Graph, n_layer: int, counts: Sequence[int]) -> Place:
    """Places the last layers on the first backends, as many as `counts` says on each, and those before on the next.

    What is read before any layer is where the first one is, what is read after them where the last one is.
    """
    others = [len(counts)] * (n_layer - sum(counts))
    stages = [*others, *(stage for stage, count in enumerate(counts) for _ in range(count))]
    early = _read_first(graph)

    def place(weight: Node, reader: Node) -> int:
        layer, _ = split_layer(weight.name)
        if layer is not None:
            return stages[min(layer, n_layer - 1)]
        return stages[0 if _key(weight, reader) in early else -1]

    return place


def _key(weight: Node, reader: Node) -> tuple[str, bool]:
    """A weight by its name, and whether its rows are looked up, as of an embedding that is the output too."""
    return weight.name, reader.op == "get_rows"


def _read_first(graph: Graph) -> set[tuple[str, bool]]:
    """The weights of no layer that are read before those of layers."""
    after: dict[int, bool] = {}
    early = set[tuple[str, bool]]()
    for node in graph.nodes:
        weights = [i for i in node.inputs if i.op == "weight"]
        later = any(split_layer(w.name)[0] is not None for w in weights)
        after[id(node)] = later or any(after[id(i)] for i in node.inputs)
        if not after[id(node)]:
            early |= {_key(w, node) for w in weights}
    return early


def with_overrides(place: Place, overrides: Overrides, n_stages: int, host: int) -> Place:
    """`place`, but for weights that `overrides` have on the CPU, backend `host`, or on one of the first `n_stages`."""
    if not overrides:
        return place

    def elsewhere(weight: Node, reader: Node) -> int:
        device, usual = device_of(weight.name, overrides), place(weight, reader)
        return host if device == "cpu" else usual if device is None or usual < n_stages else 0

    return elsewhere


class Placement:
    """The layers of a graph on backends, of which the first may have little memory.

    `layers` is how many of `n_layer` are on the first, or on all stages of a `pipeline`, `counts` how many on each;
    `overrides` are those that were given, and those of experts where "auto" found that memory lacks. Logits are
    `searched` for candidates where they are made. `adapted` is the graph of steps with adapters, whose tables take room
    as well. Raises UsageError where layers are to lie on another backend and there is none, where there are more stages
    than layers, and for an override of nothing; BackendError where layers do not fit, saying how many would.
    """

    def __init__(
        self, graph: Graph, n_layer: int, backends: Sequence[Backend], limits: Sizes, gpu_layers: GpuLayers,
        *, pipeline: Pipeline = 1, fused: bool = True, searched: bool = True, overrides: Overrides = (),
        adapted: Graph | None = None,
    ) -> None:
        self.n_layer, self._searched, self._adapted = n_layer, searched, adapted
        self._graph, self._backends, self._limits, self._fused = graph, backends, limits, fused
        self._override(overrides)
        wanted = checked(gpu_layers)
        self.layers = n_layer if isinstance(wanted, str) else min(wanted, n_layer)
        self._given = None if isinstance(pipeline, int) else tuple(pipeline)
        n_stages = pipeline if isinstance(pipeline, int) else len(pipeline)
        self._stages, self._others = backends[:n_stages], backends[n_stages:]
        self._host = 0 if isinstance(backends[0], HostBackend) else n_stages
        self._require_overrides()
        if self.layers < n_layer and not self._others:
            problem = f"gpu_layers is {wanted}, but there is no backend for the other layers: use all"
            raise UsageError(problem, argument="gpu_layers")
        self._joined = _joined(graph, n_layer)
        most = self.layers - sum(self._joined[n_layer - self.layers + 1 :])
        if self.layers and most < n_stages:
            whose = "the model has" if self.layers == n_layer else "there are to be"
            how_many = f"{self.layers} layers on the GPUs" if self.layers < n_layer else f"{n_layer} layers"
            together = ", some of which share keys and values" if most < self.layers else ""
            problem = f"pipeline is {n_stages}, but {whose} {how_many}{together} (allowed: 1 to {most})"
            raise UsageError(problem, argument="pipeline")
        self._free = [b.free() if isinstance(b, BoundedBackend) else math.inf for b in self._stages]
        self.counts = self._fit(wanted)

    def _require_overrides(self) -> None:
        require_matches(self.overrides, (leaf.name for leaf in self._graph.leaves("weight")))
        communicator = self._stages[0].communicator
        if self.overrides and communicator is not None and communicator.ranks > 1:
            problem = "override_tensor and n_cpu_moe are not for tensor_parallel"
            raise UsageError(problem, argument="override_tensor")
        if self._host >= len(self._backends) and any(each.device == "cpu" for each in self.overrides):
            raise UsageError("override_tensor: there is no backend but the first", argument="override_tensor")

    def _fit(self, wanted: GpuLayers) -> tuple[int, ...]:
        if (counts := self.divided(self.layers)) is not None:
            return counts
        if wanted == "auto" and self._others and (moved := self._move_experts()):
            log.warning("experts of %d of %d layers are on the CPU: the GPU's memory lacks room", moved, self.n_layer)
            if (counts := self.divided(self.layers)) is not None:
                return counts
        fitting = self.fitting()
        if wanted != "auto" or not self._others:
            needed, free = _shown(self.needed(self._given or self._even(self.layers))), _shown(self._free)
            raise BackendError(
                f"device {self._stages[0].name}: {self.layers} of {self.n_layer} layers take {needed} GiB, but "
                f"{free} GiB are free: {self.advice(fitting)}"
            )
        self.layers = fitting
        log.warning("%d of %d layers fit the GPU's memory; the others run on the CPU", fitting, self.n_layer)
        return self.divided(fitting) or self._even(0)

    def _move_experts(self) -> int:
        """Have the CPU have the experts of as few of the first layers as it takes, or of all; how many."""
        if not self._has_experts() or self._stages[0].communicator is not None:
            return 0
        given = self.overrides

        def lacks(layers: int) -> bool:
            self._override((*given, experts_on_cpu(layers)))
            return self.divided(self.layers) is None

        fewest = last_true(self.n_layer, lacks) + 1
        moved = min(fewest, self.n_layer)
        self._override((*given, experts_on_cpu(moved)))
        return moved

    def _has_experts(self) -> bool:
        return any(experts_on_cpu("all").is_for(leaf.name) for leaf in self._graph.leaves("weight"))

    @property
    def cpu_experts(self) -> int:
        """How many layers that are on a device have experts on the CPU."""
        names = {leaf.name for leaf in self._graph.leaves("weight") if device_of(leaf.name, self.overrides) == "cpu"}
        found = {split_layer(name)[0] for name in names if experts_on_cpu("all").is_for(name)}
        first = self.n_layer - self.layers
        return sum(layer is not None and layer >= first for layer in found) if self._host else 0

    def _override(self, overrides: Overrides) -> None:
        self.overrides = overrides
        self._sizes = _layer_bytes(self._graph, self.n_layer, self._limits, overrides)
        self._schedules: dict[tuple[int, ...], Schedule] = {}

    def advice(self, layers: int) -> str:
        """What to do where memory is short and this many layers would fit."""
        if self._stages[0].communicator is not None:
            return "more ranks or stages have less each, as has a smaller --ctx-size"
        if self._has_experts() and not self.overrides:
            return "--n-cpu-moe N keeps experts of the first N layers on the CPU"
        return f"--gpu-layers {layers} would fit" if layers else "none fits: try a smaller --ctx-size, or --device cpu"

    def advice_after(self) -> str:
        """What to do after memory was short although all seemed to fit: at least one layer fewer."""
        self._free = [b.free() if isinstance(b, BoundedBackend) else 0 for b in self._stages]
        return self.advice(min(self.fitting(), max(self.layers - 1, 0)))

    def divided(self, layers: int) -> tuple[int, ...] | None:
        """How many of the last `layers` each stage has, as even in bytes as the free memory lets it be; None where they
        do not fit."""
        counts, tried = self._even(layers), list[tuple[int, ...]]()
        bounded = any(isinstance(b, BoundedBackend) for b in self._stages)
        if self._given is not None:
            return self._given if self._fits(self._given) else None
        if not layers or (len(counts) == 1 and not bounded):
            return counts
        sizes, joined = self._last(layers)
        while counts not in tried and len(tried) < TRIES:
            tried.append(counts)
            beside = [n - size for n, size in zip(self.needed(counts), _sums(sizes, counts), strict=True)]
            found = even_parts(sizes, beside, self._free, joined)
            if found is None or found == counts:
                return found
            counts = found
        return next(filter(self._fits, tried), None)

    def _fits(self, counts: tuple[int, ...]) -> bool:
        return all(needed <= free for needed, free in zip(self.needed(counts), self._free, strict=True))

    def _even(self, layers: int) -> tuple[int, ...]:
        """How many layers each stage would have if bytes of layers were all."""
        (sizes, joined), n_stages = self._last(layers), len(self._stages)
        found = even_parts(sizes, [0] * n_stages, [math.inf] * n_stages, joined)
        assert found is not None
        return found

    def _last(self, layers: int) -> tuple[list[int], list[bool]]:
        """The bytes of the last layers, and which go with the layer before."""
        first = self.n_layer - layers
        return self._sizes[first:], [False, *self._joined[first + 1 :]][:layers]

    def needed(self, counts: tuple[int, ...]) -> list[int]:
        """Bytes on each stage, if it has this many layers: of what lasts, and of what it computes with."""
        made, found = self._scheduled(counts), []
        for stage, backend in enumerate(self._stages):
            nodes = made.on(stage)
            if isinstance(backend, BoundedBackend):
                kept = backend.needs(nodes, self._limits)
            else:
                kept = sum(leaf_bytes(leaf, self._limits) for leaf in lasting(nodes))
            found.append(made.memory[stage] + kept)
        if self._adapted is not None:
            with_tables = self._schedule(self._place(counts), self._adapted)
            for stage in range(len(found)):
                tables = [leaf for leaf in lasting(with_tables.on(stage)) if leaf.op == "adapters"]
                found[stage] += with_tables.memory[stage] + sum(leaf_bytes(leaf, self._limits) for leaf in tables)
        return found

    def scheduled(self, place: Place | None, *, strict: bool) -> Schedule:
        """The graph as it runs with the layers as they are placed, or each weight as `place` says.

        Warns of nodes that run elsewhere than meant; with `strict` they raise GraphError.
        """
        made = self._scheduled(self.counts) if place is None else self._schedule(place)
        return with_fallbacks_told(made, strict=strict)

    @property
    def place(self) -> Place:
        """Where weights lie."""
        return self._place(self.counts)

    def _place(self, counts: tuple[int, ...]) -> Place:
        usual = in_order(self._graph, self.n_layer, counts)
        return with_overrides(usual, self.overrides, len(self._stages), self._host)

    def _scheduled(self, counts: tuple[int, ...]) -> Schedule:
        if counts not in self._schedules:
            self._schedules[counts] = self._schedule(self._place(counts))
        return self._schedules[counts]

    def _schedule(self, place: Place, graph: Graph | None = None) -> Schedule:
        return scheduled(
            graph or self._graph, self._backends, self._limits, place, fused=self._fused, searched=self._searched
        )

    def fitting(self) -> int:
        """The most layers that free memory holds; one layer fewer never takes more."""
        return last_true(self.n_layer, lambda layers: self.divided(layers) is not None)


def scheduled(
    graph: Graph, backends: Sequence[Backend], limits: Sizes, place: Place, *, fused: bool, searched: bool = True
) -> Schedule:
    """A graph lowered, its logits searched for candidates where they are made, if that can be, and scheduled."""
    graph = lower(graph, backends, place, fused=fused)
    where, _ = assign(graph, backends, place)
    if searched and (backend := finder(graph, where, backends)) is not None:
        graph = with_candidates(graph, backend)
    return schedule(graph, backends, limits, place=place, quiet=True)


def _layer_bytes(graph: Graph, n_layer: int, limits: Sizes, overrides: Overrides) -> list[int]:
    """Bytes of the weights, caches and states of each layer that lie where it does."""
    found = [0] * n_layer
    for leaf in lasting(graph.nodes):
        layer, _ = split_layer(leaf.name)
        if layer is not None and layer < n_layer and device_of(leaf.name, overrides) != "cpu":
            found[layer] += leaf_bytes(leaf, limits)
    return found


def _joined(graph: Graph, n_layer: int) -> list[bool]:
    """Which layers have to be where the one before them is: those from one whose cache a later one reads up to that."""
    found = [False] * n_layer
    for node in (n for n in graph.nodes if n.op == "attention"):
        (written, _), (read, _) = split_layer(root(node.inputs[1]).name), split_layer(node.name)
        if written is not None and read is not None:
            found[written + 1 : read + 1] = [True] * (read - written)
    return found


def _sums(sizes: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The sum of each run of `sizes`."""
    return [sum(sizes[start:end]) for start, end in pairwise(accumulate(counts, initial=0))]


def even_parts(
    sizes: Sequence[int], beside: Sequence[int], room: Sequence[float], joined: Sequence[bool]
) -> tuple[int, ...] | None:
    """How many of `sizes` each part gets, runs of them in order, so that the parts with what they have `beside` are as
    even as `room` for each lets them be: with the least sum of squares. None where they do not fit.

    Those that are `joined` are in one part with the one before; a part is empty only where there are too few others.
    """
    least, ends = int(len(sizes) - sum(joined) >= len(beside)), list(accumulate(sizes, initial=0))
    whole = [end for end in range(len(ends)) if end == len(sizes) or not joined[end]]
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for other, most in zip(beside, room, strict=True):
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (cost, counts) in best.items():
            for end in (end for end in whole if end >= start + least):
                nbytes = ends[end] - ends[start] + other
                total = cost + nbytes * nbytes
                if nbytes <= most and (end not in found or total < found[end][0]):
                    found[end] = total, (*counts, end - start)
        best = found
    return best[len(sizes)][1] if len(sizes) in best else None


def _shown(sizes: Sequence[float]) -> str:
    return " + ".join(f"{nbytes / GIB:.2f}" for nbytes in sizes)


def last_true(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` of which `holds` is true, which it is up to there; 0 if of none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
