"""SentencePiece-style BPE: merges by score, bytes for what is not a token, spaces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import TokenizerError
from octavo.text import Tokenizer
from octavo.text.fields import Fields
from octavo.text.spm import SpmEncoder
from octavo.text.vocab import read_vocab
from tests.limits import processor_time
from tests.sampling import slow
from tests.text.vocabularies import CONTROL, USER_DEFINED, spm

_CHARACTERS = {c: -100.0 - i for i, c in enumerate("▁abcdehlotw")}
_WORDS = {"he": -1.0, "ll": -2.0, "hell": -3.0, "hello": -4.0, "▁hello": -5.0, "▁w": -6.0, "ab": -7.0, "bc": -7.0}
_SPACES = {"abc": -8.0, "▁▁": -9.0, "▁▁▁▁": -10.0, "▁a▁": -11.0, "lo": -12.0, "e▁": -13.0}
PIECES = _CHARACTERS | _WORDS | _SPACES
SPECIAL = {"<|end|>": CONTROL, "<|user|>": USER_DEFINED}


def make(**extra: object) -> Tokenizer:
    return Tokenizer.from_metadata(spm(PIECES, SPECIAL, **extra))


def shown(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.texts[i] for i in tokenizer.encode(text, **options)]


def test_the_highest_score_is_merged_first() -> None:
    assert shown(make(), "hello") == ["<s>", "▁hello"]
    assert shown(make(), "hell o") == ["<s>", "▁", "hell", "▁", "o"]


def test_of_equal_scores_the_leftmost_is_merged() -> None:
    assert shown(make(), "abcd", add_special=False) == ["▁", "abc", "d"]
    assert shown(make(add_space_prefix=False), "bcab", add_special=False) == ["bc", "ab"]


def test_what_is_no_token_becomes_bytes() -> None:
    assert shown(make(), "é", add_special=False) == ["▁", "<0xC3>", "<0xA9>"]
    assert shown(make(), "\n", add_special=False) == ["▁", "<0x0A>"]


def test_text_after_a_special_token_begins_with_a_space() -> None:
    assert shown(make(), "a<|end|>a") == ["<s>", "▁", "a", "<|end|>", "▁", "a"]
    assert shown(make(), "<|user|>a", parse_special=False) == ["<s>", "<|user|>", "▁", "a"]
    assert "<|end|>" not in shown(make(), "a<|end|>", parse_special=False)
    assert shown(make(), "") == ["<s>"]


def test_phi_3_strips_white_space_after_special_tokens() -> None:
    metadata = {**spm(PIECES, SPECIAL), "general.name": "Phi-3 mini"}
    assert shown(Tokenizer.from_metadata(metadata), "<|end|> \n a<s> a") == [
        *["<s>", "<|end|>", "▁", "a", "<s>", "▁▁", "a"],
    ]


def test_the_first_space_is_not_part_of_the_text() -> None:
    tokenizer = make()
    ids = tokenizer.encode("hello a")
    assert tokenizer.decode(ids) == "<s>hello a"
    assert tokenizer.decode(ids, skip_special=True) == "hello a"
    assert tokenizer.decode(ids[1:], continued=True) == " hello a"


def test_a_character_without_tokens_is_an_error() -> None:
    metadata = spm(PIECES)
    for key in ("tokens", "token_type", "scores"):
        values = metadata[f"tokenizer.ggml.{key}"]
        metadata[f"tokenizer.ggml.{key}"] = values[:3] + values[259:]
    with pytest.raises(TokenizerError, match="'é' is not a token"):
        Tokenizer.from_metadata(metadata).encode("aé")


def naive(text: str) -> list[str]:
    """The rule, word for word: join the pair whose text has the highest score, the leftmost of equals, and again."""
    parts = list(text)
    while True:
        best = max(
            ((PIECES[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in PIECES),
            default=None,
        )
        if best is None:
            return parts
        i = -best[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(st.text("▁abcdehlo", max_size=40))
@settings(max_examples=500, deadline=None)
def test_as_the_rule_says(text: str) -> None:
    fields = Fields(spm(PIECES))
    vocab = read_vocab(fields)
    assert [vocab.texts[i] for i in SpmEncoder(fields, vocab).encode(text)] == naive(text)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
@settings(max_examples=200, deadline=None)
def test_round_trip(text: str) -> None:
    tokenizer = make(add_space_prefix=False)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False), skip_special=True) == text


@pytest.mark.parametrize("text", ["hello" * 20_000, slow(" " * 100_000), "é" * 50_000, slow("ab c" * 25_000)])
def test_long_texts_take_linear_time(text: str) -> None:
    tokenizer = make()
    with processor_time(3):
        assert tokenizer.decode(tokenizer.encode(text), skip_special=True) == text
