"""`octavo frontier`: its plan, its table and files, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.runtime import tiny

SMALL = ("--sizes", "4,6", "--samples", "2", "-c", "32", "--chunks", "6", "--rounds", "0", "--device", "reference")


def test_plan_table_and_files(octavo: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    model = str(tiny.write(tmp_path / "base.gguf"))
    out, calibration = tmp_path / "out", str(tiny.write_letters(tmp_path / "letters.txt", 200))
    given = ("frontier", model, "-o", str(out), "--calibration", calibration, "--text", text, *SMALL)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        for dry_run in ((), ("--dry-run",)):
            assert "a frontier's page needs matplotlib" in octavo(*given, *dry_run).error()
    dry = octavo(*given, "--dry-run")
    assert (dry.status, out.exists()) == (0, False)
    assert "base-6bpw.gguf  6 bits per weight" in dry.out
    assert "2 windows of 32 tokens to calibrate" in dry.out
    assert [f["target"] for f in json.loads(octavo(*given, "--dry-run", "--json").out)["files"]] == [
        "4 bits per weight", "6 bits per weight"]
    done = octavo(*given)
    another = octavo(*given[:-8], "--samples", "1", "-c", "32", "--device", "reference", "--dry-run").error()
    assert "out is of --samples 2 (allowed: another folder, or --restart)" in another
    assert done.status == 0
    heading = next(line for line in done.out.splitlines() if line.startswith("file") and "KL" in line)
    assert heading.split()[-4:] == ["prompt", "tok/s", "decode", "tok/s"]
    assert "overlap: 0.00%" in done.out
    assert f"octavo eval compare {model} {out}/*.gguf PRESET.gguf" in done.out
    assert {path.name for path in out.iterdir()} == {
        "base-4bpw.gguf", "base-6bpw.gguf", "frontier.html", "frontier.json", "frontier.svg", "work"}
    found = json.loads(octavo(*given, "--json").out)
    assert [f["name"] for f in found["files"]] == ["base-4bpw.gguf", "base-6bpw.gguf"]
    assert all(f["decode"] > 0 for f in found["files"])


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "--calibration TEXT is missing"),
    (("--calibration", "none.txt"), "none.txt: can't be opened"),
    (("--sizes", "3,,x", "--calibration", "demo"), "size 'x'"),
    (("--sizes", "1", "--calibration", "demo", "-c", "32"), "its smallest types take"),
    (("-o", ".", "--calibration", "demo"), "has files in it"),
    (("--for", "tpu"), "--for"),
])
def test_what_is_refused(
    octavo: Run, models: tuple[str, str], arguments: tuple[str, ...], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some").touch()
    assert message in octavo("frontier", models[0], "-o", "out", *arguments).error()
    assert not (tmp_path / "out").exists()
