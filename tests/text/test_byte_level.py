"""Byte-level BPE: ids as llama.cpp gives them, on a small vocabulary."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import TokenizerError
from octavo.text import Tokenizer
from tests.limits import processor_time
from tests.sampling import slow
from tests.text.vocabularies import CONTROL, TRICKY, USER_DEFINED, byte_level, train_merges

MERGES = train_merges(TRICKY * 2, 150)
SPECIAL = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<tool>": USER_DEFINED, "<tool>s": USER_DEFINED}
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(byte_level(MERGES, "qwen2", SPECIAL, bos_token_id=0, add_bos_token=False))


GOLDEN = {  # ids of llama.cpp for TRICKY with this vocabulary
    "gpt-2": [
        73, 292, 32, 119, 101, 39, 76, 76, 32, 105, 116, 260, 32, 39, 115, 117, 112, 32, 100, 111, 110, 293, 32, 32,
        265, 32, 265, 54, 55, 10, 10, 32, 32, 120, 32, 61, 32, 102, 111, 111, 95, 98, 97, 114, 40, 49, 44, 50, 41, 59,
        13, 10, 9, 9, 230, 151, 165, 230, 156, 172, 232, 170, 158, 258, 168, 258, 139, 258, 170, 257, 129, 228, 184,
        173, 230, 150, 135, 257, 130, 237, 149, 156, 234, 181, 173, 236, 150, 180, 32, 99, 97, 109, 101, 108, 67, 97,
        115, 101, 32, 72, 84, 84, 80, 83, 266, 118, 266, 32, 110, 97, 195, 175, 118, 101, 32, 101, 204, 129, 97, 32,
        194, 160, 257, 128, 63, 32, 217, 163, 217, 164, 217, 165, 32, 36, 53, 43, 60, 97, 62, 94, 126, 124, 96, 259,
        33, 10, 32, 268, 32, 101, 110, 100, 261, 46, 256, 32,
    ],
    "qwen2": [
        73, 292, 32, 119, 101, 294, 32, 105, 116, 260, 32, 39, 115, 117, 112, 32, 100, 111, 110, 293, 32, 32, 49, 50,
        51, 52, 53, 32, 49, 50, 51, 52, 53, 54, 55, 10, 10, 32, 32, 120, 32, 61, 32, 102, 111, 111, 95, 98, 97, 114,
        40, 49, 44, 50, 41, 59, 13, 10, 9, 9, 230, 151, 165, 230, 156, 172, 232, 170, 158, 258, 168, 258, 139, 258,
        170, 257, 129, 228, 184, 173, 230, 150, 135, 257, 130, 237, 149, 156, 234, 181, 173, 236, 150, 180, 32, 99,
        97, 109, 101, 108, 67, 97, 115, 101, 32, 72, 84, 84, 80, 83, 266, 118, 266, 32, 110, 97, 195, 175, 118, 101,
        32, 101, 204, 129, 97, 32, 194, 160, 257, 128, 63, 32, 217, 163, 217, 164, 217, 165, 32, 36, 53, 43, 60, 97,
        62, 94, 126, 124, 96, 270, 32, 10, 256, 32, 101, 110, 100, 261, 46, 256, 32,
    ],
    "llama-bpe": [
        73, 292, 32, 119, 101, 294, 32, 105, 116, 260, 32, 39, 115, 117, 112, 32, 100, 111, 110, 293, 32, 32, 263, 52,
        53, 32, 263, 52, 53, 54, 55, 10, 10, 32, 32, 120, 32, 61, 32, 102, 111, 111, 95, 98, 97, 114, 40, 49, 44, 50,
        41, 59, 13, 10, 9, 9, 230, 151, 165, 230, 156, 172, 232, 170, 158, 258, 168, 258, 139, 258, 170, 257, 129,
        228, 184, 173, 230, 150, 135, 257, 130, 237, 149, 156, 234, 181, 173, 236, 150, 180, 32, 99, 97, 109, 101,
        108, 67, 97, 115, 101, 32, 72, 84, 84, 80, 83, 266, 118, 266, 32, 110, 97, 195, 175, 118, 101, 32, 101, 204,
        129, 97, 32, 194, 160, 257, 128, 63, 32, 217, 163, 217, 164, 217, 165, 32, 36, 53, 43, 60, 97, 62, 94, 126,
        124, 96, 270, 32, 10, 256, 32, 101, 110, 100, 261, 46, 256, 32,
    ],
    "deepseek-llm": [
        73, 39, 109, 32, 119, 101, 39, 76, 76, 32, 105, 116, 39, 115, 32, 39, 115, 117, 112, 32, 100, 111, 110, 39,
        116, 256, 265, 32, 265, 54, 55, 10, 10, 32, 32, 120, 32, 61, 32, 102, 111, 111, 95, 98, 97, 114, 40, 49, 44,
        50, 41, 59, 13, 10, 9, 9, 230, 151, 165, 230, 156, 172, 232, 170, 158, 258, 168, 258, 139, 258, 170, 257, 129,
        228, 184, 173, 230, 150, 135, 257, 130, 237, 149, 156, 234, 181, 173, 236, 150, 180, 32, 99, 97, 109, 101,
        108, 67, 97, 115, 101, 32, 72, 84, 84, 80, 83, 266, 118, 266, 32, 110, 97, 195, 175, 118, 101, 32, 101, 204,
        129, 97, 32, 194, 160, 257, 128, 63, 32, 217, 163, 217, 164, 217, 165, 32, 36, 53, 43, 60, 97, 62, 94, 126,
        124, 96, 259, 33, 10, 32, 10, 256, 32, 101, 110, 100, 261, 46, 256, 32,
    ],
    "gpt-4o": [
        73, 292, 32, 119, 101, 294, 32, 105, 116, 260, 32, 39, 115, 117, 112, 32, 100, 111, 110, 293, 32, 32, 263, 52,
        53, 32, 263, 52, 53, 54, 55, 10, 10, 32, 32, 120, 32, 61, 32, 102, 111, 111, 95, 98, 97, 114, 40, 49, 44, 50,
        41, 59, 13, 10, 9, 9, 230, 151, 165, 230, 156, 172, 232, 170, 158, 258, 168, 258, 139, 258, 170, 257, 129,
        228, 184, 173, 230, 150, 135, 257, 130, 237, 149, 156, 234, 181, 173, 236, 150, 180, 32, 99, 97, 109, 101,
        108, 67, 97, 115, 101, 32, 72, 84, 84, 80, 83, 266, 118, 266, 32, 110, 97, 195, 175, 118, 101, 32, 101, 204,
        129, 97, 32, 194, 160, 257, 128, 63, 32, 217, 163, 217, 164, 217, 165, 32, 36, 53, 43, 60, 97, 62, 94, 126,
        124, 96, 270, 32, 10, 256, 32, 101, 110, 100, 261, 46, 256, 32,
    ],
}


@pytest.mark.parametrize("pre", GOLDEN)
def test_ids_of_llama_cpp(pre: str) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(MERGES, pre))
    assert tokenizer.encode(TRICKY, add_special=False) == GOLDEN[pre]


def test_special_tokens(tokenizer: Tokenizer) -> None:
    start, end, tool, tools = (tokenizer.texts.index(t) for t in SPECIAL)
    text = "<|im_start|>a<tool>b<tool>s<|im_end|>"
    assert tokenizer.encode(text) == [start, *tokenizer.encode("a"), tool, *tokenizer.encode("b"), tools, end]
    plain = tokenizer.encode(text, parse_special=False)
    assert start not in plain
    assert end not in plain
    assert [i for i in plain if i in (tool, tools)] == [tool, tools]
    assert tokenizer.decode(plain) == text


def test_a_longer_special_token_wins_even_if_it_starts_later() -> None:
    special = {"ab": USER_DEFINED, "bcd": USER_DEFINED}
    tokenizer = Tokenizer.from_metadata(byte_level([], special=special))
    a, (ab, bcd) = tokenizer.texts.index("a"), (tokenizer.texts.index(t) for t in special)
    assert tokenizer.encode("abcd") == [a, bcd]
    assert tokenizer.encode("abab") == [ab, ab]


def test_bos_and_eos() -> None:
    special = {"<s>": CONTROL, "</s>": CONTROL}
    ids = {"bos_token_id": 256, "eos_token_id": 257}
    both = Tokenizer.from_metadata(byte_level([], special=special, add_bos_token=True, add_eos_token=True, **ids))
    assert both.encode("") == [256, 257]
    assert both.encode("a", add_special=False) == [both.texts.index("a")]
    assert Tokenizer.from_metadata(byte_level([], "llama-bpe", special, **ids)).encode("") == [256]
    assert Tokenizer.from_metadata(byte_level([], "qwen2", special, **ids)).encode("") == []


def test_ignore_merges_takes_a_whole_word() -> None:
    merges = ["a b", "b c", "ab c", "a bc"]  # "ab" comes first, so merging alone never makes "abc" from "a bc"
    metadata = byte_level(merges[:2], "gpt-2", {"abc": 1})
    whole = Tokenizer.from_metadata({**metadata, "tokenizer.ggml.pre": "llama-bpe"}).encode("abc", add_special=False)
    assert whole == [metadata["tokenizer.ggml.tokens"].index("abc")]
    assert len(Tokenizer.from_metadata(metadata).encode("abc")) == 2


def test_bytes_that_the_vocabulary_lacks_are_left_out() -> None:
    metadata = byte_level(["a b"])
    gone = metadata["tokenizer.ggml.tokens"].index("x")
    for key in ("tokens", "token_type"):
        del metadata[f"tokenizer.ggml.{key}"][gone]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode("axb")) == "ab"
    assert len(tokenizer.encode("axb")) == 2  # what was between them keeps a and b from merging


@given(ANY_TEXT, st.booleans())
@settings(max_examples=300, deadline=None)
def test_round_trip(text: str, parse_special: bool) -> None:
    tokenizer = _shared()
    assert tokenizer.decode(tokenizer.encode(text, parse_special=parse_special)) == text


@given(
    st.lists(st.sampled_from(["<|im_start|>", "<|im", "_end|>", "<tool>", "s", " ", "\n", "a", "é", "\0"]), max_size=12)
)
@settings(max_examples=300, deadline=None)
def test_round_trip_near_special_tokens(parts: list[str]) -> None:
    tokenizer, text = _shared(), "".join(parts)
    for parse_special in (True, False):
        assert tokenizer.decode(tokenizer.encode(text, parse_special=parse_special)) == text


_made: list[Tokenizer] = []


def _shared() -> Tokenizer:
    if not _made:
        _made.append(Tokenizer.from_metadata(byte_level(MERGES, "llama-bpe", SPECIAL)))
    return _made[0]


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"U\+DC80, at character 2"):
        tokenizer.encode("ab\udc80")


@pytest.mark.parametrize(
    "text", [slow("ab" * 50_000), " " * 100_000, "<tool>" * 20_000, "<too" * 30_000, slow("日本" * 30_000)]
)
def test_long_texts_take_linear_time(tokenizer: Tokenizer, text: str) -> None:
    with processor_time(3):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def by_hand(word: str, ranks: dict[tuple[str, str], int], ids: dict[str, int], whole: bool) -> list[int]:
    """Ids as llama.cpp finds them: symbols merge whatever is a token; one that is none is spelled in the end."""
    if whole and word in ids:
        return [ids[word]]
    symbols = list(word)
    while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks]:
        _, i = min(pairs)
        symbols[i : i + 2] = ["".join(symbols[i : i + 2])]
    return [ids[t] for s in symbols for t in ([s] if s in ids else s) if t in ids]


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
def test_merges_of_texts_that_are_no_tokens(pre: str) -> None:
    """Of random merges a third makes no token, and "d" is none either."""
    rng = random.Random(5)
    for _ in range(30):
        texts, merges = list("abcd"), []
        for _ in range(12):
            merges.append((rng.choice(texts), rng.choice(texts)))
            texts.append("".join(merges[-1]))
        merges = list(dict.fromkeys(merges))
        tokens = ["a", "b", "c", *dict.fromkeys(t for t in texts[4:] if len(t) > 1 and rng.random() < 0.66)]
        metadata = byte_level([]) | {
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * len(tokens),
            "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        }
        tokenizer, ids = Tokenizer.from_metadata(metadata), {t: i for i, t in enumerate(tokens)}
        ranks = {pair: rank for rank, pair in enumerate(merges)}
        for word in (*texts, *("".join(rng.choices("abcd", k=9)) for _ in range(9))):
            assert tokenizer.encode(word) == by_hand(word, ranks, ids, pre == "llama-bpe"), (word, merges, tokens)
