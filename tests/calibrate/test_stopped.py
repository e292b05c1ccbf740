"""Runs that are stopped or fail: what is done is kept, with a note of how to go on, or nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import FileError, NonFiniteError, OctavoError
from octavo.quantizers.job import write
from octavo.quantizers.schemes import checkpoint_folder
from tests.calibrate.resumable_runs import WAYS, Start, command, start
from tests.cli.conftest import Run, octavo
from tests.runtime import tiny

__all__ = ["octavo", "start"]

NOTE = "what was made is kept in {}.work; the same command with --resume (resume=True) goes on"


def stop(what: str, done: int, total: int) -> None:
    if what == "calibration" and done > total // 2:
        raise KeyboardInterrupt


@pytest.mark.few(1)
def test_ctrl_c_says_how_to_go_on(start: Start, tmp_path: Path) -> None:
    src = tiny.write(tmp_path / "src.gguf")
    with pytest.raises(KeyboardInterrupt) as stopped:
        start(src, progress=stop)
    assert stopped.value.__notes__ == [NOTE.format(tmp_path / "out")]
    start(src, resume=True)
    assert not (tmp_path / "out.work").exists()


def test_nothing_is_left_of_a_run_that_had_done_nothing(start: Start, tmp_path: Path) -> None:
    def at_once(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        start(tiny.write(tmp_path / "src.gguf"), progress=at_once)
    assert not hasattr(stopped.value, "__notes__")
    assert not (tmp_path / "out.work").exists()


@pytest.mark.few(2)
@pytest.mark.parametrize("resume", [False, True])
def test_a_value_that_ends_each_run_leaves_nothing_unless_asked_for(
    start: Start, tmp_path: Path, resume: bool
) -> None:
    weights = tiny.tensors("qwen3")
    weights["blk.1.attn_output.weight"][5, 3] = np.nan
    with pytest.raises(NonFiniteError) as ended:
        start(tiny.write(tmp_path / "src.gguf", weights=weights), resume=resume)
    assert getattr(ended.value, "__notes__", []) == ([NOTE.format(tmp_path / "out")] if resume else [])
    assert (tmp_path / "out.work").exists() == resume


def test_an_error_of_the_disk_at_the_end(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise FileError("can't be written: No space left on device")

    src = tiny.write(tmp_path / "src.gguf")
    with monkeypatch.context() as patched:
        patched.setattr(write, "write_gguf", full)
        patched.setattr(checkpoint_folder, "write_safetensors", full)
        patched.setattr("octavo.quantizers.statistics.statistics_file.Statistics.merge", full)
        with pytest.raises(OctavoError, match="No space left") as ended:
            start(src)
    assert ended.value.__notes__ == [NOTE.format(tmp_path / "out")]
    start(src, resume=True)
    assert not (tmp_path / "out.work").exists()


@pytest.mark.parametrize("way", WAYS)
def test_the_command_says_so(octavo: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    def show(bar: object, name: str, done: int, total: int) -> None:
        if name.startswith(("calibration", "part")) and done > total // 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("octavo.cli.progress_bar.Bar.show", show)
    tiny.widen(monkeypatch)
    src, out = tiny.write(tmp_path / "src.gguf"), str(tmp_path / "out")
    done = octavo(*command(way, src, text, out))
    assert done.status == 130
    assert f"octavo: {NOTE.format(out)}\n" in done.err


@contextmanager
def killed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs end as if they were killed between the last thing that they write and the removal of their folder."""
    with monkeypatch.context() as patched:
        patched.setattr("octavo.calibrate.runner.journal.remove_journal", lambda folder: None)
        yield


@pytest.mark.few(2)
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("way", ["calibrate", "gguf"])
def test_a_file_that_was_written_is_written_again(
    octavo: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, resume: bool
) -> None:
    """After a kill before the folder was removed; with --resume of what is there, and the same in any case."""
    tiny.widen(monkeypatch)
    src, out = tiny.write(tmp_path / "src.gguf"), tmp_path / "out"
    with killed_at_the_end(monkeypatch):
        assert octavo(*command(way, src, text, str(out))).status == 0
    wanted = out.read_bytes()
    assert (tmp_path / "out.work/state.json").exists()
    assert octavo(*command(way, src, text, str(out), *(["--resume"] if resume else []))).status == 0
    assert out.read_bytes() == wanted
    assert not (tmp_path / "out.work").exists()


def test_a_checkpoint_that_was_written(octavo: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says that it is finished, and by what."""
    tiny.widen(monkeypatch)
    src, out = tiny.write(tmp_path / "src.gguf"), tmp_path / "out"
    given = command("scheme", src, text, f"{out}/")
    with killed_at_the_end(monkeypatch):
        assert octavo(*given).status == 0
    finished = "is a finished checkpoint: w4a16-g128 by gptq over text.txt (allowed: a folder that is new or empty)"
    for more in ((), ("--resume",)):
        again = octavo(*given, *more)
        assert again.status == 2
        assert finished in again.err
    (out / "octavo_calibration.json").write_text("{}")
    assert "has files in it" in octavo(*given, "--resume").err
