"""EngineCore: texts are those of each request alone, whatever runs beside it; what fails, fails alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.errors import ContextFullError, GrammarError, NonFiniteError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.models import ModelSpec
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import page_bytes
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request, RequestOutput
from tests.runtime import tiny
from tests.runtime.sampling.test_device_sampling import Eager

MakeEngine = Callable[..., Engine]
RNG = np.random.default_rng(5)
COMMON = RNG.integers(0, 255, 90).tolist()
PROMPTS = [[*COMMON[: 30 * (i % 4)], *RNG.integers(0, 255, 3 + 9 * i).tolist()] for i in range(6)]
SEEDED = SamplingParams(temperature=1.5, top_k=20, seed=7)


def request(prompt: list[int], most: int = 6, params: SamplingParams = SEEDED, **more: Any) -> Request:
    return Request(prompt, make_sampler(params), most, **more)


def run(core: EngineCore, *requests: Request) -> list[list[int]]:
    for one in requests:
        core.add(one)
    while not core.scheduler.idle:
        core.step()
    assert core.stats().held == 0
    return [list(one.output_tokens) for one in requests]


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """What each prompt's reply is alone; filled by the first test that asks."""
    return []


@pytest.fixture
def texts(make_engine: MakeEngine, alone: list[list[int]]) -> list[list[int]]:
    if not alone:
        engine = make_engine()
        for prompt in PROMPTS:
            alone += run(EngineCore(engine), request(prompt))
            engine.prefixes.clear()
    return alone


@pytest.mark.parametrize(("pages", "sequences", "n_batch"), [(32, 8, 64), (4, 5, 48), (32, 3, 17)])
def test_together_and_alone(
    make_engine: MakeEngine, texts: list[list[int]], pages: int, sequences: int, n_batch: int
) -> None:
    """With room for all, in a cache that is too small, and in steps that are; requests come while others run."""
    core = EngineCore(make_engine(n_pages=pages, max_sequences=sequences, n_batch=n_batch))
    requests = [request(p) for p in PROMPTS]
    for one in requests:
        core.add(one)
        core.step()
    run(core)
    assert [list(one.output_tokens) for one in requests] == texts
    assert {one.finish_reason for one in requests} == {"length"}


def test_preemption_changes_no_text(make_engine: MakeEngine) -> None:
    prompts = [[n] * 50 for n in range(4)]
    want = [run(EngineCore(make_engine()), request(p, 20))[0] for p in prompts]
    core = EngineCore(make_engine(n_pages=5, max_sequences=4))
    assert run(core, *(request(p, 20) for p in prompts)) == want
    assert core.stats().preemptions > 0


def test_a_prompt_that_was_there_is_not_computed_again(make_engine: MakeEngine, texts: list[list[int]]) -> None:
    core = EngineCore(make_engine(max_sequences=2))
    first, again = request(PROMPTS[3]), request(PROMPTS[3])
    assert run(core, first) == run(core, again) == [texts[3]]
    assert (first.cached, again.cached) == (0, len(PROMPTS[3]) - 1)
    other = request(PROMPTS[3], cache_salt="somebody else's")
    assert run(core, other) == [texts[3]]
    assert other.cached == 0
    stats = core.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (3 * len(PROMPTS[3]), len(PROMPTS[3]) - 1)
    assert (stats.running, stats.waiting, stats.generated_tokens) == (0, 0, 3 * 6)
    assert stats.empty + stats.cached == core.engine.pool.n_pages


def test_siblings(make_engine: MakeEngine) -> None:
    def drawn(seed: int) -> Request:
        return request(PROMPTS[5], params=SamplingParams(temperature=1.5, top_k=20, seed=seed))

    want = [run(EngineCore(make_engine()), drawn(seed))[0] for seed in range(3)]
    core = EngineCore(make_engine(max_sequences=4))
    one = drawn(0)
    one.siblings = [drawn(1), drawn(2)]
    several = [one, *one.siblings]
    core.add(one)
    run(core)
    assert [list(r.output_tokens) for r in several] == want
    assert core.stats().prompt_tokens == len(PROMPTS[5])


def test_tokens_chosen_from_candidates(architecture: ModelSpec, texts: list[list[int]]) -> None:
    backend = Eager()
    core = EngineCore(Engine(architecture, [backend], EngineConfig(n_ctx=256, cache_type="f32", max_sequences=3)))
    assert run(core, *map(request, PROMPTS)) == texts
    assert {shape[1] for shape in backend.reads} == {3}, "tokens drawn there: neither candidates nor rows of logits"


