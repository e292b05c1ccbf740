"""Drafts by another model: the same tokens as without, in fewer steps where it knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.backends.reference import ReferenceBackend
from octavo.errors import BackendError, ModelError, UsageError
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams
from octavo.runtime.speculation.draft_lengths import StepCosts
from octavo.runtime.speculation.draft_model import CATCH_UP, DraftModel
from tests.runtime.speculation.test_verification import DRAWN, GREEDY, PENALTY, PROMPTS, replies, request
from tests.runtime.tiny import TOKENS as TEXTS
from tests.runtime.tiny import tensors, write

MakeEngine = Callable[..., Engine]
HOT = SamplingParams(temperature=1.0, seed=11)
LONG = np.random.default_rng(0).integers(0, 256, 3 * CATCH_UP).tolist()


@pytest.fixture
def noisy(tmp_path: Path) -> Iterator[Engine]:
    """The random model with a little noise: it often says the same."""
    path, rng = tmp_path / "m.gguf", np.random.default_rng(1)
    weights = {
        name: (w * (1 + 0.004 * rng.standard_normal(w.shape))).astype(np.float32) for name, w in tensors().items()
    }
    write(path, weights=weights)
    with GGUFFile.open(path) as file:
        config = EngineConfig(n_ctx=256, cache_type="f32", max_sequences=4)
        yield Engine(read_model(file), [ReferenceBackend()], config)


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize("params", [GREEDY, DRAWN, HOT, PENALTY])
def test_the_same_tokens_in_fewer_steps(make_engine: MakeEngine, noisy: Engine, params: SamplingParams) -> None:
    """Greedy and sampled: the draft is drawn by the same random numbers."""
    prompts = (*PROMPTS, LONG)
    core, want = replies(make_engine(max_sequences=4, speculate="off"), *(request(p, params) for p in prompts))
    engine = make_engine(max_sequences=4, speculate="draft")
    other, got = replies(engine, *(request(p, params) for p in prompts), draft=noisy)
    assert got == want
    stats = other.stats()
    assert stats.accepted_tokens > 0.2 * stats.drafted_tokens > 0
    assert stats.steps < core.stats().steps


def test_a_model_that_drafts_for_itself_is_always_right(make_engine: MakeEngine) -> None:
    engine, same = (make_engine(speculate=how) for how in ("draft", "off"))
    core, _ = replies(engine, request(PROMPTS[2], HOT, 40), draft=same)
    stats = core.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 0


def test_a_prompt_is_read_with_the_first_draft(make_engine: MakeEngine, noisy: Engine) -> None:
    """Drafts that are seldom tried would never come if a try were used up by reading."""
    core = EngineCore(make_engine(max_sequences=4, speculate="draft"), draft=noisy)
    drafter = DraftModel(noisy, noisy.model.hparams.n_vocab)
    asked = [request(p) for p in (LONG, PROMPTS[0], LONG[::-1])]
    for one in asked:
        core.add(one)
    while any(not one.num_output_tokens for one in asked):
        core.step()
    found = drafter.drafts(dict(zip(asked, (3, 2, 1), strict=True)))
    assert [len(found[one]) for one in asked] == [3, 2, 1]
    assert not drafter.reads


def test_a_prompt_longer_than_a_step_is_read_in_the_next_ones(make_engine: MakeEngine) -> None:
    core = EngineCore(make_engine(n_ctx=512, max_sequences=2, speculate="draft"))
    small = make_engine(n_ctx=512, n_batch=CATCH_UP)
    drafter, one = DraftModel(small, small.model.hparams.n_vocab), request(LONG)
    core.add(one)
    while not one.num_output_tokens:
        core.step()
    assert drafter.drafts({one: 2}) == {}
    assert drafter.reads
    assert drafter.drafts({one: 2}) == {}
    assert len(drafter.drafts({one: 2})[one]) == 2
    assert not drafter.reads


@pytest.mark.usefixtures("_free")
def test_pages_of_the_draft_model_are_given_back(make_engine: MakeEngine, noisy: Engine) -> None:
    engine = make_engine(max_sequences=4, speculate="draft")
    core, _ = replies(engine, *(request(p) for p in PROMPTS), draft=noisy)
    assert noisy.pool.held > 0
    core.add(request(PROMPTS[0]))
    list(core.drain())
    core.speculator.drafters[0].drafts({})  # type: ignore[union-attr]
    assert noisy.pool.held == 0


@pytest.mark.usefixtures("_free")
def test_where_the_draft_model_has_no_room(make_engine: MakeEngine) -> None:
    """Its context is shorter, or its cache smaller: the rest comes without drafts."""
    _, want = replies(make_engine(max_sequences=4), *(request(p, most=60) for p in (*PROMPTS, LONG)))
    for small in ({"n_ctx": 64}, {"n_pages": 1}):
        engine = make_engine(max_sequences=4, speculate="draft")
        core, got = replies(engine, *(request(p, most=60) for p in (*PROMPTS, LONG)), draft=make_engine(**small))
        assert got == want
        assert core.stats().drafts > 0


@pytest.mark.usefixtures("_free")
def test_a_draft_model_that_fails_makes_no_more_drafts(
    make_engine: MakeEngine, noisy: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, want = replies(make_engine(), request(PROMPTS[2]))
    engine = make_engine(speculate="draft")
    core = EngineCore(engine, draft=noisy)
    one = request(PROMPTS[2])
    core.add(one)
    for _ in range(4):
        core.step()

    def fails(*_: object) -> None:
        raise BackendError("the device is gone")

    monkeypatch.setattr(core.speculator.drafters[0]._sampler, "step", fails)  # type: ignore[union-attr]
    list(core.drain())
    assert [list(one.output_tokens)] == want
    assert caplog.messages == ["the draft model makes no more drafts: the device is gone"]


def test_drafts_that_are_wrong_end_soon(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that knows nothing of the text is asked ever less often."""
    monkeypatch.setattr(StepCosts, "factor", lambda _, replies, tokens: 1 + 0.2 * tokens)
    engine = make_engine(n_ctx=512, speculate="draft")
    core = EngineCore(engine, draft=make_engine(n_ctx=512))
    monkeypatch.setattr(core.speculator.drafters[0], "_next", lambda requests, drafts: dict.fromkeys(requests, 0))  # type: ignore[union-attr]
    one = request(PROMPTS[2], SamplingParams(temperature=1.0, seed=1), 400)
    core.add(one)
    list(core.drain())
    assert one.drafts.accepted < 5
    assert one.drafts.drafted < 120


