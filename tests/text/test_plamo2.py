"""PLaMo's tokenizer against its definition, every token tried at every place; ids of llama.cpp are recorded."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from octavo.errors import TokenizerError
from octavo.text import Tokenizer

K = "tokenizer.ggml."
CONTROLS = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "<|plamo:op|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = {
    "a": -3.0, "b": -3.0, "ab": -4.0, "abc": -2.0, "bc": -3.5, "c": -3.0, "aa": -6.0, "aaaa": -9.0, " ": -4.0,
    "  ": -4.0, "    ": -5.0, "日本": -2.0, "本": -5.0, "\n": -1.0, "<": -4.0, "|": -4.0, "plamo": -3.0, ":": -2.0,
    ">": -4.0, "x<": -1.0, "k": -1000.5, "never": -2000.0, "n": -1.0,
}


def made(pieces: dict[str, float] = PIECES, arch: str = "plamo2", **more: Any) -> Tokenizer:
    tokens = [*CONTROLS, *BYTES, *pieces]
    return Tokenizer.from_metadata({
        "general.architecture": arch, K + "model": "plamo2", K + "tokens": tokens,
        K + "scores": [0.0] * (len(tokens) - len(pieces)) + list(pieces.values()),
        K + "token_type": [2, 3, 3, 3, 3, *[6] * 256, *[1] * len(pieces)], **more,
    })


def defined(text: str) -> list[str]:
    """The best way to cut a text: from each place on, among the cheapest, that with the longest token."""
    costs, ways = [0] * (len(text) + 1), [list[str]()] * (len(text) + 1)
    for i in reversed(range(len(text))):
        found = [
            (costs[i + len(t)] - round(score * 1e4), -len(t), [t, *ways[i + len(t)]])
            for t, score in PIECES.items() if score > -2000 and text.startswith(t, i)
        ]
        found.append((costs[i + 1] + 10**7, 0, [*(f"<0x{b:02X}>" for b in text[i].encode()), *ways[i + 1]]))
        costs[i], _, ways[i] = min(found)
    return ways[0]


ALPHABET = [*"aaabbbck  \n日本é😀<|:>xn", "plamo", "<|plamo:no|>", "    ", "aaaa"]


def drawn() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(ALPHABET, k=rng.randint(1, 30))) for _ in range(150)]


def test_ids_are_those_of_the_definition() -> None:
    tokenizer = made()
    for text in drawn():
        ids = tokenizer.encode(text, parse_special=False)
        assert [tokenizer.texts[i] for i in ids] == defined(text), text
        assert tokenizer.decode(ids) == text


def test_plamo_3_cuts_text_first() -> None:
    """Around names of control tokens, runs of four characters and of two spaces; runs of lines stay."""
    tokenizer = made(arch="plamo3")
    assert tokenizer.encode("aaaaab") == made(**{K + "pre": "plamo3"}).encode("aaaaab") != made().encode("aaaaab")
    assert made(arch="plamo3", **{K + "pre": "plamo2"}).encode("aaaaab") == made().encode("aaaaab")
    for text in drawn():
        parts = re.split(r"(<\|plamo:[^|\s]{,64}\|>)", text)
        runs = [run for part in parts for run in re.split(r"((?:a{4,}|b{4,}|c{4,}|n{4,}| {2,}))", part)]
        want = [token for run in runs for token in defined(run)]
        assert [tokenizer.texts[i] for i in tokenizer.encode(text, parse_special=False)] == want, text
    assert tokenizer.encode("ab\uee00c") == [*tokenizer.encode("ab"), *tokenizer.encode("c")]


def test_text_is_no_control_token() -> None:
    """Where special tokens are not wanted; else they are found first. Bytes' names are text like any other."""
    tokenizer = made()
    op = tokenizer.texts.index("<|plamo:op|>")
    assert op in tokenizer.encode("a<|plamo:op|>b")
    assert op not in tokenizer.encode("a<|plamo:op|>b", parse_special=False)
    assert len(tokenizer.encode("<0x41>")) == 6


def test_what_begins_and_ends_a_text() -> None:
    """No BOS where a file does not say; a file may name what ends a part of a conversation."""
    tokenizer = made(**{K + "eot_token_id": 4})
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.add_bos) == (1, 2, 0, False)
    assert {2, 4} <= set(tokenizer.stop_ids)


def test_a_byte_order_mark_stays() -> None:
    """As in the published code; llama.cpp leaves one out that begins a text."""
    assert made().decode(made().encode("\ufeffab")) == "\ufeffab"


@pytest.mark.parametrize(("change", "message"), [
    ({K + "scores": None}, "scores: missing"),
    ({K + "token_type": [2, 3, 3, 3, 3, 1, *[6] * 255, *[1] * len(PIECES)]}, "tokens: 1 bytes have no token"),
])
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        made(**change)
