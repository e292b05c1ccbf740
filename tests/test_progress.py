"""The line at the terminal that says how far a model's loading and the compiling of kernels are."""

from __future__ import annotations

import sys

import pytest

import octavo
from octavo.progress import Line, in_log, on_terminal, shown, tell


def test_nobody_is_told_unless_somebody_wants_to_see() -> None:
    seen: list[tuple[str, int, int]] = []
    assert not tell("a", 1, 2)
    with shown(lambda *told: seen.append(told)):
        assert tell("a", 1, 2)
    assert not tell("b", 2, 2)
    assert seen == [("a", 1, 2)]


def test_the_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("octavo.progress.AFTER_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    with on_terminal():
        tell("what goes on, in more words than fit", 1, 2)
    assert capsys.readouterr().err == "\r############............  50%  what goes on, in m\x1b[K\r\x1b[K"


def test_a_short_thing_and_a_pipe_get_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = Line()
    line.show("a", 1, 2)
    line.clear()
    with on_terminal():
        assert not tell("a", 1, 2)
    assert capsys.readouterr().err == ""


def test_loading_a_model_tells_of_bytes() -> None:
    seen: list[tuple[str, int, int]] = []
    with shown(lambda *told: seen.append(told)), octavo.load("demo", device="reference", n_ctx=64):
        pass
    loading = [(done, total) for what, done, total in seen if what.startswith("reading and packing weights: ")]
    assert loading == sorted(loading)
    assert loading[0][0] == 0
    assert {total for _, total in loading} == {loading[0][1]}
    assert 0.9 < loading[-1][0] / loading[-1][1] < 1


def test_a_log_gets_a_line_for_each_thing_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_log():
        assert tell("what is quick: 1 of 1", 1, 1)
    monkeypatch.setattr("octavo.progress.AFTER_S", -1.0)
    with in_log():
        for i in range(3):
            tell(f"packing: {i} of 3", i, 3)
        tell("compiling: 0 of 2", 0, 2)
    assert capsys.readouterr().err == "octavo: packing\noctavo: compiling\n"
