"""Vectors of the tokens of texts, by a model that generates, with the weights and the cache that it has loaded."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np

from octavo.formats.spec import F32
from octavo.graph.lower import lower
from octavo.graph.schedule import schedule
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.cache.window_pool import pages_for
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.thread import Pieces

TEXTS = 32
"""The most texts in a step."""


def whole(vectors: F32) -> F32:
    """All of a text's vectors."""
    return vectors


class VectorSteps:
    """Steps that give what logits are made of, in place of logits, beside those of an engine.

    The graph of these is another one over the weights and the cache that the engine has; it has memory of its own for
    the values of a step.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, config = engine, engine.config
        tokens, windows = config.n_batch, engine.pool.windows
        self.texts = min(TEXTS, tokens) if windows is None and engine.pool.states is None else config.max_sequences
        backends, place = engine.backends, engine.place
        graph = engine.graph_of(vectors=True, window_pages=windows is not None)
        sizes = {"tokens": tokens, "outputs": tokens, "sequences": self.texts, "boundaries": self.texts + 1}
        limits = {**engine.limits, **sizes}
        graph = lower(graph, backends, place, fused=config.fuse)
        planned = schedule(graph, backends, limits, place=place, quiet=True)
        engine.load()
        self.executor = engine.executor_for(planned, limits)

    def computed(
        self, texts: Seq[Seq[int]], room: Callable[[], int], kept: Callable[[F32], F32] = whole
    ) -> Pieces[list[F32]]:
        """For each text what is `kept` of its tokens' vectors, float32 [tokens, n_embd]; a step has up to `room()`.

        Short texts share a step; a longer one takes several, between which it holds its pages. Raises CacheFullError
        where others hold too many.
        """
        begun: dict[int, list[F32]] = {}
        found: dict[int, F32] = {}
        waiting = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
        held: dict[int, Sequence] = {}
        try:
            while waiting:
                parts = self._parts(texts, waiting, held, room())
                feeds = [Feed(held[i], part, outputs=len(part)) for i, part in parts]
                for (i, _), rows in zip(parts, self._step(feeds), strict=True):
                    begun.setdefault(i, []).append(rows)
                    if len(held[i]) == len(texts[i]):
                        waiting.remove(i)
                        found[i] = kept(np.concatenate(begun.pop(i)))
                        self.engine.pool.release(held.pop(i))
                yield
        finally:
            for sequence in held.values():
                self.engine.pool.release(sequence)
        return [found[i] for i in range(len(texts))]

    def _parts(
        self, texts: Seq[Seq[int]], waiting: Seq[int], held: dict[int, Sequence], room: int
    ) -> list[tuple[int, Seq[int]]]:
        """What a step takes of the texts, the shortest first; at most one of them is not whole after it."""
        room, pages = max(min(room, self.engine.config.n_batch), 1), self.engine.pool.free
        parts: list[tuple[int, Seq[int]]] = []
        for i in reversed(waiting):
            pages -= pages_for(len(texts[i]))
            if not room or len(parts) == self.texts or (parts and pages < 0):
                break
            done = len(held.setdefault(i, Sequence()))
            parts.append((i, texts[i][done : done + room]))
            room -= len(parts[-1][1])
        return parts

    def _step(self, feeds: list[Feed]) -> list[F32]:
        engine = self.engine
        with engine.appending(feeds):
            (rows,) = self.executor.run(*engine.batch(feeds))
            if not np.isfinite(rows).all():
                raise engine.not_finite()
        return np.split(rows, np.cumsum([feed.outputs for feed in feeds])[:-1])
