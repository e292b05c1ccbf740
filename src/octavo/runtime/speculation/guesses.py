"""Several guesses of a head in one step, each with the likeliest token of the one before: a draft of a greedy reply.

On the CPU what a small head computes takes less time than a step's way there and back.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.graph.executor import Executor
from octavo.graph.node import Sizes
from octavo.graph.schedule import Schedule
from octavo.models.shared.head import HeadSpec
from octavo.runtime.cache.page_pool import rows
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.kernels_ahead import compile_ahead
from octavo.runtime.engine.memory_plan import needs_of
from octavo.runtime.engine.placement import scheduled


def work_of_guesses(engine: Engine, most: int, read: int) -> int:
    """Bytes that guesses work with beside the engine of a head; nothing is loaded."""
    made, limits = _planned(engine, most, read)
    return needs_of(made, engine.backends, limits).work


def _planned(engine: Engine, most: int, read: int) -> tuple[Schedule, Sizes]:
    """What computes guesses, and its sizes at the most."""
    assert isinstance(engine.model, HeadSpec)
    graph = engine.model.guesses(most, cache_type=engine.config.cache_type, n_ctx=engine.n_ctx)
    sequences = engine.config.max_sequences
    limits = {**engine.limits, "tokens": min(engine.limits["tokens"], read * sequences), "outputs": sequences}
    return scheduled(graph, engine.backends, limits, engine.place, fused=engine.config.fuse, searched=False), limits


class Guesses:
    """Makes up to `most` tokens at once with a head's engine, whose weights and cache it shares.

    read  the most tokens that a sequence lacks before the first guess
    """

    def __init__(self, engine: Engine, most: int, read: int) -> None:
        self.engine, self.most = engine, most
        made, limits = _planned(engine, most, read)
        loaded = engine.load()
        compile_ahead(made, engine.backends, limits)
        self._executor = Executor(made, engine.backends, limits, (0,), loaded)

    def of(self, feeds: Seq[Feed], n: int) -> AnyArray:
        """The next n tokens of each feed, which has one output, int [feeds, n]. Their sequences have the pages for all
        of these but the last, but not yet their tokens."""
        order = sorted(range(len(feeds)), key=lambda i: len(feeds[i].tokens) != 1)  # as a batch has them
        some = [feeds[i] for i in order]
        inputs, sizes = self.engine.batch(some)
        stops = np.array([feed.stop for feed in some], np.int32)
        for i in range(n - 1):
            inputs[f"positions_{i + 1}"] = stops + i
        places = np.array([rows(feed.sequence.pages, feed.stop, feed.stop + n - 1) for feed in some], np.int64)
        for i in range(n - 1):
            inputs[f"rows_{i + 1}"] = places[:, i]
        made = self._executor.launch(inputs, sizes, tuple(range(n))).read()
        found = np.empty((len(feeds), n), np.int32)
        found[order] = np.stack(made, 1)
        return found
