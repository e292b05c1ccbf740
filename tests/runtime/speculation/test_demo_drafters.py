"""What drafts for the demo model: the same replies as without, in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo
from octavo.data import DRAFTERS
from octavo.data.questions import questions
from octavo.errors import ModelError
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation.draft_lengths import StepCosts
from octavo.runtime.speculation.draft_model import DraftModel
from octavo.runtime.speculation.head_drafter import HeadDrafter
from tests.models.eagle3_heads import tensors, write
from tests.runtime import tiny

ASKED = [question.prompt for question in questions(0, 6)]
GREEDY = SamplingParams(temperature=0.0)
WAYS = (GREEDY, SamplingParams(temperature=0.7, seed=5), SamplingParams(temperature=0.0, repeat_penalty=1.02))


@pytest.fixture(scope="module")
def plain() -> Iterator[Model]:
    with octavo.load("demo", device="cpu", n_ctx=256, max_sequences=len(ASKED), speculate="off") as model:
        yield model


def replies(model: Model, params: SamplingParams) -> tuple[EngineCore, list[list[int]]]:
    core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab, draft=model.draft, head=model.head)
    asked = [Request(model.encode_prompt(p), make_sampler(params), 48, model.tokenizer.stop_ids) for p in ASKED]
    for one in asked:
        core.add(one)
    list(core.drain())
    model.engine.prefixes.clear()
    return core, [list(one.output_tokens) for one in asked]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_same_replies_in_fewer_steps(name: str, plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCosts, "factor", lambda *_: 1.0)
    for drafter in (HeadDrafter, DraftModel):
        monkeypatch.setattr(drafter, "seconds", lambda *_: 0.0)
    with octavo.load("demo", draft=name, device="cpu", n_ctx=256, max_sequences=len(ASKED), speculate="draft") as model:
        assert (model.head is None) == (name == "demo-draft")
        for params in WAYS:
            _, want = replies(plain, params)
            core, got = replies(model, params)
            assert got == want
            stats = core.stats()
            assert stats.generated_tokens / stats.steps > len(ASKED), "more than a token a reply and step"
            assert stats.accepted_tokens > 0.25 * stats.drafted_tokens > 0


def test_a_head_of_another_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "head.gguf", tensors())
    with pytest.raises(ModelError, match="target_hidden_size: is 264, but the model is 256 wide"):
        octavo.load("demo", draft=tmp_path / "head.gguf", device="reference")
    tiny.write(tmp_path / "m.gguf")
    for name in ("demo-mtp", "demo-eagle3"):
        with pytest.raises(ModelError):
            octavo.load(tmp_path / "m.gguf", draft=name, device="reference")
