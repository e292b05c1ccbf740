"""Retired words are found (tools/words.py, which the linters run over all files)."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tools")
    import words

    return words


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("one\nthe body " + "is no" + " JSON object", "is no" + " JSON"),
        ("At most " + "so" + " many windows", "so" + " many"),
        ("the first " + "of those" + " that fit", "of those" + " that"),
        ("the kernel " + "matvec" + "_stream", "matvec" + "_stream"),
    ],
)
def test_each_is_found_with_its_line(tool, text: str, word: str) -> None:
    ((line, found, better),) = tool.retired(text)
    assert (line, found) == (text.count("\n") + 1, word)
    assert better


@pytest.mark.parametrize("text", ["there is no GPU", "it is no longer used", "no encoder is no worse", "has no model"])
def test_plain_english_stays(tool, text: str) -> None:
    assert not list(tool.retired(text))
