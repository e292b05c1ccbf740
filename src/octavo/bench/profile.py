"""Where a step's time goes: each node's call is run alone, in order, and timed; on a GPU by its own events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.bench.cost import Cost, OpLoad, cost
from octavo.bench.roofline import Bound, Roofline, roofline_of
from octavo.bench.subject import require_context, tokens
from octavo.errors import UsageError
from octavo.graph.builder import CacheType
from octavo.graph.names import split_layer
from octavo.graph.node import PAGE_SIZE, Attention, Node
from octavo.graph.plan import Plan
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed, make_batch
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.engine.placement import GpuLayers, backends_for
from octavo.runtime.engine.tensor_overrides import CpuExperts, overrides
from octavo.runtime.lora_adapters import Lora, chosen, located, with_adapters


@dataclass(frozen=True)
class NodeTime:
    """A node of a step: its median seconds over the rounds, the backend that ran it, and what it had to do."""

    node: Node
    backend: str
    seconds: float
    cost: Cost


@dataclass(frozen=True)
class Profile:
    """The nodes in order, and the median seconds of the whole step as it normally runs, its calls joined."""

    nodes: tuple[NodeTime, ...]
    step_seconds: float

    @property
    def seconds(self) -> float:
        """Of all nodes together, run one by one."""
        return sum(n.seconds for n in self.nodes)


def ready_engine(
    file: GGUFFile, device: str, new: int, depth: int, cache_type: CacheType, threads: int | None = None,
    gpu_layers: GpuLayers | None = None, attention: Attention = "exact", lora: Lora | None = None,
    tensor_parallel: int = 1, pipeline: int = 1, weight_cache: bool = True, n_cpu_moe: CpuExperts = 0,
    override_tensor: Mapping[str, str] | None = None,
) -> Engine:
    """An engine for steps of `new` tokens after `depth` others.

    Raises UsageError for a model made for fewer, for several ranks, whose nodes can't run one by one, and for several
    cards, which are timed one at a time.
    """
    if tensor_parallel != 1:
        problem = f"tensor_parallel is {tensor_parallel}, and nodes of one rank can't run by themselves (allowed: 1)"
        raise UsageError(problem, argument="tensor_parallel")
    if pipeline != 1:
        problem = f"pipeline is {pipeline}, and nodes are timed on one device (allowed: 1)"
        raise UsageError(problem, argument="pipeline")
    model, n_ctx, n_batch = with_adapters(read_model(file), located(chosen(lora))), depth + max(new, 1), max(new, 512)
    require_context(model, n_ctx)
    backends, layers = backends_for(device, threads, gpu_layers, attention=attention)
    config = EngineConfig(
        n_ctx=n_ctx, n_batch=n_batch, cache_type=cache_type, gpu_layers=layers, weight_cache=weight_cache,
        overrides=overrides(override_tensor, n_cpu_moe),
    )
    return Engine(model, backends, config)


@contextmanager
def ready_step(engine: Engine, new: int, depth: int) -> Iterator[tuple[Plan, OpLoad]]:
    """The plan of a step of `new` tokens after `depth` others, one sequence, its inputs written, and what it must do.

    Raises UsageError where the step is longer than the engine's steps, ContextFullError where the context is too small.
    """
    most = engine.config.n_batch
    if not 1 <= new <= most:
        raise UsageError(f"a step of {new} tokens (allowed: 1 to {most})")
    sequence = Sequence()
    n_vocab = engine.model.hparams.n_vocab
    try:
        if depth:
            engine.prefill(sequence, tokens(depth, n_vocab))
        engine.pool.grow(sequence, depth + new)
        feed = Feed(sequence, tokens(new, n_vocab, seed=1), second=0)
        inputs, sizes = make_batch([feed], -(-engine.n_ctx // PAGE_SIZE))
        plan = engine.load().plan(sizes)
        for name, values in plan.inputs.items():
            for backend, value in values:
                backend.write(value, inputs[name])
        yield plan, OpLoad({**engine.limits, **sizes}, [depth], [new])
    finally:
        engine.pool.release(sequence)


def profile(engine: Engine, new: int, depth: int = 0, rounds: int = 5) -> Profile:
    """Time a step of `new` tokens after `depth` others, one sequence; `new` = 1 is decode.

    Raises what `ready_step` raises, and UsageError for no rounds.
    """
    if rounds < 1:
        raise UsageError(f"{rounds} rounds (allowed: 1 or more)")
    with ready_step(engine, new, depth) as (plan, load):
        return _time(engine, plan, load, rounds)


def _time(engine: Engine, plan: Plan, load: OpLoad, rounds: int) -> Profile:
    def synchronize() -> None:
        for backend in engine.backends:
            backend.synchronize()

    def measure() -> tuple[float, list[float]]:
        step = _timed(lambda: [call() for call in plan.steps], synchronize)
        return step, [_timed(call, synchronize) for _, call in plan.calls]

    if set(engine.schedule.backends.values()) == {0} and engine.backends[0].name == "gpu":
        from octavo.bench import gpu

        if gpu.has_events(engine.backends[0]):
            measure = partial(gpu.node_times, plan)
    each: list[list[float]] = [[] for _ in plan.calls]
    whole: list[float] = []
    for i in range(rounds + 1):
        step, times = measure()
        if i:  # the first round warms up
            whole.append(step)
            for series, seconds in zip(each, times, strict=True):
                series.append(seconds)
    where = engine.schedule.backends
    nodes = (
        NodeTime(node, engine.backends[where[id(node)]].name, statistics.median(series), cost(node, load))
        for (node, _), series in zip(plan.calls, each, strict=True)
    )
    return Profile(tuple(nodes), statistics.median(whole))


def _timed(run: Callable[[], object], synchronize: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - start


Rooflines = Mapping[str, Roofline]
"""Limits of backends, by their names."""


def rooflines_of(engine: Engine) -> dict[str, Roofline]:
    """What the backends of an engine can do at best, measured now: before it is loaded there is memory for it."""
    used = [engine.backends[i] for i in sorted(set(engine.schedule.backends.values()))]
    return {backend.name: roofline_of(backend, getattr(backend, "threads", 1)) for backend in used}


def bound_of(times: Iterable[NodeTime], rooflines: Rooflines) -> dict[str, Any]:
    """The least time of nodes as a part of what they took, `of_limit`, and whether it is that of reading or of
    multiplying, `bound`; None where neither is known."""
    members = list(times)
    known = [(rooflines[t.backend], t) for t in members if t.backend in rooflines]
    least = sum((roofline.bound(t.node, t.cost) for roofline, t in known), Bound())
    share = least.share(sum(t.seconds for t in members))
    return {"of_limit": None, "bound": None} if share is None else {"of_limit": share[0], "bound": share[1]}


def group(
    times: Iterable[NodeTime], key: Callable[[NodeTime], tuple[str, ...]], rooflines: Rooflines | None = None
) -> list[dict[str, Any]]:
    """Nodes with the same key together, slowest first.

    Keys of a row: key, calls, seconds, share (of all), bytes (of weights and KV cache), gbps, operations, gops, and
    those of `bound_of`.
    """
    groups: dict[tuple[str, ...], list[NodeTime]] = {}
    for t in times:
        groups.setdefault(key(t), []).append(t)
    everything = sum(t.seconds for members in groups.values() for t in members)
    rows = []
    for name, members in groups.items():
        seconds = sum(t.seconds for t in members)
        does = sum((t.cost for t in members), Cost())
        nbytes = does.weights + does.cache
        rows.append({
            "key": list(name), "calls": len(members), "seconds": seconds, "share": seconds / everything,
            "bytes": nbytes, "gbps": nbytes / seconds / 1e9,
            "operations": does.operations, "gops": does.operations / seconds / 1e9,
            **bound_of(members, rooflines or {}),
        })
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def by_op(t: NodeTime) -> tuple[str, ...]:
    """Key of `group`: the op and where it ran."""
    return t.node.title, t.backend


def by_node(t: NodeTime) -> tuple[str, ...]:
    """Key of `group`: the op, its place in a layer, and the formats of its weights: the same node of all layers."""
    formats = [i.tensor.format.name for i in t.node.inputs if i.op == "weight" and len(i.shape) > 1]
    return t.node.title, split_layer(t.node.name)[1], ", ".join(dict.fromkeys(formats))
