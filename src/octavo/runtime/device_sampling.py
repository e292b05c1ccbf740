"""Sampling where the logits are, so that they need not come to the host.

While the host reads a token, a device works at the next step already: it takes the token that it has chosen itself.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import ContextFullError
from octavo.formats.spec import F32, AnyArray
from octavo.graph.plan import Begun
from octavo.runtime.batch import Feed
from octavo.runtime.candidates import BEST, BEST_ID, CANDIDATES, MAX_CANDIDATES
from octavo.runtime.kv_cache import Sequence

if TYPE_CHECKING:
    from octavo.runtime.engine import Engine

I32 = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class DeviceSampler:
    """Steps of an engine that give tokens, or a few candidates for one, in place of logits.

    Where the engine's graph does not find candidates they are taken from its logits on the host.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def finds(self, k: int | None) -> bool:
        """Whether the k largest logits are found without bringing all of them to the host."""
        return k is not None and k <= MAX_CANDIDATES and self.engine.finds_candidates

    def candidates(self, feeds: Seq[Feed], k: int) -> tuple[I32, F32]:
        """Append each feed's tokens; of each logits the k largest: their places and values [sum of outputs, k].

        Largest first, of equals the lower place first. Raises what `Engine.step` raises.
        """
        engine = self.engine
        if not self.finds(k) or engine.model.hparams.n_vocab < MAX_CANDIDATES:
            return _largest_first(engine.step(feeds), k)
        with engine.lock, engine.appending(feeds):
            chosen = self._read(engine.begin(feeds, (CANDIDATES,)))
            found = (chosen.shape[1] - 1) // 2
            return chosen[:, 1 : 1 + k], np.ascontiguousarray(chosen[:, 1 + found :]).view(np.float32)[:, :k]

    def greedy(self, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
        """Append each feed's tokens, choose the most likely token of each sequence, append these, and so on.

        Gives a token for each feed, again and again; those given last have not been appended yet. The sequences are not
        to be touched before this iterator is closed. Raises what `Engine.step` raises, each feed having one output.
        """
        return self._greedy_ahead(feeds) if self.engine.runs_ahead else self._greedy_now(feeds)

    def _greedy_now(self, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
        engine = self.engine
        while True:
            if self.finds(1):
                with engine.lock, engine.appending(feeds):
                    tokens = self._read(engine.begin(feeds, (BEST,)))[:, 1].tolist()
            else:
                tokens = engine.step(feeds).argmax(axis=1).tolist()
            yield tokens
            feeds = _next(feeds, tokens)

    def _greedy_ahead(self, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
        """With a step under way while the one before it is read."""
        engine, sequences = self.engine, [f.sequence for f in feeds]
        kept = [len(s) for s in sequences]
        executor = engine.load()
        under_way: Begun | None = None
        count = 0
        try:
            while True:
                with engine.lock:
                    now = under_way or engine.begin(feeds, (BEST, BEST_ID))
                    alone = under_way is None or executor.begun == count  # no other step used the device's memory since
                    for feed in feeds:
                        feed.sequence.tokens.extend(feed.tokens)
                    under_way = self._ahead(sequences, now) if alone else None
                    count = executor.begun
                    tokens = self._read(now)[:, 1].tolist()
                    kept = [len(s) for s in sequences]
                yield tokens
                feeds = _next(feeds, tokens)
        finally:
            engine.shrink(sequences, kept)

    def _ahead(self, sequences: Seq[Sequence], now: Begun) -> Begun | None:
        """The step after `now`, begun with the tokens that `now` chooses; None where there is no room for them."""
        if any(len(s) >= self.engine.n_ctx for s in sequences):
            return None
        try:
            feeds = [Feed(s, [0]) for s in sequences]
            return self.engine.begin(feeds, (BEST, BEST_ID), fed=(now.values[1], None), check=False)
        except ContextFullError:
            return None

    def _read(self, begun: Begun) -> AnyArray:
        chosen = begun.read()[0]
        if chosen[:, 0].any():
            raise self.engine.not_finite()
        return chosen


def _largest_first(logits: F32, k: int) -> tuple[I32, F32]:
    """Places and values [T, k] of the largest logits, of equals the lower place first."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
    return ids, np.take_along_axis(logits, ids, axis=1)


def _next(feeds: Seq[Feed], tokens: Seq[int]) -> list[Feed]:
    return [Feed(feed.sequence, [token]) for feed, token in zip(feeds, tokens, strict=True)]
