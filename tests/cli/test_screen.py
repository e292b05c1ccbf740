"""A reply on a terminal: harmless, and with its thinking dim."""

from __future__ import annotations

import pytest

from octavo.cli.run.screen import DIM, PLAIN, Screen, Wrapped


def shown(*pieces: str, **options: bool) -> str:
    written: list[str] = []
    screen = Screen(written.append, **{"terminal": True, **options})
    for piece in pieces:
        screen.show(piece)
    screen.end()
    return "".join(written)


def test_control_characters_become_escapes() -> None:
    assert shown("a\x1b]0;title\x07\tb\n\x9b2J\r") == "a\\x1b]0;title\\x07\tb\n\\x9b2J\\x0d"
    assert shown("a\x1b[31m", terminal=False) == "a\x1b[31m"


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 100])
def test_thinking_is_dim(cut: int) -> None:
    text = "<think>hm < x</think>12 <thin"
    pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
    assert shown(*pieces) == f"{DIM}<think>hm < x</think>{PLAIN}12 <thin"
    assert shown(*pieces, dim=False) == shown(*pieces, terminal=False) == text


def test_a_prompt_that_opens_the_thinking() -> None:
    assert shown("so", "</think>", "4", thinking=True) == f"{DIM}so</think>{PLAIN}4"
    assert shown("so", thinking=True) == f"{DIM}so{PLAIN}", "a terminal is left as it was"


def test_lines_end_between_words() -> None:
    shown: list[str] = []
    wrapped = Wrapped(shown.append, 12)
    for piece in ("craft", "ing, o", "r any", " other\nline", " of twelve-and-more", " \u6f22\u5b57"):
        wrapped(piece)
    assert shown[-1] == "\u6f22\u5b57", "writing without blanks is shown at once"
    wrapped.flush()
    assert "".join(shown) == "crafting, or \nany other\nline of twelve-and-more \n\u6f22\u5b57"
