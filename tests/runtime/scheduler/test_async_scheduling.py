"""Steps that begin before the one before them is read change no reply, and leave no page behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.models import ModelSpec
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.sampling.top_k import DRAWN
from octavo.runtime.scheduler.request import Request
from tests.runtime import tiny
from tests.runtime.sampling.test_device_sampling import Eager
from tests.sampling import slow

RNG = np.random.default_rng(8)
PROMPTS = [RNG.integers(0, tiny.N_VOCAB, 3 + 11 * i).tolist() for i in range(7)]
LENGTHS = [70, 5, 31, 66, 1, 9, 40]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0}, {"temperature": 1.5, "seed": 2}, {"temperature": 0}, {"seed": 3, "top_k": 64, "min_p": 0},
    {"temperature": 0}, {"temperature": 0.3, "top_p": 0.5, "seed": 4}, {"temperature": 0.9, "seed": 5},
]


def requests(ends: frozenset[int] = frozenset()) -> list[Request]:
    return [
        Request(prompt, make_sampler(SamplingParams(**kind)), most, ends)
        for prompt, most, kind in zip(PROMPTS, LENGTHS, KINDS, strict=True)
    ]


def core_on(architecture: ModelSpec, backend: Any, **config: Any) -> EngineCore:
    settings = {"n_ctx": 256, "cache_type": "f32", "max_sequences": 4, **config}
    return EngineCore(Engine(architecture, [backend], EngineConfig(**settings)))


def run(core: EngineCore, given: list[Request], *, every: int = 3, cancelled: dict[int, int] | None = None) -> int:
    """Steps of requests that come one by one; some are cancelled after a number of steps. How many went ahead."""
    left, steps, ahead = list(given), 0, 0
    while left or not core.scheduler.idle:
        if left and steps % every == 0:
            core.add(left.pop(0))
        for i, at in (cancelled or {}).items():
            if steps == at:
                core.cancel(given[i])
        core.step()
        ahead += len(core._in_flight)
        steps += 1
    assert core.stats().held == 0
    return ahead


@pytest.mark.parametrize("pages", [slow(16), 5])
def test_replies_end_and_begin_while_others_go_on(architecture: ModelSpec, pages: int) -> None:
    plain, eager = core_on(architecture, ReferenceBackend()), core_on(architecture, Eager(), n_pages=pages)
    assert eager.engine.supports_async
    once, again = requests(), requests()
    assert run(plain, once) == 0
    assert run(eager, again) > (50 if pages == 16 else 5)
    assert [list(r.output_tokens) for r in again] == [list(r.output_tokens) for r in once]
    ends = frozenset({once[0].output_tokens[20], once[3].output_tokens[41]})
    outcomes = []
    for core in (plain, eager):
        given = requests(ends)
        run(core, given)
        outcomes.append([(list(r.output_tokens), r.finish_reason) for r in given])
    assert outcomes[0] == outcomes[1]
    assert {end for _, end in outcomes[1]} == {"stop", "length"}


def test_greedy_replies_that_leave_tokens_out_go_ahead(architecture: ModelSpec) -> None:
    """And are what they are on the host, where such a token is the likeliest one, too."""
    greedy = requests()[0]
    run(core_on(architecture, ReferenceBackend()), [greedy])
    others = sorted({*range(tiny.N_VOCAB)} - {*greedy.output_tokens})
    texts, went = [], []
    for ends in (others[:2], [greedy.output_tokens[3], greedy.output_tokens[30]]):
        kinds: list[dict[str, Any]] = [{"ignore_eos": True}, {"min_tokens": 9}, {"logit_bias": {ends[0]: -100}}]
        for backend in (ReferenceBackend(), Eager()):
            given = [
                Request(PROMPTS[0], make_sampler(SamplingParams(temperature=0, **kind), n_prompt=3, end_ids=ends), 40)
                for kind in kinds
            ]
            went.append(run(core_on(architecture, backend), given, every=1))
            texts.append([list(r.output_tokens) for r in given])
    assert texts[0] == texts[1]
    assert texts[2] == texts[3] != texts[0]
    assert not set(ends) & set(texts[3][0]), "what is left out does not come"
    assert went[0] == went[2] == 0
    assert went[1] > 25
    assert went[3] > 1, "until the first of these tokens would be chosen"


def long_requests() -> list[Request]:
    """Prompts of several steps, two of which begin alike, beside replies."""
    prompts = [PROMPTS[6] + PROMPTS[5], PROMPTS[1], PROMPTS[6] + PROMPTS[4], PROMPTS[5] + PROMPTS[6]]
    kinds = ({"seed": 2}, {"temperature": 0}, {"temperature": 0}, {"seed": 3, "temperature": 1.2})
    params = [SamplingParams(**kind) for kind in kinds]
    return [Request(p, make_sampler(how), 12 + i) for i, (p, how) in enumerate(zip(prompts, params, strict=True))]


def test_prompts_are_read_while_the_step_before_is_under_way(architecture: ModelSpec) -> None:
    """In steps of few tokens, with requests that are asked for more than their tokens in between."""
    texts = []
    for backend in (ReferenceBackend(), Eager()):
        core, given = core_on(architecture, backend, n_batch=20), long_requests()
        slow = Request(PROMPTS[2], make_sampler(SamplingParams(repeat_penalty=1.3, seed=9)), 6)
        chunks = 0
        for request in (*given, slow):
            core.add(request)
            for _ in range(4):
                core.step()
                chunks += any(one.step.num_prefill_tokens for one in core._in_flight)
        core.engine.step([Feed(other := Sequence(), [7, 8])])
        core.engine.pool.release(other)
        run(core, [])
        texts.append([list(r.output_tokens) for r in (*given, slow)])
        assert (chunks > 5) == core.engine.supports_async
    assert texts[0] == texts[1]


def test_a_step_that_is_interrupted_while_another_is_under_way(
    architecture: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of the two is taken; both are computed again."""
    core, given, want = core_on(architecture, Eager(), n_batch=20), long_requests(), long_requests()
    run(core_on(architecture, ReferenceBackend(), n_batch=20), want)
    for request in given:
        core.add(request)
    there, times = core.sampler.sampled_on_device, iter(range(1000))

    def interrupted(*step: Any) -> Any:
        if next(times) % 5 == 3:
            raise KeyboardInterrupt
        return there(*step)

    monkeypatch.setattr(core.sampler, "sampled_on_device", interrupted)
    caught = 0
    while not core.scheduler.idle:
        try:
            core.step()
        except KeyboardInterrupt:
            caught += 1
    assert caught > 5
    assert [list(r.output_tokens) for r in given] == [list(r.output_tokens) for r in want]
    assert core.stats().held == 0


