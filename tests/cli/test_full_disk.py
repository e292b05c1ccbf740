"""Commands that can't write what they are to write: one line says which file and why, and nothing is left of it."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.convert import folders
from tests.models.checkpoints import CASES
from tests.runtime import tiny

FULL = Path("/dev/full")
REASONS = (os.strerror(errno.ENOSPC), "the disk is full, or a limit reached (")
GPTQ = ("--method", "gptq", "--calibration", "TEXT", "-c", "32", "--device", "reference")
COMMANDS = [
    ("quantize", "MODEL", "OUT", "Q8_0"),
    ("quantize", "MODEL", "OUT", "Q4_K_S", *GPTQ, "--resume"),
    ("quantize", "MODEL", "OUT", "--scheme", "int8-w8a8"),
    ("quantize", "MODEL", "OUT", "--scheme", "w4a16-g128", *GPTQ),
    ("convert", "FOLDER", "OUT"),
    ("imatrix", "MODEL", "TEXT", "-o", "OUT", "-c", "32"),
    ("calibrate", "MODEL", "TEXT", "-o", "OUT", "-c", "32", "--device", "reference"),
    ("embed", "MODEL", "--pooling", "mean", "-o", "OUT", "--device", "reference"),
    ("report", "MODEL", "-o", "OUT"),
    ("bench", "model", "MODEL", "-o", "OUT", "-p", "4", "-n", "1"),
    ("bench", "make", "qwen3-0.6b", "Q4_0", "OUT"),
]


@pytest.mark.few(6)
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:4]))
def test_one_line_names_the_file(
    octavo: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.widen(monkeypatch)
    files = {"MODEL": tiny.write(tmp_path / "tiny.gguf"), "TEXT": text, "OUT": str(tmp_path / "out")}
    if "FOLDER" in command:
        (tmp_path / "folder").mkdir()
        files["FOLDER"] = str(tmp_path / "folder")
        folders.save(tmp_path / "folder", CASES["qwen3"])
    before = sorted(tmp_path.rglob("*"))
    real = builtins.open

    def full(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        """Files of the test are written to a disk without room: the system tells no file's name when they grow."""
        written = "w" in mode and isinstance(file, str | Path) and tmp_path in Path(file).parents
        return real(FULL if written else file, mode, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", full)
        done = octavo(*(files.get(part, part) for part in command), stdin=b"some text\n" * 40)
    said = done.err.splitlines()[-1]
    assert done.status == 2
    assert ("decode" in done.out) == (command[:2] == ("bench", "model"))  # what was measured is not lost
    assert said.startswith(f"octavo: error: {tmp_path / 'out'}")
    assert any(reason in said for reason in REASONS)
    assert ".tmp" not in said
    assert sorted(tmp_path.rglob("*")) == before
