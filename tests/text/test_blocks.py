"""Long texts are encoded in blocks: to the ids of the whole, with memory that does not grow with the text."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text import text_blocks
from octavo.text.bpe import word_splitter
from octavo.text.pretokenize import PRE_TOKENIZERS, PreTokenizer
from octavo.text.text_blocks import between_tokens, in_blocks, pairs_of
from tests.text.test_llama_vocabularies import opened
from tests.text.test_long_text import TOKENIZERS
from tests.text.vocabularies import TRICKY, byte_level, train_merges

ROWS = {row: name for name, row in PRE_TOKENIZERS.items()}
"""A name of each row."""
NASTY = (
    *"aZs'tK19 \n\r\t_.,!/?(", "  ", " a", "abc", "12", "123", "1234567", "\n1", ".\n", "\n\n", "a ", "9 ",
    "\u00a0", "\u3000", "\u0301", "日", "か", "한", "²", "½", "٣", "é", "Ж", "\x1c", "\x85", "\u2028",
    "<sentinel:12>", "IMGIMGAZ", "ا", "\u093c", "。", "🙂", "\u1160", "\u200d", "'re", "'ll ",
)
TEXTS = st.lists(st.sampled_from(NASTY), min_size=2, max_size=24).map("".join)
WORDS = (
    "a text", " of ", "words ", "12 ", "and\n", "日本語。\n", "I'm ", "x=1;\n", "\n\n", "e\u0301 ", "▁", "ab", "K",
    "<|end|>", "  ",
)


def words(splitter: Any, text: str) -> list[str]:
    return [word for word, _ in splitter.pre_tokenize_str(text)] if text else []


@pytest.mark.few(8)
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for row, name in ROWS.items()])
@given(text=TEXTS)
@settings(deadline=None)
def test_words_are_the_same_where_a_text_is_cut(row: PreTokenizer, text: str) -> None:
    splitter = word_splitter(row)
    whole = words(splitter, text)
    for at in (found.start() for found in re.finditer(row.cut, text)):
        assert words(splitter, text[:at]) + words(splitter, text[at:]) == whole


@pytest.mark.few(8)
@pytest.mark.parametrize("kind", TOKENIZERS)
@given(parts=st.lists(st.sampled_from(WORDS), max_size=40))
@settings(deadline=None)
def test_ids_are_those_of_the_whole(kind: str, parts: list[str]) -> None:
    text, tokenizer = "".join(parts), TOKENIZERS[kind]
    whole = tokenizer.encode(text)
    for size in (1, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_blocks, "SIZE", size)
            assert tokenizer.encode(text) == whole


@pytest.mark.parametrize("name", ROWS.values())
def test_ids_are_those_of_the_whole_with_each_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges run across the ends of words, so that ids show where words are cut."""
    tokenizer, text = opened(byte_level(train_merges(TRICKY, 60), name)), TRICKY * 3
    whole = tokenizer.encode(text)
    monkeypatch.setattr(text_blocks, "SIZE", 10)
    assert tokenizer.encode(text) == whole


@pytest.fixture
def given_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what is encoded at once."""
    lengths: list[int] = []
    real = text_blocks.blocks

    def noted(text: str, cut: text_blocks.Cut) -> Iterator[str]:
        for block in real(text, cut):
            lengths.append(len(block))
            yield block

    monkeypatch.setattr(text_blocks, "blocks", noted)
    monkeypatch.setattr(text_blocks, "SIZE", 64)
    return lengths


BLOCKED = [kind for kind in TOKENIZERS if not kind.startswith(("whitespace", "rwkv"))]
"""Those two hold a word, or nothing, beside the ids."""


@pytest.mark.parametrize("kind", BLOCKED)
def test_what_is_held_does_not_grow_with_the_text(kind: str, given_at_once: list[int]) -> None:
    rng = random.Random(0)
    lines = [" ".join(rng.choice(("the", "fox", "ab", "日本", "12")) for _ in range(9)) + ".\n" for _ in range(160)]
    most = []
    for count in (10, 160):
        given_at_once.clear()
        TOKENIZERS[kind].encode("".join(lines[:count]).replace("\n", " "))
        assert sum(given_at_once) >= 30 * count
        most.append(max(given_at_once, default=0))
    assert most[1] <= 1.5 * most[0]


def test_a_place_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a text that has none too: looking takes no longer a character where there are 16 times as many."""
    monkeypatch.setattr(text_blocks, "SIZE", 10)

    class Counted(set[str]):
        asked = 0

        def __contains__(self, pair: object) -> bool:
            Counted.asked += 1
            return super().__contains__(pair)

    def cost(text: str) -> float:
        Counted.asked = 0
        joined = Counted(pairs_of(["aa", "ab"]))
        assert in_blocks(lambda block: [*map(ord, block)], between_tokens(lambda: joined))(text) == [*map(ord, text)]
        return Counted.asked / len(text)

    for part in ("a" * 50, "ab" * 25, "ab a" * 12):
        assert cost(part * 16) <= 1.5 * cost(part)
