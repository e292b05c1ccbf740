"""Generations: where they end, what they show, and that they free the model however they end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.errors import ContextFullError, NonFiniteError, UsageError
from octavo.runtime import Generation, Model
from octavo.runtime.conversation import Conversation
from octavo.runtime.engine.core import EngineCore
from tests.runtime import tiny
from tests.runtime.tiny import ALPHABET, END

GREEDY = {"temperature": 0.0}


def scripted(model: Model, tokens: Sequence[int], prompt: Sequence[int] = (1, 2), **options: object) -> Generation:
    """A generation of these very tokens."""
    script: Iterator[int] = iter(tokens)
    return Generation(
        Conversation(EngineCore(model.engine)), prompt,
        sampler=lambda logits, seen: next(script), tokenizer=model.tokenizer, **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_max_tokens(alphabet: Model, n: int) -> None:
    generation = alphabet.generate("hi", max_tokens=n, **GREEDY)
    assert list(generation) == list(ALPHABET[:n])
    assert generation.text == ALPHABET[:n]
    assert generation.tokens == [ord(c) for c in ALPHABET[:n]]
    assert generation.finish_reason == "length"
    assert generation.timings.generated_tokens == n
    assert generation.timings.prompt_tokens == len(alphabet.encode_prompt("hi"))
    assert (generation.timings.decode_seconds > 0) == (n > 1)


def test_text_runs_to_the_end(alphabet: Model) -> None:
    generation = alphabet.generate("hi", **GREEDY)
    assert (next(generation), generation.text_so_far) == ("a", "a")
    assert generation.text == generation.text_so_far == str(generation) == ALPHABET
    assert str(alphabet.generate("hi", max_tokens=2, **GREEDY)) == "ab"


def test_repr_says_how_far_it_is_and_runs_nothing(alphabet: Model) -> None:
    generation = alphabet.generate("hi", **GREEDY)
    assert repr(generation) == "<Generation: not begun, 0 tokens, ''>"
    next(generation)
    assert repr(generation) == "<Generation: under way, 1 tokens, 'a'>"
    generation.close()
    assert repr(generation) == "<Generation: interrupted, 1 tokens, 'a'>"


def test_who_asks_again_is_told_again_why_it_failed(alphabet: Model) -> None:
    generation = alphabet.generate(list(b"x" * 600))
    for _ in range(2):
        with pytest.raises(ContextFullError, match="600 tokens does not fit"):
            list(generation)
    with pytest.raises(ContextFullError):
        generation.text  # noqa: B018


def test_an_end_token_ends_it_and_is_not_shown(alphabet: Model) -> None:
    generation = alphabet.generate("hi", **GREEDY)
    assert "".join(generation) == ALPHABET
    assert generation.tokens[-1] == END
    assert (generation.finish_reason, generation.timings.generated_tokens) == ("stop", 27)
    assert list(generation) == [], "a generation is there once"


@pytest.mark.parametrize("stop", ["def", ["def"], ["xyz", "def", ""]])
def test_stop_strings(alphabet: Model, stop: str | list[str]) -> None:
    generation = alphabet.generate("hi", stop=stop, **GREEDY)
    assert list(generation) == ["a", "b", "c"], "what may be a stop string is held back"
    assert (generation.text, generation.finish_reason) == ("abc", "stop")


def test_held_back_text_comes_at_the_end(alphabet: Model) -> None:
    generation = alphabet.generate("hi", stop="deX", max_tokens=5, **GREEDY)
    assert list(generation) == ["a", "b", "c", "de"]
    assert generation.finish_reason == "length"


def test_half_a_character_is_never_shown(alphabet: Model) -> None:
    generation = scripted(alphabet, [*"aé€".encode(), "€".encode()[0]], max_tokens=7)
    assert list(generation) == ["a", "é", "€"]


def test_a_full_context_raises_after_the_text(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=41) as model:
        n_prompt = len(model.encode_prompt("hi"))
        generation = model.generate("hi", stop="stX", **GREEDY)
        shown: list[str] = []
        with pytest.raises(ContextFullError) as caught:
            shown.extend(iter(generation))
        n_reply = 41 - n_prompt
        assert shown == [*ALPHABET[: n_reply - 2], "st"], "what was held back comes before the error"
        assert generation.text_so_far == ALPHABET[:n_reply] == "abcdefghijklmnopqrst"
        assert generation.finish_reason == "context"
        assert str(caught.value) == (
            f"the context of 41 tokens is full: {n_prompt} of the prompt and {n_reply} of the reply"
        )
        assert "".join(model.generate("hi", max_tokens=3, **GREEDY)) == "abc", "the model is free again"


def test_a_prompt_over_the_context(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=40) as model:
        generation = model.generate("x" * 40)
        with pytest.raises(ContextFullError, match="does not fit the context of 40"):
            next(generation)
        assert "".join(model.generate("hi", max_tokens=2, **GREEDY)) == "ab"


def test_close_frees_the_model(alphabet: Model) -> None:
    generation = alphabet.generate("hi", **GREEDY)
    next(generation)
    generation.close()
    assert (generation.text, generation.finish_reason) == ("a", "interrupted")
    assert list(generation) == []
    never_begun = alphabet.generate("hi", **GREEDY)
    never_begun.close()
    assert never_begun.finish_reason == "interrupted"
    alphabet.generate("forgotten")
    assert "".join(alphabet.generate("hi", **GREEDY)) == ALPHABET


def test_a_loop_left_early_frees_the_model(alphabet: Model) -> None:
    for piece in alphabet.generate("hi", **GREEDY):
        if piece == "c":
            break
    assert "".join(alphabet.generate("hi", **GREEDY)) == ALPHABET


def test_an_interrupt_in_a_step_leaves_the_cache_right(alphabet: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = alphabet.engine.load()
    run, calls = executor.run, []

    def interrupted(*args: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(executor, "run", interrupted)
    generation = alphabet.generate("hi", **GREEDY)
    with pytest.raises(KeyboardInterrupt):
        list(generation)
    assert (generation.text, generation.finish_reason) == ("abc", "interrupted")
    assert "".join(alphabet.generate("hi", **GREEDY)) == ALPHABET


def test_nan_weights_end_in_an_error_and_no_text(tmp_path: Path) -> None:
    weights = tiny.alphabet()
    weights["blk.0.attn_norm.weight"][3] = np.nan
    with octavo.load(tiny.write(tmp_path / "nan.gguf", weights=weights), device="reference") as model:
        generation = model.generate("hi", **GREEDY)
        with pytest.raises(NonFiniteError, match="NaN or Inf"):
            list(generation)
        assert generation.text_so_far == ""
        with pytest.raises(NonFiniteError):
            list(model.generate("hi", **GREEDY))


def test_tokens_that_the_vocabulary_lacks_are_never_chosen(tmp_path: Path) -> None:
    weights = tiny.alphabet()
    weights["output.weight"][tiny.N_VOCAB - 1] = 9  # the row that pads the embedding would win always
    with octavo.load(tiny.write(tmp_path / "padded.gguf", weights=weights), device="reference") as model:
        assert "".join(model.generate("hi", **GREEDY)) == ALPHABET
        assert "".join(model.generate("hi", temperature=0.5, seed=1)) == ALPHABET


@pytest.mark.parametrize("shared", [0, 1, 30, 64, 100])
def test_what_prompts_share_is_computed_once(random_model: Model, random_path: str, shared: int) -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, 120).tolist()
    second = [*first[:shared], (first[shared] + 1) % 256, *rng.integers(0, 256, 9).tolist()]
    list(random_model.generate(first, max_tokens=4, **GREEDY))
    again = random_model.generate(second, max_tokens=12, **GREEDY)
    list(again)
    assert again.timings.cached_tokens == shared
    with octavo.load(random_path, device="reference", n_ctx=256) as fresh:
        alone = fresh.generate(second, max_tokens=12, **GREEDY)
        list(alone)
        assert alone.timings.cached_tokens == 0
        assert again.tokens == alone.tokens


def test_the_same_prompt_again_computes_its_last_token_only(random_model: Model) -> None:
    prompt = list(range(50))
    first = random_model.generate(prompt, max_tokens=8, **GREEDY)
    list(first)
    again = random_model.generate(prompt, max_tokens=8, **GREEDY)
    list(again)
    assert again.timings.cached_tokens == 49
    assert again.tokens == first.tokens
    longer = random_model.generate([*prompt, *first.tokens, 7], max_tokens=1, **GREEDY)
    list(longer)
    assert longer.timings.cached_tokens == 57, "the reply is in the cache too, but for its last token"


def test_logits_after_reuse_are_those_of_a_fresh_sequence(random_path: str) -> None:
    """With a float32 cache: sums of another order, as steps of other sizes have them, are rounded apart in float16."""
    with octavo.load(random_path, device="reference", n_ctx=256, cache_type="f32") as model:
        _compare_reused(model)


def _compare_reused(model: Model) -> None:
    engine, seen = model.engine, []

    def sampler(logits: np.ndarray, tokens: Sequence[int]) -> int:
        seen.append(logits)
        return 5

    conversation, prompt = Conversation(EngineCore(engine)), list(range(100))
    for tokens in (prompt, [*prompt[:70], 3, 4]):
        list(Generation(conversation, tokens, sampler=sampler, tokenizer=model.tokenizer, max_tokens=1))
    want = engine.logits([*prompt[:70], 3, 4])[-1]
    known = model.tokenizer.n_vocab
    np.testing.assert_allclose(seen[1][:known], want[:known], rtol=0, atol=1e-4)


def test_chat_replies_to_messages_and_its_message_goes_on(alphabet: Model) -> None:
    messages = [{"role": "user", "content": "hi"}]
    reply = alphabet.chat(messages, max_tokens=3, **GREEDY)
    assert reply.message == {"role": "assistant", "content": "abc"}
    assert messages == [{"role": "user", "content": "hi"}]
    messages += [reply.message, {"role": "user", "content": "more"}]
    assert alphabet.chat(messages, **GREEDY).text == alphabet.generate(messages, **GREEDY).text


@pytest.mark.parametrize(("messages", "options", "said"), [
    ("hi", {}, r"messages is 'hi' \(allowed: a list of messages"),
    ([], {}, r"messages is \[\] \(allowed: one message or more\)"),
    ([1, 2], {}, "1 is not a message"),
    ([{"role": "user", "content": "hi"}], {"raw": True}, "raw is not an argument of chat"),
    ([{"role": "user", "content": "hi"}], {"top_logprobs": 1}, r"not an argument of chat: did you mean logprobs\?"),
])
def test_chat_takes_messages_alone(alphabet: Model, messages: object, options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        alphabet.chat(messages, **options)  # type: ignore[arg-type]


def test_tasks_read_replies_side_by_side(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=64, max_sequences=2) as model:

        async def read(token: int) -> str:
            return "".join([piece async for piece in model.generate([token], **GREEDY)])

        async def both() -> list[str]:
            return await asyncio.gather(read(ord("w")), read(ord("v")))

        assert asyncio.run(both()) == ["xyz", "wxyz"]

        async def leave() -> Generation:
            reply = model.generate([ord("a")], **GREEDY)
            async for _ in reply:
                break
            return reply

        assert asyncio.run(leave()).finish_reason == "interrupted"
        assert model.generate([ord("w")], **GREEDY).text == "xyz"
