"""A budget for thinking: what is forced after it, in all kinds of places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from octavo.runtime import Model
from octavo.runtime.output.thinking import Thinking
from octavo.runtime.sampling.reasoning_budget import ReasoningBudget, closing
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.sampling.token_counts import CountedText
from octavo.text import Tokenizer

BEGUN, MAY = Thinking("<think>", "</think>", begun=True), Thinking("<think>", "</think>")
PROMPT = [1, 2, 3]


class Bytes:
    """A vocabulary of bytes."""

    n_vocab = 256

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def encode(self, text: str, **more: Any) -> list[int]:
        return list(text.encode())


TOKENIZER: Tokenizer = Bytes()  # type: ignore[assignment]


def reply(budget: int, wanted: bytes, thinking: Thinking = BEGUN, message: str = "", n: int = 60) -> bytes:
    """What comes of a model that wants to write this, by a processor that sees the text grow; each step is tried with
    drafts before it."""
    made = ReasoningBudget(budget, closing(TOKENIZER, message, thinking), thinking, TOKENIZER, len(PROMPT))
    text = CountedText(PROMPT)
    left = list(wanted)
    while left and len(text) < n + len(PROMPT):
        draft = CountedText([*text, *left[:3]], base=text)
        ReasoningBudget.of_all([made], [draft])
        found = ReasoningBudget.of_all([made], [text])
        again = ReasoningBudget.of_all([made], [list(text)])
        assert found.ids.tolist() == again.ids.tolist()
        logits = np.zeros(256, np.float32)
        logits[left[0]] = 5
        token = int(found(logits).argmax())
        if token == left[0]:
            left.pop(0)
        text.append(token)
    return bytes(text[len(PROMPT) :])


@pytest.mark.parametrize(("budget", "thinking", "wanted", "want"), [
    (3, BEGUN, b"abcdef", b"abc</think>def"),
    (0, BEGUN, b"abc", b"</think>abc"),
    (3, BEGUN, b"ab</think>answer", b"ab<</think>answer"),
    (30, BEGUN, b"ab</think>an answer that is longer than that", b"ab</think>an answer that is longer than that"),
    (2, MAY, b" <think>abc", b" <think>ab</think>c"),
    (0, MAY, b"<think>abc", b"<think></think>abc"),
    (2, MAY, b"<tool>abcdef", b"<tool>abcdef"),
    (2, MAY, b"an answer <think>abcdef", b"an answer <think>abcdef"),
    (1, Thinking("<think>", "</think>", ended=True), b"abc", b"abc"),
    (2, BEGUN, "a€bc".encode(), "a€</think>bc".encode()),
    (1, BEGUN, "🎉x".encode(), "🎉</think>x".encode()),
])
def test_what_is_forced(budget: int, thinking: Thinking, wanted: bytes, want: bytes) -> None:
    assert reply(budget, wanted, thinking) == want


def test_the_message_comes_before_the_end() -> None:
    assert reply(2, b"abcd", message="\nTime is up.\n") == b"ab\nTime is up.\n</think>cd"


def test_a_text_that_goes_back() -> None:
    one = ReasoningBudget(3, [9, 9], BEGUN, TOKENIZER, len(PROMPT))
    text = CountedText([*PROMPT, 65, 66, 67])
    assert one.state(text).phase == "forced"
    text.cut(len(PROMPT) + 1)
    assert one.state(text) == ("thinks", 1, b"A")
    text.append(66)
    text.append(67)
    text.append(9)
    assert one.state(text) == ("forced", 1, b"")


@pytest.mark.parametrize("more", [{"temperature": 0}, {}, {"top_k": 0, "typical_p": 0.5, "top_n_sigma": 1.0},
                                  {"xtc_probability": 1.0, "repeat_penalty": 1.5, "dry_multiplier": 1.0}])
def test_whatever_the_other_settings(more: dict[str, Any]) -> None:
    params = SamplingParams(**{"temperature": 5.0, "seed": 1, "reasoning_budget": 0, **more, "dry_multiplier": 0})
    sampler = make_sampler(params, n_prompt=len(PROMPT), tokenizer=TOKENIZER, thinking=BEGUN)
    text = list(PROMPT)
    for want in b"</think>":
        assert sampler(np.random.default_rng(len(text)).normal(0, 5, 256).astype(np.float32), text) == want
        text.append(want)


def test_replies_of_one_step() -> None:
    ones = [ReasoningBudget(b, [7, 8], BEGUN, TOKENIZER, len(PROMPT)) for b in (0, 5, 1)]
    texts: list[Sequence[int]] = [[*PROMPT, 7], [*PROMPT, 65], [*PROMPT, 65]]
    found = ReasoningBudget.of_all(ones, texts)
    assert [(i >> 32, i & 0xFFFFFFFF) for i in found.ids.tolist()] == [(0, 8), (2, 7)]


def test_without_thinking_there_is_nothing_to_limit(random_model: Model) -> None:
    plain = random_model.generate("ab", raw=True, seed=1, max_tokens=20).text
    assert random_model.generate("ab", raw=True, seed=1, max_tokens=20, reasoning_budget=0).text == plain
