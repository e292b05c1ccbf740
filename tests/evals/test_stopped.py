"""Runs that are stopped or fail: what is done is kept, with a note of how to go on, or nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import FileError, NonFiniteError, OctavoError
from octavo.evals import calibrate
from octavo.evals.compensation import Compensation
from octavo.evals.schemes import SchemeMethod
from octavo.quantizers import checkpoint, quantize_checkpoint, quantize_file
from octavo.quantizers.job import write
from tests.cli.conftest import Run, octavo
from tests.runtime import tiny

__all__ = ["octavo"]

OPTIONS: dict[str, Any] = {"context": 32, "device": "reference", "threads": 1}
NOTE = "what was made is kept in {}.work; the same command with --resume (resume=True) goes on"

Start = Callable[..., object]


@pytest.fixture
def text(tmp_path: Path) -> str:
    return tiny.write_letters(tmp_path / "text.txt", 600)


@pytest.fixture(params=["calibrate", "scheme", "gguf"])
def start(request: pytest.FixtureRequest, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Begins a run over a model that keeps what it has in tmp_path / "out.work"."""
    tiny.widen(monkeypatch)
    out = tmp_path / "out"

    def calibrated(src: str, resume: bool = False, progress: Any = None) -> object:
        told = None if progress is None else lambda done, total: progress("calibration", done, total)
        return calibrate(src, text, out, context=32, device="reference", resume=resume, progress=told)

    def of_scheme(src: str, resume: bool = False, progress: Any = None) -> object:
        method = SchemeMethod(text, resume=resume, progress=progress, **OPTIONS)
        return quantize_checkpoint(src, out, "w4a16-g128", method=method, threads=1)

    def of_gguf(src: str, resume: bool = False, progress: Any = None) -> object:
        monkeypatch.setattr("octavo.evals.compensation.LARGE", 0)
        method = Compensation(text, resume=resume, progress=progress, work=f"{out}.work", **OPTIONS)
        return quantize_file(src, out, "Q4_K_S", method=method, threads=1)

    return {"calibrate": calibrated, "scheme": of_scheme, "gguf": of_gguf}[request.param]


def stop(what: str, done: int, total: int) -> None:
    if what == "calibration" and done > total // 2:
        raise KeyboardInterrupt


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


@pytest.mark.parametrize("resume", [False, True])
def test_a_value_that_ends_each_run_leaves_nothing_unless_asked_for(
    start: Start, tmp_path: Path, resume: bool
) -> None:  # fmt: skip
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
        patched.setattr(checkpoint, "write_safetensors", full)
        patched.setattr("octavo.quantizers.calibration.statistics.Statistics.merge", full)
        with pytest.raises(OctavoError, match="No space left") as ended:
            start(src)
    assert ended.value.__notes__ == [NOTE.format(tmp_path / "out")]
    start(src, resume=True)
    assert not (tmp_path / "out.work").exists()


@pytest.mark.parametrize("command", ["calibrate", "scheme", "gguf"])
def test_the_command_says_so(
    octavo: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def show(bar: object, name: str, done: int, total: int) -> None:
        if name.startswith(("calibration", "part")) and done > total // 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("octavo.cli.progress.Bar.show", show)
    tiny.widen(monkeypatch)
    src, out = tiny.write(tmp_path / "src.gguf"), str(tmp_path / "out")
    method = ("--method", "gptq", "--calibration", text, "-c", "32", "--device", "reference")
    given = {
        "calibrate": ("calibrate", src, text, "-o", out, "-c", "32", "--device", "reference"),
        "scheme": ("quantize", src, out, "--scheme", "w4a16-g128", *method),
        "gguf": ("quantize", src, out, "Q4_K_S", *method, "--resume"),
    }
    done = octavo(*given[command])
    assert done.status == 130
    assert f"octavo: {NOTE.format(out)}\n" in done.err
