"""Ids of small vocabularies of other kinds, as llama.cpp gives them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import TokenizerError
from octavo.text import Tokenizer
from tests.limits import processor_time

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "llama-vocabularies.json").read_text())
K = "tokenizer.ggml."


def name(entry: dict[str, Any]) -> str:
    plain = {k: v for k, v in entry["keys"].items() if isinstance(v, bool) or k == f"{K}pre"}
    return "-".join([entry["keys"][f"{K}model"], *(f"{k.removeprefix(K)}={v}" for k, v in plain.items())])


def opened(keys: dict[str, Any]) -> Tokenizer:
    charsmap = keys.get(f"{K}precompiled_charsmap")
    return Tokenizer.from_metadata(
        keys | ({f"{K}precompiled_charsmap": [*base64.b64decode(charsmap)]} if charsmap else {})
    )


@pytest.mark.parametrize("entry", RECORDED["vocabularies"], ids=name)
def test_ids(entry: dict[str, Any]) -> None:
    tokenizer = opened(entry["keys"])
    for text, ids in zip(RECORDED["probes"], entry["ids"], strict=True):
        assert tokenizer.encode(text, parse_special=False) == ids, text


def last(model: str) -> dict[str, Any]:
    """The keys of the last vocabulary of a kind."""
    return [e["keys"] for e in RECORDED["vocabularies"] if e["keys"][f"{K}model"] == model][-1]


@pytest.mark.parametrize(("model", "key", "value", "message"), [
    ("bert", "unknown_token_id", 99_999, "token 99999 is not in the vocabulary"),
    ("bert", "seperator_token_id", 99_999, "seperator_token_id: token 99999 is not"),
    ("t5", "scores", None, "scores: missing"),
    ("t5", "precompiled_charsmap", "AQAA", "3 bytes"),
    ("t5", "precompiled_charsmap", "/////wAA", "6 bytes, of which 4294967295 are units"),
    ("t5", "precompiled_charsmap", "BAAAAAH+/38A", "leads to unit"),
])
def test_what_is_refused(model: str, key: str, value: Any, message: str) -> None:
    keys = {k: v for k, v in (last(model) | {K + key: value}).items() if v is not None}
    with pytest.raises(TokenizerError, match=message):
        opened(keys).encode("a text")


@pytest.mark.parametrize("model", ["bert", "t5", "plamo2"])
@pytest.mark.parametrize("text", ["ab" * 50_000, "a " * 50_000, "日本" * 30_000])
def test_long_texts_take_linear_time(model: str, text: str) -> None:
    tokenizer = opened(last(model))
    with processor_time(3):
        assert len(tokenizer.encode(text)) > 2