def test_candidates_that_are_no_tokens(architecture: ModelSpec, make_engine: MakeEngine) -> None:
    engine = Engine(architecture, [Eager()], EngineConfig(n_ctx=256, cache_type="f32", max_sequences=3))
    for n_known in (250, 150):
        for params in (SamplingParams(temperature=0), SEEDED):
            several = [[request(p, 4, params) for p in PROMPTS[:3]] for _ in range(2)]
            texts = run(EngineCore(engine, n_known=n_known), *several[0])
            assert texts == run(EngineCore(make_engine(), n_known=n_known), *several[1])
            assert max(t for text in texts for t in text) < n_known


def test_greedy_tokens_come_alone(architecture: ModelSpec, make_engine: MakeEngine) -> None:
    backend, greedy = Eager(), SamplingParams(temperature=0)
    core = EngineCore(Engine(architecture, [backend], EngineConfig(n_ctx=256, cache_type="f32", max_sequences=3)))
    want = run(EngineCore(make_engine()), *(request(p, 4, greedy) for p in PROMPTS[:3]))
    assert run(core, *(request(p, 4, greedy) for p in PROMPTS[:3])) == want
    of_prompts = [shape[1] for shape in backend.reads].count(129)  # all of these choose alike
    assert {shape[1] for shape in backend.reads[of_prompts:]} == {3}
    assert of_prompts <= 3


def test_how_likely_tokens_were(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sequences=2)
    core, one, other = EngineCore(engine), request(PROMPTS[0], 2, logprobs=3), request(PROMPTS[1], 2)
    for r in (one, other):
        core.add(r)
    outputs = [o for o in core.drain() if o.token is not None]
    logits = engine.logits([*PROMPTS[0], *one.output_tokens])[len(PROMPTS[0]) - 1 : -1].astype(np.float64)
    want = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for row, output in zip(want, [o for o in outputs if o.request is one], strict=True):
        assert output.logprobs is not None
        assert output.logprobs.token == pytest.approx(row[output.token], abs=1e-4)
        assert [i for i, _ in output.logprobs.likely] == np.argsort(-row)[:3].tolist()
        assert [p for _, p in output.logprobs.likely] == pytest.approx(-np.sort(-row)[:3], abs=1e-4)
    assert all(o.logprobs is None for o in outputs if o.request is other)


