"""What help says of options."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run

SAID = {
    ("run",): ("Threads to use (default: all cores).", "(default: 0.95)", "(default: the model's, up to 4096)"),
    ("profile",): ("Threads to use (default: all cores).", "(default: with --device auto what fits, with gpu all)"),
    ("report",): ("Threads to use (default: all cores).",),
    ("bench", "model"): ("Threads to use (default: all cores).", "(default: this one)"),
    ("eval", "ppl"): ("Threads to use (default: all cores).", "(default: the whole text)"),
}


@pytest.mark.parametrize("command", SAID, ids=" ".join)
def test_defaults_are_told(octavo: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    shown = octavo(*command, "--help").out
    assert [said for said in SAID[command] if said not in shown] == []
