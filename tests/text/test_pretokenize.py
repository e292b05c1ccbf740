"""Pre-tokenizers cut text where llama.cpp cuts it."""

from __future__ import annotations

import pytest

from octavo.text.bpe import word_splitter
from octavo.text.pretokenize import PRE_TOKENIZERS
from tests.limits import processor_time
from tests.text.splits import PROBES, WORDS


def words(pre: str, text: str) -> list[str]:
    return [w for w, _ in word_splitter(PRE_TOKENIZERS[pre]).pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", WORDS)
@pytest.mark.parametrize("probe", range(len(PROBES)))
def test_words(pre: str, probe: int) -> None:
    assert words(pre, PROBES[probe]) == WORDS[pre][probe].split("·")


def test_every_kind_has_expected_words() -> None:
    kinds = {PRE_TOKENIZERS[pre].patterns for pre in WORDS}
    assert {row.patterns for row in PRE_TOKENIZERS.values()} == kinds


@pytest.mark.parametrize("pre", sorted({row.patterns: pre for pre, row in PRE_TOKENIZERS.items()}.values()))
@pytest.mark.parametrize(
    "text", [" " * 200_000, "\n" * 200_000, "a" * 200_000, "A" * 200_000, "7" * 50_000, " \n" * 50_000]
)
def test_long_runs_lose_nothing_and_take_linear_time(pre: str, text: str) -> None:
    with processor_time(3):
        assert "".join(words(pre, text)) == text
