"""Requests of every kind, 1 to 16 at once: with drafts of every kind the same replies as without, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from octavo.runtime.engine.core import EngineCore
from octavo.runtime.grammar.grammar import Grammar, Grammars
from octavo.runtime.loading import load
from octavo.runtime.model import Model
from octavo.runtime.output.thinking import Thinking
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation.history_drafter import HistoryDrafter
from octavo.server.constraints.tool_choice import text_or_calls, tools_grammar
from octavo.server.constraints.tool_parameters import Tool
from octavo.server.tool_calls.formats import GENERIC
from tests.sampling import slow

MOST = 16
TOOLS = [
    Tool("add", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}),
    Tool("weather", {"type": "object", "properties": {"city": {"enum": ["Paris", "Peking"]}}, "required": ["city"]}),
]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
          "required": ["answer", "sure"], "additionalProperties": False}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.5, "top_k": 0, "top_p": 0.9},
    {"temperature": 0.0, "repeat_penalty": 1.2, "presence_penalty": 0.3},
    {"temperature": 1.0, "frequency_penalty": 0.5, "logit_bias": {65: 2.0, 66: -100.0}},
    {"temperature": 0.7, "dry_multiplier": 0.8, "xtc_probability": 0.3},
    {"temperature": 0.0, "min_tokens": 12},
]
ASKED = ("What is 12 * 7?", "1 2 3 4 5 6 1 2 3 4 5 6 1 2", "Sort these words: pear, fig, apple, fig, pear.", "x",
         "Repeat after me: to be or not to be, to be or not to be, to be")


class Replied(NamedTuple):
    """What a client sees of a reply."""

    tokens: list[int]
    finish_reason: str | None
    logprobs: list[Any]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """The demo, which two of its layers draft for: they are wrong now and then."""
    with load("demo", draft="demo-draft", device="cpu", threads=2, n_ctx=256, max_sequences=MOST) as model:
        yield model


@pytest.fixture(autouse=True)
def _doubtful(_free: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts pay, and those from replies before be wrong at their second token."""
    right = HistoryDrafter.draft

    def doubtful(self: HistoryDrafter, *asked: Any) -> list[int]:
        return [token ^ (i == 1) for i, token in enumerate(right(self, *asked))]

    monkeypatch.setattr(HistoryDrafter, "draft", doubtful)


def request(model: Model, grammars: Grammars, number: int) -> Request:
    """Settings, constraints and prompts in all combinations, by the number."""
    grammar = [
        None, None, None, Grammar.json_schema(SCHEMA), Grammar.regex("(abc ){2,9}x"),
        tools_grammar(GENERIC, TOOLS, model.tokenizer, several=True),
        text_or_calls(GENERIC, TOOLS, model.tokenizer, several=False),
    ][number % 7 if number % 3 else 0]
    thinking = Thinking("<think>", "</think>", begun=True) if number % 11 == 4 else None
    params = SamplingParams(**SETTINGS[number // 2 % len(SETTINGS)], seed=number)
    prompt = model.encode_prompt(f"{ASKED[number * 3 % len(ASKED)]} {number % 4 or ''}")
    stops = frozenset(model.tokenizer.stop_ids)
    constraint = None if grammar is None else grammars.constraint(grammar, thinking)
    return Request(
        prompt, make_sampler(params, n_prompt=len(prompt), end_ids=stops), 8 + number * 7 % 41, stop_ids=stops,
        constraint=constraint, logprobs=number % 5 if number % 4 == 1 else None, after_sampling=number % 8 == 5,
        cache_salt="" if number % 6 else "other",
    )


def replies(model: Model, core: EngineCore, grammars: Grammars, count: int) -> list[Replied]:
    """Of requests that come in groups, so that there are 1 to 16 at once."""
    made = list[Request]()
    together, pauses = (np.random.default_rng(seed) for seed in (1, 2))
    logprobs: dict[Request, list[Any]] = {}
    while len(made) < count or not core.scheduler.idle:
        if len(made) < count and (core.scheduler.idle or pauses.random() < 0.1):
            for _ in range(min(int(together.integers(1, MOST + 1)), count - len(made))):
                made.append(request(model, grammars, len(made)))
                core.add(made[-1])
        for output in core.step():
            if output.logprobs is not None:
                logprobs.setdefault(output.request, []).append(output.logprobs)
    model.engine.prefixes.clear()
    assert core.stats().held == 0
    return [Replied(list(r.output_tokens), r.finish_reason, logprobs.get(r, [])) for r in made]


@pytest.mark.parametrize("count", [30, slow(500)])
def test_with_drafts_and_without(model: Model, count: int) -> None:
    n_known = model.tokenizer.n_vocab
    plain = EngineCore(model.engine, n_known=n_known)
    drafting = EngineCore(model.engine, n_known=n_known, draft=model.draft)
    plain.speculator = None
    grammars = Grammars(model.tokenizer)
    want, got = (replies(model, core, grammars, count) for core in (plain, drafting))
    assert [i for i in range(count) if want[i] != got[i]] == []
    assert {"stop", "length"} <= {one.finish_reason for one in want}
    stats, before = drafting.stats(), plain.stats()
    assert stats.accepted_tokens > count
    assert stats.drafted_tokens > stats.accepted_tokens, "some are wrong"
    assert stats.steps < before.steps
    assert stats.generated_tokens == before.generated_tokens
