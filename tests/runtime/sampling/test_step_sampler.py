"""Tokens chosen from a few candidates are those chosen from all logits, and no row of logits is read for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import GrammarError
from octavo.models import ModelSpec
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.sampling.step_sampler import StepSampler
from octavo.runtime.scheduler.request import Request
from tests.runtime import tiny
from tests.runtime.sampling.test_device_sampling import Eager

N = 6
PROMPTS = [np.random.default_rng(i).integers(0, tiny.N_VOCAB, 5 + i).tolist() for i in range(8)]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.5, "seed": 1},
    {"temperature": 0, "repeat_penalty": 1.5, "logit_bias": {7: 2.5, 9: -100}},
    {"temperature": 1.2, "top_k": 64, "top_p": 0.9, "presence_penalty": 1.0, "frequency_penalty": 0.5, "seed": 2},
    {"temperature": 0.8, "top_k": 10, "min_p": 0.02, "min_tokens": 4, "stop_token_ids": [3, 4, 5], "seed": 3},
]


class Even:
    """Only even tokens may come, and three of them."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.pending_mask = None

    def fill(self, mask: Any) -> None:
        mask[:] = 0x55555555

    def accept(self, token: int) -> None:
        if token % 2:
            raise GrammarError("an odd token")
        self.tokens.append(token)

    @property
    def stopped(self) -> bool:
        return len(self.tokens) == 3


def requests() -> list[Request]:
    """Of each kind one, two with a constraint, and one whose log-probabilities are wanted."""
    made = [Request(p, make_sampler(SamplingParams(**k), n_prompt=len(p)), N) for p, k in zip(PROMPTS, KINDS)]  # noqa: B905
    for prompt, kind in zip(PROMPTS[5:7], (KINDS[0], KINDS[3]), strict=True):
        made.append(Request(prompt, make_sampler(SamplingParams(**kind)), N, constraint=Even()))
    made.append(Request(PROMPTS[7], make_sampler(SamplingParams(**KINDS[1])), N, logprobs=4))
    return made


Outcome = list[tuple[list[int], str | None]]


def run(engine: Engine, given: list[Request], n_known: int = tiny.N_VOCAB) -> tuple[Outcome, list[Any]]:
    """Tokens and ends of requests, and the log-probabilities of all steps."""
    core, likely = EngineCore(engine, n_known=n_known), []
    for request in given:
        core.add(request)
    for output in core.drain():
        assert output.request.failure is None, output.request.failure
        likely += [output.logprobs] if output.logprobs is not None else []
    return [(list(r.output_tokens), r.finish_reason) for r in given], likely


@pytest.fixture
def engine_on(architecture: ModelSpec) -> Callable[..., Engine]:
    config = EngineConfig(n_ctx=64, cache_type="f32", max_sequences=8)
    return lambda backend: Engine(architecture, [backend], config)


@pytest.mark.parametrize("n_known", [tiny.N_VOCAB, 100])
def test_from_few_as_from_all(engine_on: Callable[..., Engine], n_known: int) -> None:
    eager = Eager()
    want, likely = run(engine_on(ReferenceBackend()), requests(), n_known)
    got, found = run(engine_on(eager), requests(), n_known)
    assert got == want
    assert {end for _, end in got[5:7]} == {"stop"}
    assert max(t for tokens, _ in got for t in tokens) < n_known
    assert len(found) == N
    for one, other in zip(found, likely, strict=True):
        assert [t for t, _ in one.likely] == [t for t, _ in other.likely]
        values = [[one_.token, *(p for _, p in one_.likely)] for one_ in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-5)
    if n_known == tiny.N_VOCAB:
        assert {shape[1] for shape in eager.reads} <= {1, 3, 129}, "no row of logits was read"


def test_on_the_cpu_as_alone(engine_on: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(CpuBackend(threads=2))
    assert engine.finds_candidates
    assert not engine.supports_async
    monkeypatch.setattr(engine, "compute", None)
    together, _ = run(engine, requests())
    engine.prefixes.clear()
    assert [run(engine, [one])[0][0] for one in requests()] == together


def test_what_a_few_do_not_do_for(engine_on: Callable[..., Engine]) -> None:
    """More than 64 candidates, all of them, log-probabilities of changed logits, any function, siblings' changes."""

    def given() -> list[Request]:
        kinds = [{"top_k": 100}, {"top_k": 0, "top_p": 1.0}, KINDS[3], KINDS[3]]
        made = [Request(p, make_sampler(SamplingParams(**{**k, "seed": 5})), N) for p, k in zip(PROMPTS, kinds)]  # type: ignore[arg-type]  # noqa: B905
        made[2].logprobs = 2
        made[3].siblings = [Request(PROMPTS[3], make_sampler(SamplingParams(**{**KINDS[3], "seed": 6})), N)]
        made.append(Request(PROMPTS[4], lambda logits, tokens: int(logits.argmin()), N))
        return [*made, *made[3].siblings, *requests()[:2]]

    outcomes = []
    for backend in (ReferenceBackend(), Eager()):
        several = given()
        core = EngineCore(engine_on(backend))
        for request in several:
            if request is not several[5]:
                core.add(request)
        likely = [o.logprobs for o in core.drain() if o.request is several[2] and o.token is not None]
        assert len(likely) == N
        outcomes.append([list(r.output_tokens) for r in several])
    assert outcomes[0] == outcomes[1]


class Nothing(Even):
    def fill(self, mask: Any) -> None:
        mask[:] = 0


class Refuses(Even):
    def fill(self, mask: Any) -> None:
        raise GrammarError("no token may come")


@pytest.mark.parametrize("backend", [ReferenceBackend, Eager])
@pytest.mark.parametrize("constraint", [Nothing, Refuses])
def test_a_constraint_that_allows_nothing_ends_its_request_alone(
    engine_on: Callable[..., Engine], backend: Any, constraint: Any
) -> None:
    core = EngineCore(engine_on(backend()))
    sampler = make_sampler(SamplingParams(temperature=0, logit_bias={1: 1}))
    bad, good = Request(PROMPTS[0], sampler, N, constraint=constraint()), Request(PROMPTS[1], sampler, N)
    for one in (bad, good):
        core.add(one)
    for _ in core.drain():
        pass
    assert (bad.finish_reason, good.finish_reason) == ("error", "length")
    assert isinstance(bad.failure, GrammarError)


def test_changes_beyond_what_a_step_takes(engine_on: Callable[..., Engine]) -> None:
    """Those that do not fit are made on the host, with the same result."""
    bias = {t: float(np.sin(t)) for t in range(tiny.N_VOCAB)}
    texts = []
    for backend, limit in ((ReferenceBackend(), None), (Eager(), None), (Eager(), 256)):
        engine = engine_on(backend)
        engine.limits = dict(engine.limits) | ({} if limit is None else {"adjusted": limit})
        several = [
            Request(p, make_sampler(SamplingParams(temperature=2.0, seed=9, logit_bias=bias)), N) for p in PROMPTS
        ]
        texts.append(run(engine, several)[0])
    assert texts[0] == texts[1] == texts[2]


def test_the_mask_of_known_tokens(engine_on: Callable[..., Engine]) -> None:
    chooser = StepSampler(engine_on(ReferenceBackend()), 70)
    request = Request([1], make_sampler(SamplingParams()), constraint=Even())
    mask = chooser._mask(request.constraint)
    assert isinstance(mask, np.ndarray)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == list(range(0, 70, 2))
