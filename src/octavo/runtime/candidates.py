"""Graphs that find the largest of their logits themselves, so that only these need to come to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.graph.node import Graph
from octavo.graph.ops import apply
from octavo.graph.protocol import AsyncBackend, Backend

LOGITS, BEST, BEST_ID, CANDIDATES = range(4)
"""Outputs of a graph with candidates: logits; `top_candidates` of one; its token alone; of MAX_CANDIDATES."""

MAX_CANDIDATES = 64
"""Candidates that a graph finds; for more of them all logits are read."""


def can_find(graph: Graph, where: Mapping[int, int], backends: Sequence[Backend]) -> bool:
    """Whether all of a graph of logits runs on one backend, and that one finds candidates.

    `where` gives the number of the backend of each node by its id.
    """
    used = {where[id(n)] for n in graph.nodes if not n.is_leaf}
    (logits,) = graph.outputs
    if len(used) != 1 or not isinstance(logits.shape[-1], int):
        return False
    backend = backends[used.pop()]
    return isinstance(backend, AsyncBackend) and backend.supports(apply("top_candidates", logits, k=1))[0]


def with_candidates(graph: Graph) -> Graph:
    """A graph of logits, with the largest of them among its outputs."""
    (logits,) = graph.outputs
    n = logits.shape[-1]
    assert isinstance(n, int)
    best = apply("top_candidates", logits, k=1, label="best")
    candidates = apply("top_candidates", logits, k=min(MAX_CANDIDATES, n), label="candidates")
    return Graph.of(logits, best, apply("columns", best, start=1, size=1, label="best"), candidates)
