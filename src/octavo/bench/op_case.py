"""What an op case is: a graph of one op with inputs, run on any backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.bench.op_graphs import GRAPHS, Sketch, pointwise
from octavo.formats.spec import AnyArray
from octavo.graph.executor import Executor
from octavo.graph.factors import LowRank
from octavo.graph.lower import lower
from octavo.graph.node import PAGE_SIZE, Graph, Sizes
from octavo.graph.pointwise import POINTWISE
from octavo.graph.protocol import Backend
from octavo.graph.schedule import schedule
from octavo.runtime.cache.page_pool import PagePool
from octavo.runtime.cache.page_pool import Sequence as Tokens
from octavo.runtime.cache.state_pool import StatePool
from octavo.runtime.engine.batch import Feed, make_batch

Step = tuple[Mapping[str, AnyArray], Sizes]


@dataclass(frozen=True)
class Built:
    """A case's graph, the steps to run one after the other (inputs by name, and sizes), the largest sizes, adapters."""

    graph: Graph
    steps: tuple[Step, ...]
    limits: Sizes
    adapters: Sequence[Mapping[str, LowRank]] = ()


@dataclass(frozen=True, eq=False)
class OpCase:
    """An op on one shape.

    op         a name of GRAPHS: an op, or a fused op, of which the pattern of plain ops is built
    tokens     tokens in the step
    shape      the other sizes, as the op's graph names them (n outputs, k inputs, heads, ...)
    formats    of its weights, in order; the last one for all further weights
    past       tokens that each sequence has already (attention): they are a step of their own, before; `tokens` are
               divided among the sequences, the first ones getting one more where that does not go up; as many as a
               shape has `decodes` get one each
    """

    op: str
    tokens: int
    shape: Mapping[str, Any] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    past: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """As `mul_mat-Q4_K-n50-k512-t3`: every part of the case."""
        sizes = [f"{key}{value}" for key, value in self.shape.items()]
        past = ["past" + "_".join(map(str, self.past))] if self.past else []
        return "-".join([self.op, *self.formats, *sizes, *past, f"t{self.tokens}"])

    def build(self, rng: np.random.Generator | None = None) -> Built:
        """The case with weights and inputs drawn from `rng` (default: a fixed one, so the same each time)."""
        sketch = Sketch(rng or np.random.default_rng(0), self.formats, self.shape)
        op = POINTWISE.get(self.op)
        graph = Graph.of(GRAPHS[self.op](sketch) if op is None else pointwise(sketch, op))
        steps, rows = [], 0
        for inputs, sizes, cache_rows in self._steps():
            drawn = {name: draw(sizes["tokens"]) for name, draw in sketch.draws.items()}
            steps.append(({**inputs, **drawn}, sizes))
            rows = cache_rows
        most = {name: max(sizes[name] for _, sizes in steps) for name in steps[0][1]}
        limits = {"pages": max(rows // PAGE_SIZE, 1), "rows": max(rows, 1), "states": len(self.past or (0,))}
        return Built(graph, tuple(steps), {**most, **limits}, sketch.adapters)

    @property
    def sequences(self) -> tuple[list[int], list[int]]:
        """Of each sequence, the tokens that it has already and those of the last step."""
        past = list(self.past or (0,))
        ones = self.shape.get("decodes", 0)
        share, more = divmod(self.tokens - ones, len(past) - ones)
        return past, [1] * ones + [share + (i < more) for i in range(len(past) - ones)]

    def _steps(self) -> Iterator[tuple[Mapping[str, AnyArray], Sizes, int]]:
        """Where the sequences of each step lie, its sizes, and the rows of the cache."""
        past, new = self.sequences
        sequences = _scattered([p + n for p, n in zip(past, new, strict=True)])
        n_pages = sum(len(s.pages) for s in sequences)
        parts = [past, new] if any(past) else [new]
        for part in parts:
            feeds = [Feed(s, [0] * n) for s, n in zip(sequences, part, strict=True) if n]
            inputs, sizes = make_batch(feeds, n_pages)
            yield inputs, sizes, n_pages * PAGE_SIZE
            for feed in feeds:
                feed.sequence.tokens.extend(feed.tokens)


def _scattered(lengths: Sequence[int]) -> list[Tokens]:
    """Empty sequences with pages for these lengths; pages are given out in turn, so none has its own in a row."""
    sequences = [Tokens() for _ in lengths]
    pool = PagePool(sum(-(-n // PAGE_SIZE) for n in lengths), states=StatePool(len(lengths)))
    for size in range(PAGE_SIZE, max(lengths) + PAGE_SIZE, PAGE_SIZE):
        for sequence, length in zip(sequences, lengths, strict=True):
            pool.grow(sequence, min(size, length))
    return sequences


def executor(built: Built, backends: Sequence[Backend]) -> Executor:
    """The case lowered for the first of the backends, as an engine does it, and its weights loaded."""
    graph = lower(built.graph, backends)
    made = Executor(schedule(graph, backends, built.limits, strict=True), backends, built.limits)
    for slot, added in enumerate(built.adapters):
        made.put_adapter(slot, added)
    return made


def run(built: Built, backends: Sequence[Backend]) -> list[AnyArray]:
    """The result of each step. Raises GraphError where the first backend can't run the case."""
    ready = executor(built, backends)
    return [ready.run(inputs, sizes)[0] for inputs, sizes in built.steps]
