"""Side tasks of the engine: vectors and log-probabilities of texts, computed in pieces between steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from octavo.errors import CacheFullError, OctavoError, UsageError
from octavo.jit.clock import clock
from octavo.runtime.cache.tiers.slot_file import SlotFiles
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.thread import Pieces
from octavo.runtime.model import Model
from octavo.server.engine.engine_protocol import (
    RANK,
    Embed,
    Failed,
    Score,
    Scored,
    SlotAction,
    SlotDone,
    ToFront,
    Vectors,
)
from octavo.server.engine.scoring import scores

log = logging.getLogger("octavo")
Message = Score | Embed | SlotAction


class SideWork:
    """Takes turns with prompts: beside replies a piece has as many tokens as a step would take of a prompt.

    The first message in the queue is worked on. Where pages run out, it gives its own back and begins anew.
    """

    def __init__(
        self, model: Model, core: EngineCore | None, send: Callable[[ToFront], None], *, embeddings: bool
    ) -> None:
        self._model, self._core, self._send = model, core, send
        self.slots: SlotFiles | None = None
        self._queue: deque[Message] = deque()
        self._came: dict[int, float] = {}
        self._begun, self._n_pieces = 0.0, 0
        self._pieces: Pieces[ToFront] | None = None
        self._turn = False
        if embeddings:
            _ = model.embedder  # what it needs is made now, not between two steps

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, message: Message) -> None:
        self._queue.append(message)
        self._came[message.id] = clock()

    def cancel(self, ids: Collection[int]) -> None:
        if self._queue and self._queue[0].id in ids:
            self._begin_anew()
        self._queue = deque(message for message in self._queue if message.id not in ids)
        self._came = {message.id: self._came[message.id] for message in self._queue}

    def takes_turn(self) -> bool:
        """Whether a piece comes after the next step, which then takes nothing of prompts."""
        self._turn = bool(self._queue) and not self._turn
        return self._turn

    def piece(self) -> None:
        """Compute a piece, and send the answer if it was the last one."""
        message, core = self._queue[0], self._core
        self._pieces = self._pieces or self._work(message)
        self._n_pieces += 1
        try:
            next(self._pieces)
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:
            if isinstance(error, CacheFullError) and core is not None and not core.scheduler.idle:
                self._begin_anew()
                return
            if not isinstance(error, OctavoError):
                log.warning("a side task failed", exc_info=error)
            self._end(Failed(message.id, type(error).__name__, str(error)))

    def make_way(self) -> None:
        """Give pages back that replies need for their next tokens."""
        core = self._core
        if self._pieces is not None and core is not None and core.engine.pool.free < len(core.scheduler.running):
            self._begin_anew()

    def _end(self, answer: ToFront) -> None:
        self._pieces = None
        del self._came[self._queue.popleft().id]
        self._send(answer)

    def _begin_anew(self) -> None:
        if self._pieces is not None:
            self._pieces.close()
            self._pieces = None

    def _room(self) -> int:
        """Tokens of a piece."""
        return self._model.engine.config.n_batch if self._core is None else self._core.room()

    def _work(self, message: Message) -> Pieces[ToFront]:
        self._begun, self._n_pieces = clock(), 0
        if isinstance(message, SlotAction):
            return self._slot(message)
        return self._scored(message) if isinstance(message, Score) else self._embedded(message)

    def _slot(self, message: SlotAction) -> Pieces[ToFront]:
        if self.slots is None:
            raise UsageError("this model's slots can't be saved")
        tokens, nbytes = message.tokens, 0
        if message.action == "save":
            n, nbytes = yield from self.slots.save(tokens, message.salt, message.path)
        elif message.action == "restore":
            tokens, nbytes = yield from self.slots.restore(message.salt, message.path)
            n = len(tokens)
        else:
            n = yield from self.slots.erase(tokens, message.salt)
        return SlotDone(message.id, tokens, n, nbytes, clock() - self._begun)

    def _scored(self, message: Score) -> Pieces[ToFront]:
        assert self._core is not None
        rows = yield from scores(self._model.engine, message.tokens, message.k, self._core.n_known, self._room)
        return Scored(message.id, rows)

    def _embedded(self, message: Embed) -> Pieces[ToFront]:
        model = self._model
        if message.pooling == RANK:
            scores = yield from model.ranker.scoring(message.texts, message.seconds, self._room)
            found = scores[:, None]
        else:
            pooling: Any = message.pooling or (None if model.embedder.pooling else "mean")
            found = yield from model.embedder.embedding(message.texts, pooling, self._room, normalize=message.normalize)
        times = self._begun - self._came[message.id], clock() - self._begun
        return Vectors(message.id, found.shape[1], found.astype("<f4").tobytes(), *times, self._n_pieces)
