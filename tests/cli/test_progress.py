"""The bar: what a terminal shows, and that nothing of it is elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from octavo.cli.progress import Bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_goes_on_is_shown_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bar() as bar:
        bar.show("loading")
        assert "loading" in terminal.getvalue()
        bar.show("a name that\x1b[2J clears", 1, 4)
        bar.show("[bold]", 3, 4)
        assert "75%" in terminal.getvalue()
        assert "[bold]" in terminal.getvalue()
        assert "\x1b[2J" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K"), "the line is cleared"


def test_nothing_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        bar.show("loading", 1, 2)
    assert capsys.readouterr() == ("", "")
