"""Pre-tokenizers cut text where llama.cpp cuts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.text.bpe import word_splitter
from octavo.text.pretokenize import PRE_TOKENIZERS, PreTokenizer
from tests.limits import processor_time
from tests.sampling import slow
from tests.text.splits import PROBES, WORDS

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "llama-pre-tokenizers.json").read_text())


def words(pre: str, text: str) -> list[str]:
    return [w for w, _ in word_splitter(PRE_TOKENIZERS[pre]).pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", WORDS)
@pytest.mark.parametrize("probe", range(len(PROBES)))
def test_words(pre: str, probe: int) -> None:
    assert words(pre, PROBES[probe]) == WORDS[pre][probe].split("·")


@pytest.mark.parametrize("entry", RECORDED["cuts"], ids=lambda e: e["names"][0])
def test_words_of_recorded_probes(entry: dict[str, list[str]]) -> None:
    """Of names that cut alike llama.cpp says so, and they have one row's patterns here."""
    (patterns,) = {PRE_TOKENIZERS[name].patterns for name in entry["names"]}
    splitter = word_splitter(PreTokenizer(patterns))
    for text, lengths in zip(RECORDED["probes"], entry["words"], strict=True):
        found = splitter.pre_tokenize_str(text)
        assert [len(word) for word, _ in found] == [*map(int, lengths.split())], text


def test_every_name_of_llama_cpp_has_a_row() -> None:
    names = [name for entry in RECORDED["cuts"] for name in entry["names"]]
    assert sorted(names) == sorted(PRE_TOKENIZERS)


RUNS = [" " * 60_000, "a" * 60_000, "7" * 25_000]
LONGER_RUNS = [" " * 200_000, "\n" * 200_000, "a" * 200_000, "A" * 200_000, "7" * 50_000, " \n" * 50_000]


@pytest.mark.parametrize("pre", sorted({row.patterns: pre for pre, row in PRE_TOKENIZERS.items()}.values()))
@pytest.mark.parametrize("text", [*RUNS, *map(slow, LONGER_RUNS)])
def test_long_runs_lose_nothing_and_take_linear_time(pre: str, text: str) -> None:
    with processor_time(3):
        assert "".join(words(pre, text)) == text


@pytest.mark.parametrize("flag", ["add_bos", "ignore_merges"])
def test_what_names_say_beside_the_patterns(flag: str) -> None:
    assert sorted(name for name, row in PRE_TOKENIZERS.items() if getattr(row, flag)) == RECORDED[flag]
