"""The space that a word begins with: between words where a reply goes on in its prompt, else none at its begin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.runtime import Model, load
from octavo.text import Tokenizer
from tests.runtime import tiny
from tests.runtime.tiny import WORD
from tests.text.vocabularies import spm

GREEDY = {"temperature": 0.0, "max_tokens": 2}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with load(tiny.write_words(tmp_path_factory.mktemp("words") / "words.gguf"), n_ctx=64) as model:
        yield model


@pytest.mark.parametrize(
    ("prompt", "raw", "text"),
    [("b", True, " a a"), ("", True, "a a"), ("b", False, "a a"), ([1, WORD], True, "a a")],
)
def test_replies_of_a_model(words: Model, prompt: str | list[int], raw: bool, text: str) -> None:
    assert words.generate(prompt, raw=raw, **GREEDY).text == text  # type: ignore[arg-type]
    assert [r.text for r in words.generate_many([prompt], raw=raw, **GREEDY)] == [text]  # type: ignore[arg-type]


def test_which_prompts_are_gone_on_in() -> None:
    tokenizer = Tokenizer.from_metadata(spm({"▁a": -1.0}, add_space_prefix=True))
    for prompt, text in (((), "a"), ((WORD,), " a"), ((WORD, 1), "a"), (np.array([1, WORD]), " a")):
        assert tokenizer.stream_after(prompt).push(WORD) == text  # type: ignore[arg-type]
