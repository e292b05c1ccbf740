"""FakeClient: an engine that computes nothing, for tests of the front, and to measure what the front alone can do."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import replace

from octavo.runtime.engine.stats import Stats
from octavo.runtime.output.reply import LogProbs
from octavo.server.engine.client import NO_STATS, EngineClient, EngineStream
from octavo.server.engine.engine_protocol import (
    Add,
    Cancel,
    Embed,
    EngineOutput,
    Info,
    Prefill,
    Ready,
    Score,
    Scored,
    StepOutputs,
    ToEngine,
    Vectors,
)

INFO = Info(n_ctx=4096, n_ctx_train=4096, n_vocab=1024, n_params=1, nbytes=1, n_pages=1 << 20, page_size=64,
            max_sequences=1 << 10, device="none")


class FakeClient(EngineClient):
    """Gives each reply the same tokens again and again, one a step, to `max_tokens` or the context's end.

    A step takes `seconds`. Without `tokens` nothing comes by itself: `deliver` StepOutputs for it. `sent` has what a
    real engine would be told.
    """

    def __init__(self, tokens: Sequence[int] = (), seconds: float = 0.0, info: Info = INFO) -> None:
        super().__init__()
        self.tokens, self.seconds, self.loaded = tokens, seconds, info
        self.sent: list[ToEngine] = []
        self._left: dict[int, int] = {}
        self._begun: set[int] = set()
        self._told: dict[int, int | None] = {}
        self._steps: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.deliver(Ready(self.loaded))

    async def close(self) -> None:
        if self._steps is not None:
            self._steps.cancel()

    def _send(self, message: ToEngine) -> None:
        self.sent.append(message)
        if isinstance(message, Cancel):
            for one in message.ids:
                self._left.pop(one, None)
        elif isinstance(message, Score):
            self.deliver(Scored(message.id, [_logprobs(token, message.k) for token in message.tokens[1:]]))
        elif isinstance(message, Embed):
            self.deliver(Vectors(message.id, 1, struct.pack("<f", 1.0) * len(message.texts)))

    def submit(self, adds: Sequence[Add]) -> EngineStream:
        stream = super().submit(adds)
        for add in adds:
            self._told.update(dict.fromkeys(add.ids, add.logprobs))
            room = max(1, self.loaded.n_ctx - len(add.prompt))
            self._left.update(dict.fromkeys(add.ids, min(add.max_tokens or room, room)))
        if self.tokens and (self._steps is None or self._steps.done()):
            self._steps = asyncio.get_running_loop().create_task(self._step())
        return stream

    async def _step(self) -> None:
        n = 0
        while self._left:
            await asyncio.sleep(self.seconds)
            token = self.tokens[n % len(self.tokens)]
            self.deliver(StepOutputs([self._output(one, token) for one in self._left], self._stats(), self.seconds))
            self._left = {one: left - 1 for one, left in self._left.items() if left > 1}
            n += 1

    def _output(self, one: int, token: int) -> EngineOutput:
        prefill = None if one in self._begun else Prefill(0, 0, 0.0)
        self._begun.add(one)
        k = self._told[one]
        logprobs = None if k is None else _logprobs(token, k)
        return EngineOutput(one, token, "length" if self._left[one] == 1 else None, logprobs, prefill)

    def _stats(self) -> Stats:
        return replace(NO_STATS, running=len(self._left))


def _logprobs(token: int, k: int) -> LogProbs:
    """A token that nothing is likelier than."""
    return LogProbs(0.0, ((token, 0.0),) if k else ())
