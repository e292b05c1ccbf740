"""Drafts from a request's own text: fewer steps, and the same tokens as without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.errors import NonFiniteError
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine
from octavo.runtime.grammar.grammar import Grammar, Grammars
from octavo.runtime.loading import load
from octavo.runtime.model import Model
from octavo.runtime.output.thinking import Thinking
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation.ngram_drafter import NgramDrafter

MakeEngine = Callable[..., Engine]
GREEDY, DRAWN = SamplingParams(temperature=0.0), SamplingParams(temperature=0.3, top_k=3, seed=3)
PROMPTS = ([1, 2, 3, 4, 5, 6] * 4, [7, 7, 7, 7, 7, 7], [9, 8, 7, 1, 2])


def test_drafts() -> None:
    lookup = NgramDrafter()
    assert lookup.draft([1, 2], 3) == []
    assert lookup.draft([1, 2, 3, 4, 5], 3) == []
    text = [1, 2, 3, 4, 5, 1, 2, 3]
    assert lookup.draft(text, 3) == [4, 5, 1]
    assert lookup.draft(text, 7) == [4, 5, 1, 2, 3, 4, 5]
    assert lookup.draft([*text, 9, 9, 1, 2, 3], 2) == [9, 9], "the last place counts"
    assert NgramDrafter().draft([7] * 4, 3) == [7, 7, 7]


def replies(engine: Engine, *requests: Request, **more: Any) -> tuple[EngineCore, list[list[int]]]:
    core = EngineCore(engine, **more)
    for one in requests:
        core.add(one)
    while not core.scheduler.idle:
        core.step()
    engine.prefixes.clear()
    assert core.stats().held == 0
    return core, [list(one.output_tokens) for one in requests]


def request(prompt: list[int], params: SamplingParams = GREEDY, most: int | None = 24, **more: Any) -> Request:
    return Request(list(prompt), make_sampler(params), most, **more)


PENALTY = SamplingParams(temperature=0.0, repeat_penalty=1.05, presence_penalty=0.01, frequency_penalty=0.01)


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize(("params", "pages", "most"), [(GREEDY, 3, 45), (DRAWN, 32, 30), (PENALTY, 32, 24)])
def test_the_same_tokens_in_fewer_steps(make_engine: MakeEngine, params: SamplingParams, pages: int, most: int) -> None:
    plain, drafting = (make_engine(max_sequences=3, n_pages=pages, speculate=how) for how in ("off", "lookup"))
    for prompts in (PROMPTS[:1], PROMPTS):
        core, want = replies(plain, *(request(p, params, most) for p in prompts))
        other, got = replies(drafting, *(request(p, params, most) for p in prompts))
        assert got == want
        stats = other.stats()
        assert stats.generated_tokens == core.stats().generated_tokens
        assert stats.accepted_tokens > 0
        if params is GREEDY:
            assert stats.steps < core.stats().steps


@pytest.mark.usefixtures("_free")
def test_drafts_where_tokens_are_left_out(make_engine: MakeEngine) -> None:
    _, (text,) = replies(make_engine(), request(PROMPTS[0]))
    found = []
    for how in ("off", "lookup"):
        sampler = make_sampler(SamplingParams(temperature=0.0, ignore_eos=True), end_ids={text[4], text[9]})
        core, got = replies(make_engine(speculate=how), Request(list(PROMPTS[0]), sampler, 24))
        found.append(got)
        assert (core.stats().drafts > 0) == (how == "lookup")
    assert found[0] == found[1] != [text]


def test_where_a_reply_ends(make_engine: MakeEngine) -> None:
    """At an end token, at its length and where the context is full, though a draft has more."""
    plain, drafting = (make_engine(n_ctx=64, speculate=how) for how in ("off", "lookup"))
    _, (text,) = replies(plain, request(PROMPTS[1], most=30))
    for more in ({"stop_ids": frozenset({text[9]})}, {"most": 10}, {"most": 11}, {"most": 1}, {"most": None}):
        ends = []
        for engine in (plain, drafting):
            one = request(PROMPTS[1], **{"most": 30, **more})  # type: ignore[arg-type]
            replies(engine, one)
            ends.append((list(one.output_tokens), one.finish_reason))
        assert ends[0] == ends[1]


def test_log_probabilities_come_with_drafts(make_engine: MakeEngine) -> None:
    found = []
    for how in ("off", "lookup"):
        core = EngineCore(make_engine(speculate=how))
        core.add(request(PROMPTS[0], logprobs=2))
        outputs = list(core.drain())
        found.append([(o.token, o.logprobs and o.logprobs.likely[0][0], o.logprobs is None) for o in outputs])
    assert found[0] == found[1]


def test_many_replies_have_no_drafts(make_engine: MakeEngine) -> None:
    core, _ = replies(make_engine(max_sequences=4, speculate="lookup"), *(request(PROMPTS[1]) for _ in range(4)))
    assert core.stats().drafts == 0


def test_steps_with_drafts_that_fail(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed without."""
    _, want = replies(make_engine(), request(PROMPTS[0]))
    engine = make_engine(speculate="lookup")
    core = EngineCore(engine)
    step = core.sampler.step

    def failing(feeds: Any, choosing: Any, *places: Any) -> Any:
        if places:
            raise NonFiniteError("no")
        return step(feeds, choosing)

    monkeypatch.setattr(core.sampler, "step", failing)
    one = request(PROMPTS[0])
    core.add(one)
    assert [o.token for o in core.drain()] == want[0]
    assert core.stats().drafts == 0


