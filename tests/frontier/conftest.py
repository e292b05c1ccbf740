from __future__ import annotations

from pathlib import Path

import pytest

from octavo.frontier.plan import Options
from tests.runtime import tiny


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model whose rows are all 256 values."""
    tiny.widen(monkeypatch)
    return str(tiny.write(tmp_path / "src-f16.gguf"))


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Few windows of a text of letters, on the reference backend; judged on others."""
    calibration = tiny.write_letters(tmp_path / "text.txt", 400)
    (tmp_path / "judged.txt").write_text("The quick brown fox jumps over the lazy dog. " * 8)
    return Options(calibration, samples=4, context=32, probes=2, rounds=1, text=str(tmp_path / "judged.txt"),
                   chunks=2, speed=False, device="reference", threads=1)
