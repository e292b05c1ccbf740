"""Graphs that find the largest of their logits themselves, so that only these need to come to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.graph.node import DType, Graph, Node
from octavo.graph.ops import apply
from octavo.graph.protocol import AsyncBackend, Backend

LOGITS, BEST, CANDIDATES, TOTAL, CHANGED, DRAWN = range(6)
"""Outputs of a graph with candidates.

LOGITS      [outputs, n_vocab]
BEST        `top_candidates` of one
CANDIDATES  `top_candidates` of MAX_CANDIDATES
TOTAL       `log_sum_exp`
CHANGED     as CANDIDATES, after inputs `places` and `changes` of op `adjust`, `masked` and `masks` of op `mask`; LOGITS
            of the rows that these name are others then
DRAWN       `draw` from CANDIDATES, after input `draws`; not on every backend
"""

MAX_CANDIDATES = 64
"""Candidates that a graph finds; for more of them all logits are read."""


def finder(graph: Graph, where: Mapping[int, int], backends: Sequence[Backend]) -> Backend | None:
    """The backend that makes a graph's logits, if it finds candidates.

    `where` gives the number of the backend of each node by its id.
    """
    (logits,) = graph.outputs
    if logits.is_leaf or not isinstance(logits.shape[-1], int):
        return None
    backend = backends[where[id(logits)]]
    able = backend.chooses or isinstance(backend, AsyncBackend)
    return backend if able and backend.supports(apply("top_candidates", logits, k=1))[0] else None


def with_candidates(graph: Graph, backend: Backend) -> Graph:
    """A graph of logits, with the outputs above. CHANGED changes the logits in their place, after all others."""
    (logits,) = graph.outputs
    n = logits.shape[-1]
    assert isinstance(n, int)
    k = min(MAX_CANDIDATES, n)
    best = apply("top_candidates", logits, k=1, label="best")
    found = apply("top_candidates", logits, k=k, label="candidates")
    total = apply("log_sum_exp", logits, label="total")
    places, changes = _input("places", "adjusted", 2), _input("changes", "adjusted", 2, "f32")
    changed = apply("adjust", logits, places, changes, label="changed")
    masked = Node("input", (), ("masked",), "i32", name="masked")
    changed = apply("mask", changed, masked, _input("masks", "masked", -(-n // 32)), label="masked")
    of_changed = apply("top_candidates", changed, k=k, label="changed candidates")
    drawn = apply("draw", found, _input("draws", "outputs", 12), label="drawn")
    more = (drawn,) if backend.supports(drawn)[0] else ()
    return Graph.of(logits, best, found, total, of_changed, *more)


def _input(name: str, rows: str, columns: int, dtype: DType = "i32") -> Node:
    return Node("input", (), (rows, columns), dtype, name=name)
