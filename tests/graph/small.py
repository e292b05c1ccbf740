"""Small graphs by hand, and what they compute on a backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from octavo.backends.reference import ReferenceBackend
from octavo.graph.builder import constant, weight
from octavo.graph.executor import Executor
from octavo.graph.lower import lower
from octavo.graph.node import DType, Graph, Node
from octavo.graph.protocol import Backend
from octavo.graph.schedule import Place, on_first, schedule

LIMITS = {"tokens": 8, "outputs": 8, "sequences": 2, "boundaries": 3, "pages": 4, "rows": 64}
K = 32


class Limited(ReferenceBackend):
    """A reference backend under another name that refuses some ops."""

    def __init__(self, name: str, *refused: str) -> None:
        super().__init__()
        self.name, self.refused = name, frozenset(refused)

    def supports(self, node: Node) -> tuple[bool, str]:
        return (False, f"no {node.op} here") if node.op in self.refused else super().supports(node)


def given(name: str = "x", *shape: int, dtype: DType = "f32") -> Node:
    """An input [tokens, *shape], by default [tokens, K]."""
    return Node("input", (), ("tokens", *(shape or (K,))), dtype, name=name)


def w(*shape: int, seed: int = 0, name: str = "w.weight") -> Node:
    """A stored weight of random numbers."""
    return weight(
        constant(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32), name).tensor
    )


def ops_of(graph: Graph) -> list[str]:
    """The ops that compute something, in order."""
    return [n.title for n in graph.nodes if not n.is_leaf]


def fuse(graph: Graph, fusions: Collection[str], quantizes: Collection[str] = ()) -> Graph:
    """The graph as it is lowered for a backend that asks for these."""
    return lower(graph, [ReferenceBackend(fusions=fusions, quantizes=quantizes)])


def executor(
    graph: Graph, backends: Sequence[Backend] | None = None, place: Place = on_first, *, strict: bool = False
) -> Executor:
    backends = backends or [ReferenceBackend()]
    return Executor(schedule(graph, backends, LIMITS, place=place, strict=strict), backends, LIMITS)


def values(graph: Graph, tokens: int) -> dict[str, np.ndarray]:
    """Numbers for each input of [tokens, ...], by its name."""
    return {
        n.name: np.random.default_rng([tokens, *n.name.encode()])
        .standard_normal((tokens, *(d for d in n.shape[1:] if isinstance(d, int))))
        .astype(np.float32)
        for n in graph.leaves("input")
    }


def run(graph: Graph, tokens: int = 3, make: Callable[[Graph], Executor] = executor) -> list[np.ndarray]:
    return make(graph).run(values(graph, tokens), {"tokens": tokens})
