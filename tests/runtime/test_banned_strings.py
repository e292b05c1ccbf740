"""Replies that may not have some texts: they go back, and on in another way, and nobody sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.errors import GrammarError, UsageError
from octavo.runtime import Model
from octavo.runtime.grammar.grammar import Grammar
from octavo.runtime.sampling.banned_strings import BannedStrings
from octavo.text import Tokenizer
from tests.runtime.stateful import write_with_tokenizer
from tests.sampling import slow

ASK = "Write about numbers."
SEEDS = range(6)
HOW: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 80, "ignore_eos": True}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with octavo.load("demo", max_sequences=8, device="cpu") as loaded:
        yield loaded


def banned_of(text: str) -> list[str]:
    """Texts of a reply, mostly of several tokens, some in another case, and such that begin in the middle of one."""
    found = [text[10:16].upper(), text[25:29], text[41:50], text[60:62]]
    return [text for text in found if text.strip()]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_banned_text_is_in_no_reply_and_in_no_piece(model: Model, seed: int) -> None:
    plain = model.generate(ASK, seed=seed, **HOW).text
    banned = banned_of(plain)
    shown = ""
    generation = model.generate(ASK, seed=seed, banned_strings=banned, **HOW)
    for piece in generation:
        shown += piece
        assert not any(text.lower() in shown.lower() for text in banned), shown
    assert len(generation.tokens) == 80
    assert shown != plain
    at = min(plain.lower().find(text.lower()) for text in banned)
    assert plain[: at - 12] == shown[: at - 12] or at < 12, "up to there nothing is different"
    assert model.tokenizer.decode(generation.tokens) == shown
    watched = generation._request.banned
    assert watched is not None
    assert watched.returns > 0, "one of the texts has several tokens"


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_drafts_and_neighbours_make_no_difference(model: Model, seed: int) -> None:
    plain = model.generate(ASK, seed=seed, **HOW).text
    banned = banned_of(plain)
    options: dict[str, Any] = {**HOW, "seed": seed, "banned_strings": banned}
    want = model.generate(ASK, **options).text
    together = model.generate_many([ASK, "Hello", ASK, "What is 3 + 4?"], **options)
    assert together[0].text == together[2].text == want
    with octavo.load("demo", device="cpu", speculate="off") as other:
        assert other.generate(ASK, **options).text == want
    greedy: dict[str, Any] = {**options, "temperature": 0}
    with octavo.load("demo", device="cpu", speculate="off") as other:
        assert other.generate(ASK, **greedy).text == model.generate(ASK, **greedy).text


def test_log_probabilities_are_those_of_the_tokens_that_stay(model: Model) -> None:
    plain = model.generate(ASK, seed=1, **HOW).text
    banned = banned_of(plain)
    found = model.generate(ASK, seed=1, banned_strings=banned, logprobs=2, **HOW)
    assert found.text == model.generate(ASK, seed=1, banned_strings=banned, **HOW).text
    assert len(found.logprobs) == len(found.tokens) == 80
    again = model.generate(ASK, seed=1, logprobs=2, **{**HOW, "max_tokens": 3})
    assert again.text
    assert [one.token for one in again.logprobs] == pytest.approx([one.token for one in found.logprobs[:3]])


def test_without_such_a_text_nothing_is_different(model: Model) -> None:
    plain = model.generate(ASK, seed=2, **HOW)
    same = model.generate(ASK, seed=2, banned_strings=["§§§ nowhere §§§", "qqqq"], **HOW)
    assert same.text == plain.text
    assert same.tokens == plain.tokens


@pytest.mark.parametrize("name", ["qwen3.5-9b", slow("gemma3-4b")])
def test_layers_with_states_and_windows(tmp_path: Path, name: str) -> None:
    """What such a reply has computed is of no use once it goes back: it is computed anew."""
    how: dict[str, Any] = {**HOW, "max_tokens": 60, "raw": True, "seed": 5}
    with octavo.load(write_with_tokenizer(name, tmp_path / "m.gguf"), device="cpu", n_ctx=256) as model:
        plain = model.generate("ab", **how).text
        pairs = [plain[i : i + 2] for i in range(4, len(plain) - 1)]
        banned = [text for text in pairs if text.isascii() and text.isalnum()][-2:]
        assert banned
        found = model.generate("ab", banned_strings=banned, **how)
        assert not any(text.lower() in found.text.lower() for text in banned)
        assert len(found.tokens) == 60
        assert found.text.startswith(plain[:4])
        assert found._request.banned is not None
        assert found._request.banned.returns > 0
        assert model.generate("ab", banned_strings=banned, **how).text == found.text


def test_a_reply_that_can_say_nothing_else_fails(model: Model) -> None:
    allowed = [i for i in range(model.tokenizer.n_vocab) if model.tokenizer.token_bytes(i) in (b"x", b"y")]
    biases = {i: -100.0 for i in range(model.tokenizer.n_vocab) if i not in allowed}
    assert allowed
    with pytest.raises(GrammarError, match="no token left"):
        _ = model.generate(ASK, banned_strings=["x", "y"], logit_bias=biases, **HOW).text


def test_a_reply_that_goes_back_for_ever_fails(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.runtime.scheduler.scheduler.MOST_RETURNS", 0)
    plain = model.generate(ASK, seed=3, **HOW).text
    with pytest.raises(GrammarError, match="banned_strings more than 0 times"):
        _ = model.generate(ASK, seed=3, banned_strings=banned_of(plain), **HOW).text
    assert model.generate(ASK, seed=3, **HOW).text == plain


def test_a_grammar_and_banned_strings_are_refused(model: Model) -> None:
    with pytest.raises(UsageError, match="banned_strings"):
        model.generate(ASK, banned_strings=["x"], grammar=Grammar.regex("[a-z]+"))


class Bytes:
    """A vocabulary of bytes, and of some longer texts, of which one ends replies."""

    texts = [bytes([i]) for i in range(256)] + [b"aba", b"bab", b"<end>", b"xyz"]
    n_vocab, stop_ids = len(texts), frozenset({258})

    def token_bytes(self, token: int) -> bytes:
        return self.texts[token]


def watched(texts: Sequence[str]) -> BannedStrings:
    tokenizer: Tokenizer = Bytes()  # type: ignore[assignment]
    return BannedStrings(texts, tokenizer)


def test_what_is_held_back_and_where_it_goes_back_to() -> None:
    one = watched(["abcd", "bcx"])
    for byte, shown in ((b"z", 1), (b"A", 1), (b"b", 1), (b"c", 1), (b"e", 5), (b"a", 5), (b"b", 5), (b"c", 5)):
        assert one.push(byte[0]) is None
        assert one.shown == shown
    assert one.push(ord("x")) == 6, "bcx, which begins in the seventh token"
    assert one.shown == 5
    assert one.push(ord("a")) is None
    assert (one.shown, one.returns) == (5, 1), "the one before may be the first letter once the reply goes back again"
    assert one.push(ord("b")) is None
    assert one.push(ord("c")) is None
    assert one.push(ord("D")) == 6
    assert one.push(258) is None
    assert one.shown == 5, "a token that ends a reply has no text"
    assert one.push(ord("b")) is None
    assert one.push(ord("e")) is None
    assert one.shown == 9


def test_a_text_that_begins_within_a_token() -> None:
    one = watched(["bac"])
    assert one.push(256) is None  # aba
    assert one.shown == 0
    assert one.push(ord("c")) == 0
    assert one.push(257) is None  # bab
    assert one.push(ord("a")) is None
    assert one.shown == 0
    assert one.push(ord("x")) is None
    assert one.shown == 3
