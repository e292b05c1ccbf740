"""Graphs that find the largest of their logits themselves, so that only these need to come to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.formats.part import Span
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

Hidden states, where a graph gives them beside logits, are the last one.
"""

MAX_CANDIDATES = 64
"""Candidates that a graph finds; for more of them all logits are read."""


def finder(graph: Graph, where: Mapping[int, int], backends: Sequence[Backend]) -> Backend | None:
    """The backend that makes a graph's logits, if it finds candidates.

    `where` gives the number of the backend of each node by its id.
    """
    logits = graph.outputs[0]
    if logits.is_leaf or not isinstance(logits.shape[-1], int):
        return None
    backend = backends[where[id(logits)]]
    able = backend.chooses or isinstance(backend, AsyncBackend)
    return backend if able and backend.supports(apply("top_candidates", logits, k=1))[0] else None


def with_candidates(graph: Graph, backend: Backend) -> Graph:
    """A graph of logits, and of hidden states if it has any, with the outputs above. CHANGED changes the logits in
    their place, after all others.

    Of logits that are gathered of parts on several ranks the parts are searched, and only what was found is gathered.
    """
    logits, *hidden = graph.outputs
    n = logits.shape[-1]
    assert isinstance(n, int)
    k = min(MAX_CANDIDATES, n)
    rows = _Parts(logits) if _is_divided(logits, k) else _Rows(logits)
    best, found = rows.top(rows.logits, 1, "best"), rows.top(rows.logits, k, "candidates")
    places, changes = _input("places", "adjusted", 2), _input("changes", "adjusted", 2, "f32")
    masked = Node("input", (), ("masked",), "i32", name="masked")
    masks = _input("masks", "masked", -(-n // 32))
    changed = apply("adjust", rows.logits, rows.places(places), changes, label="changed")
    changed = apply("mask", changed, masked, rows.masks(masks), label="masked")
    of_changed = rows.top(changed, k, "changed candidates")
    drawn = apply("draw", found, _input("draws", "outputs", 12), label="drawn")
    more = (drawn,) if backend.supports(drawn)[0] else ()
    return Graph.of(logits, best, found, rows.total(), of_changed, *more, *hidden)


class _Rows:
    """Logits, and how they are searched."""

    def __init__(self, logits: Node) -> None:
        self.logits = logits

    def top(self, logits: Node, k: int, label: str) -> Node:
        return apply("top_candidates", logits, k=k, label=label)

    def total(self) -> Node:
        return apply("log_sum_exp", self.logits, label="total")

    def places(self, places: Node) -> Node:
        return places

    def masks(self, masks: Node) -> Node:
        return masks


class _Parts(_Rows):
    """A rank's part of logits, a run of columns at a place that is a multiple of 32."""

    def __init__(self, logits: Node) -> None:
        super().__init__(logits.inputs[0])
        self._rank: int = logits.attrs["rank"]
        self._spans: list[Span] = [cut[0] for cut in logits.attrs["parts"]]
        self._first, stop = self._spans[self._rank]
        self._count = stop - self._first

    def top(self, logits: Node, k: int, label: str) -> Node:
        found = self._gathered(super().top(logits, k, label), 1 + 2 * k, label)
        return apply("merge_candidates", found, k=k, firsts=tuple(first for first, _ in self._spans), label=label)

    def total(self) -> Node:
        return apply("log_sum_exp", self._gathered(super().total(), 1, "total"), label="total")

    def places(self, places: Node) -> Node:
        return apply("local_places", places, first=self._first, count=self._count, label="places")

    def masks(self, masks: Node) -> Node:
        return apply("columns", masks, start=self._first // 32, size=-(-self._count // 32), label="masks")

    def _gathered(self, x: Node, width: int, label: str) -> Node:
        parts = tuple(((r * width, (r + 1) * width),) for r in range(len(self._spans)))
        return apply("all_gather", x, axis=1, rank=self._rank, parts=parts, label=label)


def _is_divided(logits: Node, k: int) -> bool:
    """Whether ranks have parts of logits that can be searched by themselves."""
    if logits.op != "all_gather":
        return False
    spans = [cut[0] for cut in logits.attrs["parts"] if len(cut) == 1]
    return len(spans) == len(logits.attrs["parts"]) and all(b - a >= k and a % 32 == 0 for a, b in spans)


def _input(name: str, rows: str, columns: int, dtype: DType = "i32") -> Node:
    return Node("input", (), (rows, columns), dtype, name=name)
