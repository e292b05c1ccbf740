"""What ends a command: SIGTERM and SIGHUP leave nothing behind, and an EOFError is not a Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from octavo.__main__ import main as start
from octavo.cli import signals
from octavo.cli.progress_bar import Bar
from tests.cli.conftest import Run
from tests.quantizers import small

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")


@pytest.fixture
def src(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small.write(tmp_path_factory.mktemp("model") / "src.gguf"))


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands get a signal when they show their progress; each time, the names of temporary files that were there."""
    seen = []

    def end(bar: Bar, name: str, done: int, total: int) -> None:
        seen.append([p.name for p in tmp_path.glob(".octavo-*.tmp")])
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Bar, "show", end)
    return seen


@pytest.mark.parametrize("command", ["file", "folder"])
def test_sigterm_leaves_nothing_behind(
    octavo: Run, src: str, tmp_path: Path, ended: list[list[str]], command: str
) -> None:
    made = str(tmp_path / "made")
    commands = {"file": (src, made, "Q4_K_M"), "folder": ("demo", made, "--scheme", "int8-w8a8")}
    assert octavo("quantize", *commands[command]).status == 128 + signal.SIGTERM
    assert [len(names) for names in ended] == [1], "in work when the signal came"
    assert os.listdir(tmp_path) == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("command", ["frontier", "imatrix", "pull"])
def test_a_command_that_goes_on_says_so(
    octavo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[list[str]], command: str
) -> None:
    monkeypatch.setattr("octavo.io.model_path.download", lambda *given, **more: signal.raise_signal(signal.SIGTERM))
    given = {"frontier": ("demo", "-o", "out", "--sizes", "5", "--samples", "1", "--chunks", "1"),
             "imatrix": ("demo", "demo", "-o", "matrix.gguf", "--chunks", "1"), "pull": ("a/b",)}
    monkeypatch.chdir(tmp_path)
    stopped = octavo(command, *given[command])
    assert stopped.status == 128 + signal.SIGTERM
    assert "octavo: stopped; the same command goes on" in stopped.err


_QUANTIZE = """
import signal
from octavo.cli import main
from octavo.cli.progress_bar import Bar
Bar.show = lambda *progress: signal.raise_signal(signal.SIGHUP)
main()
"""


def test_a_closed_terminal(src: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _QUANTIZE, "quantize", src, str(tmp_path / "made"), "Q4_K_M"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]  # of a machine that has none
    assert (done.returncode, said, os.listdir(tmp_path)) == (128 + signal.SIGHUP, [], [])


def test_under_nohup_sighup_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.ending_in_order():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_more_signals_do_not_disturb_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    def ending() -> None:
        with signals.ending_in_order():
            try:
                signal.raise_signal(signal.SIGHUP)
            finally:
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGTERM)
                cleaned.append(True)

    with pytest.raises(SystemExit) as end:
        ending()
    assert (end.value.code, cleaned) == (129, [True])
    monkeypatch.setattr(signals, "GRACE_S", -1.0)
    with pytest.raises(SystemExit) as end:
        ending()
    assert (end.value.code, cleaned) == (129, [True]), "later ones end it all the same"


def test_outside_the_main_thread_nothing_changes() -> None:
    found = []

    def look() -> None:
        with signals.ending_in_order():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_ctrl_c_before_the_command_has_begun(octavo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Typer looks at the commands, or modules are imported, it is an end without a traceback, too."""

    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("octavo.cli.app", interrupted)
        result = octavo("list")
    assert (result.status, result.err) == (130, "")
    with monkeypatch.context() as patched:
        patched.setattr("builtins.__import__", interrupted)
        with pytest.raises(SystemExit) as end:
            start()
    assert end.value.code == 130


def test_what_ends_too_early_is_no_ctrl_c(octavo: Run, src: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.setattr(Bar, "show", fail)
    assert "unexpected end of input: Ran out of input" in octavo("quantize", src, src + ".out", "Q4_K_M").error()
