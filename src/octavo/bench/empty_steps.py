"""Seconds of steps whose tokens have no context, launched without waiting for one another."""

from __future__ import annotations

import time

from octavo.runtime.engine.captured_sizes import DummySlots, dummy_feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.sampling.top_k import BEST, LOGITS

REPLAYS, TURNS = 10, 5


def reply_seconds(engine: Engine, replies: int) -> float:
    """Of a step of this many replies, the least of some turns."""
    return _seconds(engine, [1] * replies)


def prompt_seconds(engine: Engine, tokens: int) -> float:
    """Of a step of a prompt of this many tokens, the least of some turns."""
    return _seconds(engine, [tokens])


def _seconds(engine: Engine, sizes: list[int]) -> float:
    feeds = [dummy_feed(size, _scratch(engine)) for size in sizes]
    output, best = (BEST,) if engine.finds_candidates else (LOGITS,), float("inf")
    for _ in range(TURNS):
        start = time.perf_counter()
        for _ in range(REPLAYS):
            handle = engine.launch(feeds, output, check=False)
        handle.read()
        best = min(best, time.perf_counter() - start)
    return best / REPLAYS


def _scratch(engine: Engine) -> DummySlots:
    """A page and a slot that are nobody's; where there are none, the first ones, which nobody uses meanwhile."""
    pool, there = engine.pool, engine.pads
    window = None if pool.windows is None else pool.windows.n_pages * there
    return DummySlots(pool.n_pages * there, window, None if pool.states is None else pool.states.n_slots * there)
