"""Several prompts at once: the replies are those that each gets alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import ContextFullError, UsageError
from octavo.runtime import Model
from tests.runtime.tiny import ALPHABET, END

GREEDY: Any = {"temperature": 0.0}


@pytest.fixture(params=[1, 3])
def model(request: pytest.FixtureRequest, alphabet_path: str) -> Any:
    with octavo.load(alphabet_path, device="reference", n_ctx=64, max_sequences=request.param) as model:
        yield model


def test_replies_come_in_the_order_of_the_prompts(model: Model) -> None:
    unfinished = model.generate("hi", **GREEDY)
    next(unfinished)
    prompts = ["hi", [ord("w")], [{"role": "user", "content": "x"}], [ord("y")], [ord("z")]]
    replies = model.generate_many(prompts, **GREEDY)
    assert [str(reply) for reply in replies] == [ALPHABET, "xyz", ALPHABET, "z", ""]
    assert [reply.finish_reason for reply in replies] == ["stop"] * 5
    assert replies[1].tokens == [*b"xyz", END]
    assert repr(replies[1]) == "<Reply: stop, 4 tokens, 'xyz'>"
    assert unfinished.text == ALPHABET
    assert (model.engine.pool.free, model.engine.pool.held) == (model.engine.pool.n_pages, 0)


def test_options_are_those_of_each(model: Model) -> None:
    prompts = [[ord("w")], [ord("c")], [1]]
    assert [r.text for r in model.generate_many(prompts, max_tokens=2, **GREEDY)] == ["xy", "de", "ab"]
    assert [r.text for r in model.generate_many(prompts, stop="c", max_tokens=3, **GREEDY)] == ["xyz", "def", "ab"]
    drawn: Any = {"temperature": 9.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3, "max_tokens": 4}
    alone = [model.generate(p, **drawn) for p in prompts]
    texts = [generation.text for generation in alone]
    assert [r.text for r in model.generate_many(prompts, **drawn)] == texts
    assert model.generate_many([], **GREEDY) == []
    assert [r.finish_reason for r in model.generate_many(prompts, max_tokens=0, **GREEDY)] == ["length"] * 3


def test_a_reply_ends_where_the_context_does(model: Model) -> None:
    full, short = model.generate_many([[*b"x" * 59, ord("b")], [ord("x")]], **GREEDY)
    assert (full.text, full.finish_reason) == ("cdef", "context")
    assert (short.text, short.finish_reason) == ("yz", "stop")


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        ("hi", {}, UsageError, "prompts is 'hi' .*a list of prompts"),
        (None, {}, UsageError, "prompts is None"),
        (["a", None], {}, UsageError, "prompt is None"),
        (["a"], {"temp": 1}, UsageError, "temp is not an argument of generate_many: did you mean temperature"),
        ([[1], [2] * 65], {}, ContextFullError, "prompt 1, of 65 tokens, does not fit the context of 64"),
        ([[1], []], {}, UsageError, "has no tokens"),
        ([[1], [999]], {}, UsageError, "token 999"),
    ],
)
def test_what_is_wrong_leaves_nothing_behind(
    model: Model, prompts: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        model.generate_many(prompts, **options)
    assert model.engine.pool.free == model.engine.pool.n_pages


def test_what_prompts_share_is_computed_once(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=256, max_sequences=2) as model:
        prompt = "tell me about this: " * 8
        first = model.generate_many([f"{prompt}{i}" for i in range(3)], **GREEDY)
        assert [reply.text for reply in first] == [ALPHABET] * 3
        stats = model.core.stats()
        assert stats.cached_tokens >= 2 * 128
        model.generate_many([f"{prompt}0"], **GREEDY)
        again = model.core.stats()
        assert again.prompt_tokens - again.cached_tokens == stats.prompt_tokens - stats.cached_tokens + 1
        assert (again.held, again.running, again.waiting) == (0, 0, 0)


def test_ends_and_biases_are_those_of_each_reply(model: Model) -> None:
    both = [lambda p, **o: model.generate_many([p], **o)[0].text, lambda p, **o: model.generate(p, **o).text]
    for text in both:
        assert text([ord("w")], stop_token_ids=[ord("z")], **GREEDY) == "xy", "what ends it is not a part of it"
        assert text([ord("w")], logit_bias={ord("y"): -100}, max_tokens=1, **GREEDY) == "x"
        assert len(text([ord("x")], ignore_eos=True, max_tokens=9, **GREEDY)) > 2
    with pytest.raises(UsageError, match=r"logit_bias is 259 \(allowed: 0 to 258\)"):
        model.generate("x", logit_bias={259: 1.0})


def test_pages_of_a_conversation_are_there_for_others(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=64, max_sequences=3) as model:
        prompts, steps = [[ord("w")], [ord("v")], [ord("u")]], []
        for _ in range(2):
            before = model.core.steps
            model.generate_many(prompts, **GREEDY)
            steps.append(model.core.steps - before)
            assert model.generate([ord("y")], **GREEDY).text == "z"
            assert model.engine.pool.held == 0
        assert steps[1] <= steps[0], "all of them run at the same time, again"


def test_pieces_come_with_their_places_as_they_are_made(model: Model) -> None:
    prompts = [[ord("w")], [ord("u")], [ord("z")]]
    stream = model.stream_many(prompts, **GREEDY)
    assert [reply.text for reply in stream.replies] == ["", "", ""], "nothing is computed before it is asked for"
    pieces = list(stream)
    assert {i: "".join(text for at, text in pieces if at == i) for i in range(3)} == {0: "xyz", 1: "vwxyz", 2: ""}
    assert [(r.text, r.finish_reason) for r in stream.replies] == [("xyz", "stop"), ("vwxyz", "stop"), ("", "stop")]
    assert [r.tokens for r in stream.replies] == [r.tokens for r in model.generate_many(prompts, **GREEDY)]
    order = [at for at, _ in pieces]
    assert (order[:2] == [0, 1]) is (model.engine.config.max_sequences > 1), "as many at a time as there is room for"
    assert model.core.stats().held == 0


def test_a_stream_ends_its_replies_when_it_is_left(model: Model) -> None:
    stream = model.stream_many([[ord("a")], [ord("b")], [1]], max_tokens=0, **GREEDY)
    assert list(stream) == []
    stream = model.stream_many([[ord("a")], [ord("b")], [1]], **GREEDY)
    at, text = next(stream)
    other = model.generate([ord("w")], **GREEDY)
    assert (at, text, other.text) == (0, "b", "xyz"), "others may have steps between"
    stream.close()
    assert [reply.finish_reason for reply in stream.replies] == ["interrupted"] * 3
    assert model.generate_many([[ord("w")]], **GREEDY)[0].text == "xyz"
    stats = model.core.stats()
    assert (stats.held, stats.running, stats.waiting) == (0, 0, 0)
    with pytest.raises(UsageError, match="temp is not an argument of stream_many"):
        model.stream_many(["a"], temp=1)  # type: ignore[call-arg]


def test_steps_of_others_bring_a_stream_tokens_too(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=64, max_sequences=3) as model:
        stream = model.stream_many([[ord("s")], [ord("t")]], logprobs=1, **GREEDY)
        next(stream)
        model._talk.step()
        assert model.generate_many([[ord("w")]], **GREEDY)[0].text == "xyz"
        assert "".join(text for at, text in stream if at == 1) == "uvwxyz"
        assert [len(reply.logprobs) for reply in stream.replies] == [8, 7]


@pytest.mark.parametrize("n", [0, 2])
def test_how_likely_tokens_were_is_the_same_alone_and_beside_others(model: Model, n: int) -> None:
    prompts: Any = [[ord("w")], [ord("x")]]
    alone = [model.generate(prompt, logprobs=n, **GREEDY) for prompt in prompts]
    assert [reply.text for reply in alone] == ["xyz", "yz"]
    for reply, prompt in zip(alone, prompts, strict=True):
        assert len(reply.logprobs) == len(reply.tokens), "an end token has one too"
        logits = model.logits([*prompt, *reply.tokens[:-1]]).astype(float)
        rows = (
            logits
            - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            - logits.max(1, keepdims=True)
        )
        for row, token, found in zip(rows, reply.tokens, reply.logprobs, strict=True):
            assert found.token == pytest.approx(row[token], abs=1e-4)
            assert [p for _, p in found.likely] == pytest.approx(-np.sort(-row)[:n], abs=1e-4)
    stream = model.stream_many(prompts, logprobs=n, **GREEDY)
    list(stream)
    for replies in (model.generate_many(prompts, logprobs=n, **GREEDY), stream.replies):
        assert [[p.token for p in r.logprobs] for r in replies] == [
            pytest.approx([p.token for p in r.logprobs], abs=1e-5) for r in alone
        ]
    assert model.generate(prompts[0], **GREEDY).logprobs == []
    with pytest.raises(UsageError, match=r"logprobs is -1 \(allowed: 0 to 259\)"):
        model.generate("x", logprobs=-1)