def broken_for(core: EngineCore, bad: Request, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    compute = core.engine.compute

    def broken(feeds: list[Feed], watch: Any = None) -> Any:
        rows, at = compute(feeds, watch), 0
        for feed in feeds:
            if feed.sequence is bad.sequence:
                if how == "raises":
                    raise MemoryError("too much")
                rows[at : at + feed.outputs] = np.nan
            at += feed.outputs
        return rows

    monkeypatch.setattr(core.engine, "compute", broken)


@pytest.mark.parametrize("how", ["raises", "is not finite"])
def test_what_fails_fails_alone(
    make_engine: MakeEngine, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    core = EngineCore(make_engine(max_sequences=3))
    requests = [request(p) for p in PROMPTS[:3]]
    broken_for(core, requests[1], monkeypatch, how)
    got = run(core, *requests)
    assert (got[0], got[2]) == (texts[0], texts[2])
    assert requests[1].finish_reason == "error"
    assert isinstance(requests[1].failure, MemoryError if how == "raises" else NonFiniteError)


def test_a_sampler_that_fails(make_engine: MakeEngine, texts: list[list[int]]) -> None:
    core, bad = EngineCore(make_engine(max_sequences=2)), request(PROMPTS[1])
    bad.sampler = lambda logits, tokens: {}[tokens[0]]  # type: ignore[misc]
    assert run(core, bad, request(PROMPTS[0])) == [[], texts[0]]
    assert isinstance(bad.failure, KeyError)


class OneOf:
    """A Constraint: a reply of these tokens in this order, each of which may be one of several."""

    def __init__(self, *rows: set[int]) -> None:
        self.rows, self.pending_mask = list(rows), None

    def fill(self, mask: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        bits = np.zeros(32 * len(mask), np.uint8)
        bits[list(self.rows[0])] = 1
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token: int) -> None:
        if token not in self.rows.pop(0):
            raise GrammarError(f"token {token} is not allowed")

    @property
    def stopped(self) -> bool:
        return not self.rows


@pytest.mark.parametrize("params", [SEEDED, SamplingParams(temperature=0)])
def test_a_constraint(make_engine: MakeEngine, texts: list[list[int]], params: SamplingParams) -> None:
    """Its tokens are chosen, those of other requests are as they were."""
    core = EngineCore(make_engine(max_sequences=3))
    rows = [{5}, {7, 255}, {31, 32}, {0}]
    bound = request(PROMPTS[1], params=params, constraint=OneOf(*rows))
    got = run(core, request(PROMPTS[0]), bound, request(PROMPTS[2]))
    assert (got[0], got[2]) == (texts[0], texts[2])
    assert len(got[1]) == len(rows)
    assert all(token in row for token, row in zip(got[1], rows, strict=True))
    assert bound.finish_reason == "stop"


class LateEnd(OneOf):
    """The same, where what comes after the last token is known only when it has been asked for some times."""

    def __init__(self, looks: int, *rows: set[int]) -> None:
        self.looks = looks
        super().__init__(*rows)

    @property
    def pending_mask(self) -> Any:
        if self.rows or not self.looks:
            return None
        self.looks -= 1
        return SimpleNamespace(due=0.0)

    @pending_mask.setter
    def pending_mask(self, none: None) -> None:
        pass


@pytest.mark.parametrize("looks", range(6))
def test_a_reply_ends_with_what_its_constraint_allows_whenever_that_is_known(
    make_engine: MakeEngine, texts: list[list[int]], looks: int
) -> None:
    """Not with one more token, which ends it, where the answer comes while a step is made up."""
    core, bound = EngineCore(make_engine(max_sequences=2)), request(PROMPTS[1], constraint=LateEnd(looks, {5}, {7}))
    assert run(core, bound, request(PROMPTS[0])) == [[5, 7], texts[0]]
    assert bound.finish_reason == "stop"


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_constraint_fails_closed(make_engine: MakeEngine, texts: list[list[int]], temperature: float) -> None:
    """Where the settings leave out all that it allows, the request ends, without a token that it forbids."""
    core = EngineCore(make_engine(max_sequences=2))
    params = SamplingParams(temperature=temperature, logit_bias={5: -100}, seed=1)
    bound = request(PROMPTS[1], params=params, constraint=OneOf({5}))
    assert run(core, bound, request(PROMPTS[0])) == [[], texts[0]]
    assert bound.finish_reason == "error"
    assert isinstance(bound.failure, GrammarError)


def test_the_time_of_capturing_is_not_that_of_a_step(
    architecture: ModelSpec, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=2)
    for engine, unseen in ((Engine(architecture, [Eager()], config), 3), (make_engine(max_sequences=2), 0)):
        core, seen = EngineCore(engine), list[int]()
        monkeypatch.setattr(
            core.scheduler.budget, "observe", lambda replies, chunk, s, depth, seen=seen: seen.append(replies)
        )
        run(core, request(PROMPTS[0], 6), request(PROMPTS[1], 6))
        assert core.stats().steps - len(seen) == unseen


def test_cancelling_and_draining(make_engine: MakeEngine) -> None:
    core = EngineCore(make_engine(max_sequences=2))
    first, second, third = (request(p, 30) for p in PROMPTS[:3])
    for one in (first, second, third):
        core.add(one)
    core.step()
    core.cancel(second)
    outputs = core.step()
    assert RequestOutput(second, None, "interrupted") in outputs
    ends = [o.request for o in core.drain() if o.finish_reason]
    assert ends == [first, third]
    with pytest.raises(UsageError, match="no more requests"):
        core.add(request([1]))
    assert core.step() == []


def test_what_can_not_be_computed_is_refused(make_engine: MakeEngine) -> None:
    core = EngineCore(make_engine(n_ctx=64))
    with pytest.raises(ContextFullError, match="prompt of 65 tokens does not fit the context of 64"):
        core.add(request([1] * 65))
    with pytest.raises(UsageError, match=r"token 260 is not in the vocabulary"):
        core.add(request([1, tiny.N_VOCAB]))
    with pytest.raises(UsageError, match="no tokens"):
        core.add(request([]))
    assert core.scheduler.idle


def test_a_cache_of_bytes_is_shared(architecture: ModelSpec, make_engine: MakeEngine, texts: list[list[int]]) -> None:
    size = 4 * page_bytes(make_engine().graph)
    core = EngineCore(make_engine(kv_memory=size, max_sequences=6))
    assert core.engine.pool.n_pages == 4
    assert core.engine.limits["rows"] == 4 * PAGE_SIZE
    assert run(core, *map(request, PROMPTS)) == texts
