"""Several prompts at once: a token of each in every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from octavo.formats.spec import F32
from octavo.runtime.batch import Feed
from octavo.runtime.engine import Engine
from octavo.runtime.kv_cache import Sequence as CachedSequence
from octavo.runtime.reply import Reply
from octavo.runtime.sampling import Sampler


@dataclass(eq=False)
class Row:
    """A prompt, how to choose the tokens after it, and its reply. `n_known` tokens are in the vocabulary."""

    prompt: Sequence[int]
    sampler: Sampler
    reply: Reply
    n_known: int
    sequence: CachedSequence = field(default_factory=CachedSequence)

    def take(self, logits: F32) -> None:
        """Choose the next token."""
        self.reply.add(self.sampler(logits[: self.n_known], [*self.prompt, *self.reply.tokens]))


def fill(engine: Engine, rows: Iterable[Row]) -> None:
    """Bring all replies to their ends, as many at a time as the engine takes; it is for nobody else meanwhile.

    A reply for which the context is too small ends with "context". Raises what `Engine.prefill` raises.
    """
    waiting, running = deque(row for row in rows if row.reply.finish_reason is None), list[Row]()
    with engine.lock:
        try:
            while waiting or running:
                while waiting and len(running) < engine.config.max_sequences:
                    running.append(waiting.popleft())
                    row = running[-1]
                    row.take(engine.prefill(row.sequence, row.prompt))
                    running = _still_running(engine, running)
                if running:
                    logits = engine.step([Feed(row.sequence, row.reply.tokens[-1:]) for row in running])
                    for row, values in zip(running, logits, strict=True):
                        row.take(values)
                    running = _still_running(engine, running)
        finally:
            for row in running:
                engine.pool.release(row.sequence)


def _still_running(engine: Engine, rows: Iterable[Row]) -> list[Row]:
    """The rows whose replies go on; the sequences of the others are released."""
    running = []
    for row in rows:
        if row.reply.finish_reason is None and len(row.sequence) == engine.n_ctx:
            row.reply.end("context")
        if row.reply.finish_reason is None:
            running.append(row)
        else:
            engine.pool.release(row.sequence)
    return running