def test_a_step_that_does_not_begin_ahead_is_computed_later(
    architecture: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, given, want = core_on(architecture, Eager(), n_batch=20), long_requests()[1:], long_requests()[1:]
    run(core_on(architecture, ReferenceBackend(), n_batch=20), want)
    begin, times = core.engine.launch, iter(range(1000))

    def fails(feeds: Any, outputs: tuple[int, ...], *more: Any, **options: Any) -> Any:
        if outputs == (DRAWN,) and next(times) % 4 == 1:
            raise RuntimeError("no")
        return begin(feeds, outputs, *more, **options)

    monkeypatch.setattr(core.engine, "launch", fails)
    run(core, given)
    assert next(times) > 8
    assert [list(r.output_tokens) for r in given] == [list(r.output_tokens) for r in want]


def test_cancelled_while_a_step_is_under_way(architecture: ModelSpec) -> None:
    core, given, want = core_on(architecture, Eager()), requests(), requests()
    run(core_on(architecture, ReferenceBackend()), want)
    run(core, given, every=1, cancelled={0: 15, 3: 20})
    assert [given[i].finish_reason for i in (0, 3)] == ["interrupted"] * 2
    for one, other in zip(given, want, strict=True):
        assert list(one.output_tokens) == list(other.output_tokens)[: len(one.output_tokens)]
        assert one.finish_reason == "interrupted" or len(one.output_tokens) == len(other.output_tokens)


def test_others_use_the_engine_between_steps(architecture: ModelSpec) -> None:
    core, given, want = core_on(architecture, Eager()), requests()[:3], requests()[:3]
    run(core_on(architecture, ReferenceBackend()), want)
    for request in given:
        core.add(request)
    while not core.scheduler.idle:
        core.step()
        core.engine.step([Feed(other := Sequence(), [7, 8])])
        core.engine.pool.release(other)
    assert [list(r.output_tokens) for r in given] == [list(r.output_tokens) for r in want]


def test_a_context_that_is_full(architecture: ModelSpec) -> None:
    outcomes = []
    for backend in (ReferenceBackend(), Eager()):
        core = core_on(architecture, backend, n_ctx=40)
        given = [Request(p[:20], make_sampler(SamplingParams(temperature=0))) for p in PROMPTS[2:5]]
        run(core, given)
        outcomes.append([(list(r.output_tokens), r.finish_reason) for r in given])
    assert outcomes[0] == outcomes[1]
    assert {end for _, end in outcomes[0]} == {"context"}
