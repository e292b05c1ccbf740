"""The bar: what a terminal shows, and that nothing of it is elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from octavo.cli import progress_bar
from octavo.cli.progress_bar import LINE_S, Bar


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


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = 100.0
    monkeypatch.setattr(progress_bar, "monotonic", lambda: now)

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    return wait


def test_a_line_now_and_then_in_a_pipe(pass_time: Callable[[float], None], capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        bar.show("chunk 0", 0, 8)
        pass_time(LINE_S)
        bar.show("chunk 1", 1, 8)
        bar.show("chunk 2", 2, 8)
        pass_time(LINE_S / 2)
        bar.show("chunk 3", 3, 8)
        pass_time(LINE_S / 2)
        bar.show("a name that\x1b[2J clears")
    assert capsys.readouterr() == ("", "octavo: chunk 1 (12%)\noctavo: 'a name that\\x1b[2J clears'\n")


def test_a_pipe_that_nobody_reads_ends_nothing(
    pass_time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    with Bar() as bar:
        pass_time(LINE_S)
        bar.show("chunk 1", 1, 8)


def test_nothing_of_what_takes_little_time(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        bar.show("loading", 1, 2)
    assert capsys.readouterr() == ("", "")
