"""What is timed: a model in this process, or another program with the same file, behind one protocol."""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from typing import Protocol

from octavo.bench.cost import Cost, OpLoad, total
from octavo.errors import UsageError
from octavo.models import ModelSpec
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.greedy import greedy


class Subject(Protocol):
    """A loaded model. Times are in seconds; the tokens are `tokens(n, n_vocab)` for every subject."""

    name: str
    pid: int
    """The process that computes."""

    def prepare(self, depth: int, batch: int) -> None:
        """Fill the contexts of `batch` sequences with `depth` tokens, in place of what was there."""

    def prefill(self, n: int) -> float:
        """The time for a prompt of n tokens in an empty context, to its last token's logits."""

    def decode(self, n: int) -> float:
        """The time for n steps of a token for each prepared sequence; they are then as they were."""


def require_context(model: ModelSpec, wanted: int) -> None:
    """Raise UsageError where a model was made for fewer tokens than a measurement's depth and tokens come to."""
    most = model.hparams.n_ctx_most
    if wanted > most:
        raise UsageError(
            f"depth and tokens take a context of {wanted}, longer than the model's (allowed: up to {most})"
        )


def tokens(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    """n tokens at random; the standard library's generator, so that a program without NumPy draws the same."""
    draw = random.Random(seed)
    return [draw.randrange(n_vocab) for _ in range(n)]


class EngineSubject:
    """An engine of this package."""

    name = "octavo"

    def __init__(self, engine: Engine) -> None:
        self.engine, self.pid = engine, os.getpid()
        self.depth = 0
        self.sequences: list[Sequence] = []

    def prepare(self, depth: int, batch: int) -> None:
        self._release()
        self.depth = depth
        self.sequences = [Sequence() for _ in range(batch)]
        for i, sequence in enumerate(self.sequences):
            if depth:
                self.engine.prefill(sequence, self._tokens(depth, seed=i))

    def prefill(self, n: int) -> float:
        self._release()
        prompt, sequence = self._tokens(n), Sequence()
        start = time.perf_counter()
        self.engine.prefill(sequence, prompt)
        seconds = time.perf_counter() - start
        self.engine.pool.release(sequence)
        return seconds

    def decode(self, n: int) -> float:
        drawn = self._tokens(n, seed=1)
        if self.engine.supports_async:
            return self._decode_greedily(drawn[0], n)
        start = time.perf_counter()
        for token in drawn:
            self.engine.step([Feed(s, [token]) for s in self.sequences])
        seconds = time.perf_counter() - start
        self._go_back()
        return seconds

    def _go_back(self) -> None:
        """To the depth; what layers with a window have let go of for that is computed again."""
        for i, sequence in enumerate(self.sequences):
            self.engine.pool.shrink(sequence, self.depth)
            if len(sequence) < self.depth:
                self.engine.prefill(sequence, self._tokens(self.depth, seed=i)[len(sequence) :])

    def _decode_greedily(self, first: int, n: int) -> float:
        """The time of n steps where tokens are chosen on the device, as a generation does it."""
        with closing(greedy(self.engine, [Feed(s, [first]) for s in self.sequences])) as chosen:
            start = time.perf_counter()
            for _ in range(n):
                next(chosen)
            seconds = time.perf_counter() - start
        self._go_back()
        return seconds

    def decode_cost(self, batch: int, depth: int) -> Cost:
        """What a decode step of `batch` sequences reads and computes."""
        return self._cost([depth] * batch, [1] * batch, outputs=batch)

    def prefill_cost(self, n: int) -> Cost:
        """What the steps of a prompt of n tokens read and compute."""
        size = self.engine.config.n_batch
        steps = (self._cost([i], [min(size, n - i)], outputs=int(i + size >= n)) for i in range(0, n, size))
        return sum(steps, Cost())

    def _cost(self, past: list[int], new: list[int], outputs: int) -> Cost:
        sizes = {"tokens": sum(new), "outputs": outputs, "sequences": len(new), "boundaries": len(new) + 1}
        load = OpLoad({**self.engine.limits, **sizes}, past, new)
        return total((n for n in self.engine.schedule.graph.nodes if not n.is_leaf), load)

    def _tokens(self, n: int, seed: int = 0) -> list[int]:
        return tokens(n, self.engine.model.hparams.n_vocab, seed)

    def _release(self) -> None:
        for sequence in self.sequences:
            self.engine.pool.release(sequence)
        self.sequences = []
