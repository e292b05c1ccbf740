"""How near a step comes to what its machine can do: the least time to read what it reads, and to multiply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.bench.cost import Cost, OpLoad, cost
from octavo.bench.gemm import gemm_limits
from octavo.bench.limits import read_limit_of
from octavo.formats.activation import ACTIVATIONS, ROW
from octavo.graph.node import Node
from octavo.graph.protocol import Backend

_IN_BYTES = {one.name: one.group for one in ACTIVATIONS if one.bits == 8}
"""Activations of 8 bits, and how many of them share a scale."""

Side = Literal["reading", "multiplying"]


@dataclass(frozen=True)
class Bound:
    """Seconds that something takes at least: to read its bytes, and to multiply; 0 where that is not known.

    `unknown` are those of products whose limit is not known, at that of 8-bit numbers, which no others exceed.
    """

    reading: float = 0.0
    multiplying: float = 0.0
    unknown: float = 0.0

    def __add__(self, other: Bound) -> Bound:
        return Bound(
            self.reading + other.reading, self.multiplying + other.multiplying, self.unknown + other.unknown
        )

    def share(self, seconds: float) -> tuple[float, Side] | None:
        """The larger of the two as a part of `seconds`, and which it is; None where neither is known, and where more
        time than that goes to multiplying whose limit is not known."""
        most = max(self.reading, self.multiplying)
        if most <= self.unknown:
            return None
        return most / seconds, "reading" if self.reading >= self.multiplying else "multiplying"


@dataclass(frozen=True)
class Roofline:
    """A backend's limits: GB/s that it reads, and operations by the bits of numbers, 10^9 a second; 0 or none for
    what is not known."""

    backend: str
    read: float = 0.0
    gops: Mapping[int, float] = field(default_factory=dict)

    def bound(self, node: Node, does: Cost) -> Bound:
        """What a node takes at least."""
        gops, most = self.gops.get(self._bits(node), 0.0), self.gops.get(8, 0.0)
        reading = (does.weights + does.cache) / self.read / 1e9 if self.read else 0.0
        multiplying = does.operations / (gops or most) / 1e9 if most else 0.0
        return Bound(reading, multiplying) if gops else Bound(reading, 0.0, multiplying)

    def step(self, nodes: Iterable[Node], load: OpLoad) -> Bound:
        """What a step of these nodes takes at least."""
        return sum((self.bound(node, cost(node, load)) for node in nodes if not node.is_leaf), Bound())

    def _bits(self, node: Node) -> int:
        """Of the numbers that a node multiplies. On a GPU those of blocks become halves where many are multiplied."""
        groups = [_IN_BYTES[i.dtype] for i in node.inputs if i.dtype in _IN_BYTES]
        return 8 if groups and (self.backend == "cpu" or ROW in groups) else 16


def roofline_of(backend: Backend, threads: int) -> Roofline:
    """Measured: how fast the backend reads memory, and a CPU multiplies 8-bit numbers. Those of a GPU follow from its
    multiprocessors and their clock, and it multiplies half as many of 16 bits. Nothing of interpreted kernels."""
    limit = read_limit_of(backend, threads)
    if limit is None or backend.name not in ("cpu", "gpu"):
        return Roofline(backend.name)
    if backend.name == "cpu":
        return Roofline("cpu", limit(), {8: gemm_limits.dot_limit(threads)})
    eight = gemm_limits.dots_of_gpu()
    return Roofline("gpu", limit(), {8: eight, 16: eight / 2} if eight else {})
