"""Ids of small vocabularies of other kinds, as llama.cpp gives them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.text import Tokenizer

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "llama-vocabularies.json").read_text())
K = "tokenizer.ggml."
MERGED = [e for e in RECORDED["vocabularies"] if e["keys"][f"{K}model"] in ("gpt2", "whitespace")]


def name(entry: dict[str, Any]) -> str:
    plain = {k: v for k, v in entry["keys"].items() if isinstance(v, bool) or k == f"{K}pre"}
    return "-".join([entry["keys"][f"{K}model"], *(f"{k.removeprefix(K)}={v}" for k, v in plain.items())])


def opened(keys: dict[str, Any]) -> Tokenizer:
    charsmap = keys.get(f"{K}precompiled_charsmap")
    return Tokenizer.from_metadata(
        keys | ({f"{K}precompiled_charsmap": [*base64.b64decode(charsmap)]} if charsmap else {})
    )


@pytest.mark.parametrize("entry", MERGED, ids=name)
def test_ids(entry: dict[str, Any]) -> None:
    tokenizer = opened(entry["keys"])
    for text, ids in zip(RECORDED["probes"], entry["ids"], strict=True):
        assert tokenizer.encode(text, parse_special=False) == ids, text