@pytest.mark.usefixtures("_free")
def test_lookup_and_a_draft_model_together(make_engine: MakeEngine, noisy: Engine) -> None:
    """Where its own text repeats, the request needs no other model."""
    engine = make_engine(max_sequences=2, speculate="auto")
    _, want = replies(make_engine(max_sequences=2, speculate="off"), *(request(p) for p in PROMPTS[:2]))
    core, got = replies(engine, *(request(p) for p in PROMPTS[:2]), draft=noisy)
    assert got == want
    assert core.stats().accepted_tokens > 0


@pytest.fixture
def demo() -> Iterator[Model]:
    with octavo.load("demo", draft="demo", device="cpu", threads=1, n_ctx=256) as model:
        yield model


def test_load(demo: Model) -> None:
    assert demo.engine.config.speculate == "auto"
    with octavo.load("demo", device="cpu", threads=1, n_ctx=256, speculate="off") as plain:
        want = plain.generate("What is 12 times 7?", temperature=0.7, seed=3, max_tokens=24).text
    assert demo.generate("What is 12 times 7?", temperature=0.7, seed=3, max_tokens=24).text == want
    assert demo.core.stats().accepted_tokens > 0


def test_another_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    model = write(tmp_path / "model.gguf")
    other = list(TEXTS)
    other[7] = "other"
    draft = write(tmp_path / "draft.gguf", keys={"tokenizer.ggml.tokens": other})
    with pytest.raises(ModelError, match=r"token 7 is 'other' in the draft model and .* in the model") as error:
        octavo.load(model, draft=draft)
    assert "draft.gguf" in str(error.value)
    with pytest.raises(ModelError, match="another vocabulary"):
        octavo.load(model, draft="demo")


def test_what_does_not_go_together(tmp_path: Path) -> None:
    model = write(tmp_path / "model.gguf")
    with pytest.raises(UsageError, match="speculate is draft, but there is no draft model"):
        octavo.load(model, speculate="draft")
    for how in ("off", "lookup"):
        problem = rf"speculate is {how}, beside a draft model or head \(allowed: auto, draft, or mtp for a head\)"
        with pytest.raises(UsageError, match=problem):
            octavo.load(model, speculate=how, draft=model)
    with pytest.raises(UsageError, match=r"draft: demo-mpt: there is no such file .*; did you mean demo-mtp\?"):
        octavo.load(model, draft="demo-mpt")
