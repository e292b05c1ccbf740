"""Greedy decoding on the device, a step in flight while the one before it is read."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Seq

from octavo.errors import ContextFullError
from octavo.formats.spec import AnyArray
from octavo.graph.plan import Fed, StepHandle
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.top_k import BEST


def greedy(engine: Engine, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
    """Append each feed's tokens, sample the argmax of each sequence, append these, and so on.

    Gives a token for each feed, again and again; those given last have not been appended yet. The sequences are not
    to be touched before this iterator is closed. Raises what `Engine.step` raises, each feed having one output.
    """
    return _async(engine, feeds) if engine.supports_async else _one_by_one(engine, feeds)


def _one_by_one(engine: Engine, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
    while True:
        tokens = engine.step(feeds).argmax(axis=1).tolist()
        yield tokens
        feeds = _next(feeds, tokens)


def _async(engine: Engine, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
    sequences = [f.sequence for f in feeds]
    lengths = [len(s) for s in sequences]
    executor = engine.load()
    in_flight: StepHandle | None = None
    n_launched = 0
    try:
        while True:
            with engine.lock:
                now = in_flight or engine.launch(feeds, (BEST,))
                alone = in_flight is None or executor.n_launched == n_launched  # no other step used the memory since
                for feed in feeds:
                    feed.sequence.tokens.extend(feed.tokens)
                in_flight = _launch_next(engine, sequences, now) if alone else None
                n_launched = executor.n_launched
                tokens = _read(engine, now)[:, 1].tolist()
                lengths = [len(s) for s in sequences]
            yield tokens
            feeds = _next(feeds, tokens)
    finally:
        engine.shrink(sequences, lengths)


def _launch_next(engine: Engine, sequences: Seq[Sequence], now: StepHandle) -> StepHandle | None:
    """The step after `now`, launched with the tokens that `now` samples; None where there is no room for them."""
    if any(len(s) >= engine.n_ctx for s in sequences):
        return None
    try:
        feeds = [Feed(s, [0]) for s in sequences]
        return engine.launch(feeds, (BEST,), fed=Fed(now, range(len(feeds))), check=False)
    except ContextFullError:
        return None


def _read(engine: Engine, handle: StepHandle) -> AnyArray:
    sampled = handle.read()[0]
    if sampled[:, 0].any():
        raise engine.not_finite()
    return sampled


def _next(feeds: Seq[Feed], tokens: Seq[int]) -> list[Feed]:
    return [Feed(feed.sequence, [token]) for feed, token in zip(feeds, tokens, strict=True)]
