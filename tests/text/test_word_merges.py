"""Ids of short texts, whose words are merged in Python, are those of the engine that long ones go through."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.io.gguf import GGUFFile
from octavo.io.model_path import resolve
from octavo.text import Tokenizer, word_merges
from tests.text.vocabularies import TRICKY, byte_level, train_merges

MERGES = train_merges(TRICKY * 2, 150)
PIECES = [*TRICKY, "  ", "hello", " World", "1234567", "\n\n", "über", "日本語", "🙂", "\u0301", "it's", "end", "aaaa"]


def metadata(name: str) -> dict[str, Any]:
    """A vocabulary: with words that no merge makes, without tokens for some bytes and merges, of composed text."""
    if name == "demo":
        with GGUFFile.open(resolve("demo")) as file:
            return {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.ggml.")}
    made = byte_level(MERGES, "llama-bpe" if name == "whole words" else "qwen2")
    tokens = made["tokenizer.ggml.tokens"]
    if name == "whole words":
        tokens.append("Ġworldwide")
    if name == "lacking":
        gone = {tokens[70], *(merge.replace(" ", "") for merge in MERGES[5:40:7])}
        made["tokenizer.ggml.tokens"] = tokens = [token for token in tokens if token not in gone]
    if name == "composed":
        made["tokenizer.ggml.normalizer.nfc"] = True
    if name == "twice":
        made["tokenizer.ggml.merges"] = [*MERGES, *MERGES[::-1]]
    made["tokenizer.ggml.token_type"] = [1] * len(tokens)
    return made


@pytest.mark.parametrize("name", ["demo", "plain", "whole words", "lacking", "composed", "twice"])
def test_both_ways_give_the_same_ids(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_merges, "MOST_CHARACTERS", 1 << 40)
    in_python = Tokenizer.from_metadata(metadata(name))
    monkeypatch.setattr(word_merges, "MOST_CHARACTERS", 0)
    engine = Tokenizer.from_metadata(metadata(name))
    rng = random.Random(name)
    texts = ["", " ", "worldwide worldwide", "x" * 150, *("".join(rng.choices(PIECES, k=n)) for n in range(1, 300, 7))]
    texts += ["".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(160, 0x3000)])) for _ in range(80))]
    for text in texts:
        for special in (False, True):
            want = engine.encode(text, parse_special=special)
            assert in_python.encode(text, parse_special=special) == want
    assert len(in_python.encode(" ".join(texts))) == len(engine.encode(" ".join(texts)))


def test_an_engine_is_made_for_a_long_text_or_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenizers

    made = []
    whole = tokenizers.models.BPE
    monkeypatch.setattr(tokenizers.models, "BPE", lambda **options: made.append(1) or whole(**options))
    monkeypatch.setattr(word_merges, "MOST_CHARACTERS", 4000)
    short, long = (Tokenizer.from_metadata(metadata("plain")) for _ in range(2))
    for _ in range(4):
        short.encode("x " * 500)
    assert not made
    short.encode("x")
    assert len(made) == 1
    long.encode("x " * 1001)
    assert len(made) == 2
