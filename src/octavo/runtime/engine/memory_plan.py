"""Whether the system's memory holds a model, counted before any of its weights are read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo.errors import HostMemoryError
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.graph.node import PAGE_SIZE, Node, Sizes, kept_bytes, leaf_bytes
from octavo.graph.protocol import Backend, BoundedBackend, HostBackend
from octavo.graph.schedule import Schedule
from octavo.io.system_memory import room
from octavo.runtime.engine.engine_config import EngineConfig

log = logging.getLogger("octavo")

GIB = 1 << 30
LEAST_CONTEXT = 256
"""Tokens of the smallest context that is worth an advice."""
SMALL_CACHE = 64 << 20
"""Bytes of the smallest cache that is worth an advice."""
Q8_0_SHARE = 34 / 64
"""The bytes of a q8_0 cache over those of an f16 cache."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a model takes once it is loaded: of weights, of full caches, and of what steps work with."""

    weights: int
    caches: int
    work: int

    def beside(self, schedule: Schedule, limits: Sizes) -> Needs:
        """With the values and the tables of adapters of another schedule over the same weights and caches."""
        tables = sum(leaf_bytes(leaf, limits) for leaf in schedule.graph.leaves("adapters"))
        return Needs(self.weights, self.caches, self.work + sum(schedule.memory) + tables)

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.work


def needs_on(backend: Backend, nodes: Sequence[Node], limits: Sizes, values: int) -> Needs:
    """What some nodes take on their backend, whose `values` take as many bytes; nothing on one that tells nothing."""
    if isinstance(backend, HostBackend):
        return Needs(backend.weight_bytes(nodes), backend.cache_bytes(nodes, limits), values)
    if isinstance(backend, BoundedBackend):
        tensors = {id(leaf.tensor): leaf.tensor for node in nodes for leaf in node.inputs if leaf.op == "weight"}
        weights, caches = sum(tensor.nbytes for tensor in tensors.values()), kept_bytes(nodes, limits)
        return Needs(weights, caches, max(backend.needs(nodes, limits) - weights - caches, 0) + values)
    return Needs(0, 0, values)


def needs_of(
    schedule: Schedule, backends: Sequence[Backend], limits: Sizes, ranks: int = 1, *, host: bool = False
) -> Needs:
    """What a model takes on all its backends, or on those of the `host` alone, of as many ranks."""
    found = [needs_on(one, nodes, limits, schedule.memory[i]) for i, one in enumerate(backends)
             if (nodes := schedule.on(i)) and (isinstance(one, HostBackend) or not host)]
    return Needs(*(ranks * sum(getattr(one, name) for one in found) for name in ("weights", "caches", "work")))


def require_memory(
    schedule: Schedule, backends: Sequence[Backend], limits: Sizes, n_ctx: int, config: EngineConfig,
    ranks: int = 1, mapped: int = 0,
) -> None:
    """Raise HostMemoryError, saying what would fit, unless weights, full caches and values fit the system's memory.

    There are `ranks` that need as much. Of the weights `mapped` bytes are in files that the system reads again where
    memory is short. A model that needs that, or swap, is let through with a warning. Where the system does not tell
    what is free, all fits.
    """
    found = room()
    if found is None:
        return
    needs = needs_of(schedule, backends, limits, ranks, host=True)
    weights, caches, values, needed = needs.weights, needs.caches, needs.work, needs.total
    mapped = min(mapped * ranks, weights)
    if needed <= found.free:
        return
    if needed - mapped <= found.free:
        log.warning(
            "the weights take %.2f GiB, but %.2f GiB of memory are free beside the cache: they are read from the disk "
            "again and again, which is slow", weights / GIB, (found.free - caches - values) / GIB,
        )
        return
    says = (
        f"{needed / GIB:.2f} GiB of memory are needed (weights {weights / GIB:.2f}, {n_ctx} tokens of context "
        f"{caches / GIB:.2f}, work {values / GIB:.2f}), but {found.free / GIB:.2f} GiB are free"
    )
    if needed <= found.free + found.swap:
        log.warning("%s: the system will swap, which is slow", says)
        return
    fewer = f"fewer ranks than {ranks} need less; " if ranks > 1 else ""
    raise HostMemoryError(f"{says}: {fewer}{_advice(found.free - values, weights, caches, n_ctx, config)}")


def _smaller_caches(left: int, caches: int, n_ctx: int, config: EngineConfig) -> Iterator[str]:
    """Caches that fit `left` bytes, which `caches` of these are too many for."""
    if config.kv_memory is not None:
        if left >= SMALL_CACHE:
            yield f"a cache (kv_memory) of {left * 100 // GIB / 100:.2f} GiB"
        return
    if (context := left * n_ctx // caches // PAGE_SIZE * PAGE_SIZE) >= min(LEAST_CONTEXT, n_ctx):
        yield f"a context of {context} tokens"
    if sequences := max(0, left) * config.max_sequences // caches:
        yield f"a cache for {sequences} of {config.max_sequences} sequences"
    if CACHE_FORMATS[config.cache_type].group is None and caches * Q8_0_SHARE <= left:
        yield "a cache in q8_0"


def _advice(free: int, weights: int, caches: int, n_ctx: int, config: EngineConfig) -> str:
    """What would fit beside the values: a smaller cache, or a smaller model."""
    fitting = list(_smaller_caches(free - weights, caches, n_ctx, config)) if caches else []
    if fitting:
        return f"{' or '.join(fitting)} would fit"
    most = (free - caches * min(LEAST_CONTEXT, n_ctx) / n_ctx) / GIB
    if most <= 0:
        return "close other programs, or use a machine with more memory"
    return f"weights of less than {most:.2f} GiB would fit, such as those of the same model quantized to fewer bits"
