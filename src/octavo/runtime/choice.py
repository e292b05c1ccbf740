"""The choice of tokens where the logits are, so that they need not come to the host.

A graph is given more outputs for that: the most likely token, and the most likely ones. While the host reads a token, a
device works at the next step already: it takes the token that it has chosen itself.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import ContextFullError
from octavo.formats.spec import F32, AnyArray
from octavo.graph.node import Graph
from octavo.graph.ops import apply
from octavo.graph.plan import Begun
from octavo.graph.protocol import AsyncBackend, Backend
from octavo.graph.schedule import Schedule
from octavo.runtime.batch import Feed
from octavo.runtime.kv_cache import Sequence

if TYPE_CHECKING:
    from octavo.runtime.engine import Engine

I32 = np.ndarray[tuple[int, ...], np.dtype[np.int32]]

LOGITS, BEST, BEST_ID, CANDIDATES = range(4)
"""Outputs of an extended graph: logits; `top_candidates` of one; its token alone; `top_candidates` of MOST."""

MOST = 64
"""Candidates that are looked for on the device; for more of them all logits are read."""


def possible(schedule: Schedule, backends: Seq[Backend]) -> bool:
    """Whether all of a graph runs on one backend, and that one chooses tokens."""
    used = set(schedule.backends.values())
    (logits,) = schedule.graph.outputs
    if len(used) != 1 or not isinstance(logits.shape[-1], int):
        return False
    backend = backends[used.pop()]
    return isinstance(backend, AsyncBackend) and backend.supports(apply("top_candidates", logits, k=1))[0]


def extended(graph: Graph) -> Graph:
    """A graph of logits, with the choice of tokens among its outputs."""
    (logits,) = graph.outputs
    n = logits.shape[-1]
    assert isinstance(n, int)
    best = apply("top_candidates", logits, k=1, label="best")
    candidates = apply("top_candidates", logits, k=min(MOST, n), label="candidates")
    return Graph.of(logits, best, apply("columns", best, start=1, size=1, label="best"), candidates)


def largest_first(logits: F32, k: int) -> tuple[I32, F32]:
    """Places and values [T, k] of the largest logits, of equals the lower place first."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
    return ids, np.take_along_axis(logits, ids, axis=1)


def on_device(engine: Engine, feeds: Seq[Feed], k: int) -> tuple[I32, F32]:
    """`Engine.candidates` of at most MOST."""
    before = [len(f.sequence) for f in feeds]
    try:
        chosen = _read(engine, engine.begin(feeds, CANDIDATES))
    except BaseException:
        _shrink(engine, [f.sequence for f in feeds], before)
        raise
    for feed in feeds:
        feed.sequence.tokens.extend(feed.tokens)
    found = (chosen.shape[1] - 1) // 2
    return chosen[:, 1 : 1 + min(k, found)], np.ascontiguousarray(chosen[:, 1 + found :]).view(np.float32)[:, :k]


def greedy_on_host(engine: Engine, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
    """`Engine.greedy` from logits."""
    while True:
        tokens = engine.step(feeds).argmax(axis=1).tolist()
        yield tokens
        feeds = _next(feeds, tokens)


def greedy_ahead(engine: Engine, feeds: Seq[Feed]) -> Generator[list[int], None, None]:
    """`Engine.greedy` with a step under way while the one before it is read."""
    sequences = [f.sequence for f in feeds]
    kept = [len(s) for s in sequences]
    executor = engine.load()
    under_way: Begun | None = None
    count = 0
    try:
        while True:
            with engine.lock:
                now = under_way or engine.begin(feeds, BEST)
                alone = under_way is None or executor.begun == count  # no other step has used the device's memory since
                for feed in feeds:
                    feed.sequence.tokens.extend(feed.tokens)
                under_way = _ahead(engine, sequences, now) if alone else None
                count = executor.begun
                tokens = _read(engine, now)[:, 1].tolist()
                kept = [len(s) for s in sequences]
            yield tokens
            feeds = _next(feeds, tokens)
    finally:
        _shrink(engine, sequences, kept)


def _ahead(engine: Engine, sequences: Seq[Sequence], now: Begun) -> Begun | None:
    """The step after `now`, begun with the tokens that `now` chooses; None where there is no room for them."""
    if any(len(s) >= engine.n_ctx for s in sequences):
        return None
    try:
        return engine.begin([Feed(s, [0]) for s in sequences], BEST, fed=now.values[1], check=False)
    except ContextFullError:
        return None


def _next(feeds: Seq[Feed], tokens: Seq[int]) -> list[Feed]:
    return [Feed(feed.sequence, [token]) for feed, token in zip(feeds, tokens, strict=True)]


def _read(engine: Engine, begun: Begun) -> AnyArray:
    chosen = begun.read()[0]
    if chosen[:, 0].any():
        raise engine.not_finite()
    return chosen


def _shrink(engine: Engine, sequences: Seq[Sequence], lengths: Seq[int]) -> None:
    for sequence, length in zip(sequences, lengths, strict=True):
        engine.pool.shrink(sequence, length)