SCHEMA = {"type": "object", "properties": {"answer": {"enum": [True, "abcabcabc"]}}, "required": ["answer"],
          "additionalProperties": False}
HELD = [
    (Grammar.json_schema(SCHEMA), None),
    (Grammar.regex("(abc ){6,8}x"), None),
    (Grammar.regex("(ab){3,4} (ab){3,4}"), Thinking("<think>", "</think>", begun=True)),
]


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize(("grammar", "thinking"), HELD)
def test_drafts_of_replies_that_a_grammar_holds(model: Model, grammar: Grammar, thinking: Thinking | None) -> None:
    """What the grammar forces is a draft too."""
    grammars, found = Grammars(model.tokenizer), []
    for drafts in (True, False):
        core, made = EngineCore(model.engine, n_known=model.tokenizer.n_vocab), list[Request]()
        if not drafts:
            core.speculator = None
        for params in (GREEDY, SamplingParams(temperature=2.0, seed=1)):
            one = request(model.encode_prompt("x"), params, 60, constraint=grammars.constraint(grammar, thinking))
            one.stop_ids = frozenset(model.tokenizer.stop_ids)
            core.add(one)
            made.append(one)
        list(core.drain())
        found.append([(one.finish_reason, model.tokenizer.decode(one.output_tokens)) for one in made])
        assert (core.stats().accepted_tokens > 0) == drafts
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def model() -> Model:
    return load("demo", device="cpu", threads=2, n_ctx=256, max_sequences=8, speculate="lookup")


@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, seed=5)])
def test_the_demo_models_replies(model: Model, params: SamplingParams) -> None:
    """Bit for bit the same, on the CPU."""
    prompts = [model.encode_prompt(text) for text in ("What is 12 * 7?", "1 2 3 4 5 6 1 2 3 4 5 6 1 2")]
    core, got = replies(model.engine, *(request(p, params, 40) for p in prompts), n_known=model.tokenizer.n_vocab)
    assert core.stats().accepted_tokens > 3
    core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab)
    core.speculator = None
    requests = [request(p, params, 40) for p in prompts]
    for one in requests:
        core.add(one)
    list(core.drain())
    assert [list(one.output_tokens) for one in requests] == got
