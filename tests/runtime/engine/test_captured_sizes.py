"""Steps filled up to sizes that repeat."""

from __future__ import annotations

from itertools import pairwise

import pytest

from octavo.models import ModelSpec
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed, make_batch
from octavo.runtime.engine.captured_sizes import (
    REPLIES,
    TILE,
    DummySlots,
    at_most,
    chunk_sizes,
    max_padded,
    pad_to_bucket,
    replies_beside,
    replies_for,
    size_of,
)
from octavo.runtime.engine.core import EngineCore
from tests.runtime.engine.test_core import PROMPTS, request, run
from tests.runtime.sampling.test_device_sampling import Eager


def test_sizes_are_few() -> None:
    assert chunk_sizes(512) == (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 240, 288, 352, 432, 512)
    assert (chunk_sizes(16), chunk_sizes(7), chunk_sizes(50)) == ((16,), (7,), (16, 32, 48, 50))
    assert all(a < b <= max(a + TILE, a * 1.25) for a, b in pairwise(chunk_sizes(2048)))
    assert [replies_for(n) for n in (1, 5, 16, 17, 128, 129, 300)] == [1, 6, 16, 24, 128, 192, 320]
    assert [replies_beside(n) for n in (0, 1, 8, 9, 33, 128, 129)] == [0, 8, 8, 32, 64, 128, 192]
    assert [at_most(n, (16, 32, 50)) for n in (0, 9, 16, 31, 50, 90)] == [0, 9, 16, 16, 50, 50]
    assert list(REPLIES) == sorted(REPLIES)


@pytest.mark.parametrize(
    ("counts", "wanted", "sizes"),
    [
        ([1] * 5, [1] * 5, (6, 6, 6, 7)),  # replies, one of them nobody's
        ([1, 1, 30], [1, 1, 0], (40, 16, 16, 9)),  # and a prompt, with two tokens that are nobody's
        ([1, 30, 1], [1, 1, 1], (40, 16, 16, 9)),
        ([1, 20, 12], [1, 0, 1], (40, 16, 16, 9)),  # prompts that are as many tokens as wanted, but not as many
        ([31], [0], (48, 8, 8, 9)),  # one token missing would be a reply
        ([64], [0], (64, 8, 8, 9)),
        ([2] * 3, [0] * 3, (16, 8, 8, 9)),
        ([2] * 9, [0] * 9, (32, 16, 16, 17)),  # more prompts than usual
    ],
)
def test_steps_are_filled_up(counts: list[int], wanted: list[int], sizes: tuple[int, ...]) -> None:
    feeds = [Feed(Sequence([0, 1]), [5] * n, outputs) for n, outputs in zip(counts, wanted, strict=True)]
    made = pad_to_bucket(feeds, chunk_sizes(512), slots=DummySlots(9), max_pages=4)
    assert [f.sequence for f in made[: len(feeds)]] == [f.sequence for f in feeds]
    assert all(made[i].outputs for i, n in enumerate(wanted) if n)
    inputs, found = make_batch(made, 4)
    assert tuple(found[name] for name in ("tokens", "outputs", "sequences", "boundaries")) == sizes
    prompts = [n for n in counts if n > 1]
    replies, parts, tokens = size_of(counts.count(1), len(prompts), sum(prompts), chunk_sizes(512))
    assert (replies + tokens, replies + parts) == (sizes[0], sizes[2])
    assert {page for f in made[len(feeds) :] for page in f.sequence.pages} <= {9}
    assert inputs["rows"].max() < 10 * 64


@pytest.mark.parametrize("n_batch", [5, 64, 512])
def test_a_filled_step_has_as_many_sequences_as_memory_is_made_for(n_batch: int) -> None:
    """And at most as many tokens more."""
    for n in (1, 2, 3, 5, 9, 17, 33, 129):
        for prompts in range(0, n + 1, max(1, n // 4)):
            left = n_batch - (n - prompts)
            if 2 * prompts <= left:
                first = [2] * (prompts - 1) + [left - 2 * (prompts - 1)] if prompts else []
                feeds = [Feed(Sequence([0] * 9), [5] * k) for k in [1] * (n - prompts) + first]
                made = pad_to_bucket(feeds, chunk_sizes(n_batch), slots=DummySlots(9), max_pages=8)
                assert len(made) <= max_padded(n)
                assert sum(len(f.tokens) for f in made) <= n_batch + max_padded(n)


def test_prompts_are_not_taken_for_replies() -> None:
    """A step with as many tokens as sequences is one of replies."""
    for n in (1, 2, 3, 4, 7, 8):
        made = pad_to_bucket([Feed(Sequence([0]), [5, 6])] * n, chunk_sizes(2 * n), slots=DummySlots(9), max_pages=4)
        _, found = make_batch(made, 4)
        assert found["tokens"] > found["sequences"]


def test_texts_do_not_change_and_sizes_repeat(architecture: ModelSpec) -> None:
    config = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=6, n_batch=64)
    texts = []
    for fills in (True, False):
        engine = Engine(architecture, [Eager()], config)
        assert engine.pads
        assert engine.limits["rows"] == (6 * 4 + 1) * 64
        if not fills:
            engine.padded = list  # type: ignore[method-assign]
        core = EngineCore(engine)
        texts.append(run(core, *map(request, PROMPTS)))
        plans = len(engine.load()._plans)
        assert plans < 12 or not fills
        assert engine.pool.n_pages not in engine.prefixes._nodes
    assert texts[0] == texts[1]


def test_one_sequence_is_not_filled_up(architecture: ModelSpec) -> None:
    engine = Engine(architecture, [Eager()], EngineConfig(n_ctx=256))
    assert not engine.pads
    assert engine.limits["rows"] == 256


def test_sizes_are_ready_before_they_are_wanted(architecture: ModelSpec) -> None:
    config = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=6, n_batch=64)
    core = EngineCore(Engine(architecture, [Eager()], config))
    core.warm_up()
    executor = core.engine.load()
    ready = set(executor._plans)
    assert core.stats().held == 0
    texts = run(core, *map(request, PROMPTS))
    alone = EngineCore(Engine(architecture, [Eager()], config))
    assert texts == run(alone, *map(request, PROMPTS))
    replies = {key for key in executor._plans if dict(key[1])["tokens"] == dict(key[1])["sequences"]}
    assert replies <= ready
