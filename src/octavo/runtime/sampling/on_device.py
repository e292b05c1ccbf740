"""The likeliest tokens, chosen where the logits are, again and again.

While the host reads a token, a device works at the next step already: it takes the token that it has chosen itself.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Seq

from octavo.errors import ContextFullError
from octavo.formats.spec import AnyArray
from octavo.graph.plan import Begun
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.top_k import BEST


def greedy(engine: Engine, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
    """Append each feed's tokens, choose the most likely token of each sequence, append these, and so on.

    Gives a token for each feed, again and again; those given last have not been appended yet. The sequences are not
    to be touched before this iterator is closed. Raises what `Engine.step` raises, each feed having one output.
    """
    return _ahead(engine, feeds) if engine.runs_ahead else _one_by_one(engine, feeds)


def _one_by_one(engine: Engine, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
    while True:
        tokens = engine.step(feeds).argmax(axis=1).tolist()
        yield tokens
        feeds = _next(feeds, tokens)


def _ahead(engine: Engine, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
    """With a step under way while the one before it is read."""
    sequences = [f.sequence for f in feeds]
    kept = [len(s) for s in sequences]
    executor = engine.load()
    under_way: Begun | None = None
    count = 0
    try:
        while True:
            with engine.lock:
                now = under_way or engine.begin(feeds, (BEST,))
                alone = under_way is None or executor.begun == count  # no other step used the device's memory since
                for feed in feeds:
                    feed.sequence.tokens.extend(feed.tokens)
                under_way = _begun_after(engine, sequences, now) if alone else None
                count = executor.begun
                tokens = _read(engine, now)[:, 1].tolist()
                kept = [len(s) for s in sequences]
            yield tokens
            feeds = _next(feeds, tokens)
    finally:
        engine.shrink(sequences, kept)


def _begun_after(engine: Engine, sequences: Seq[Sequence], now: Begun) -> Begun | None:
    """The step after `now`, begun with the tokens that `now` chooses; None where there is no room for them."""
    if any(len(s) >= engine.n_ctx for s in sequences):
        return None
    try:
        feeds = [Feed(s, [0]) for s in sequences]
        return engine.begin(feeds, (BEST,), fed=(now.values[0][:, 1], None), check=False)
    except ContextFullError:
        return None


def _read(engine: Engine, begun: Begun) -> AnyArray:
    chosen = begun.read()[0]
    if chosen[:, 0].any():
        raise engine.not_finite()
    return chosen


def _next(feeds: Seq[Feed], tokens: Seq[int]) -> list[Feed]:
    return [Feed(feed.sequence, [token]) for feed, token in zip(feeds, tokens, strict=True)]
