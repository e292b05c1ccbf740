from __future__ import annotations

from pathlib import Path

import pytest

from tests.evals.conftest import gguf, open_tiny
from tests.runtime import tiny

__all__ = ["gguf", "open_tiny"]


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with a folder keep the values of any model in files, as they do those of a large one."""
    monkeypatch.setattr("octavo.calibrate.runner.layerwise.IN_MEMORY", 0)


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A file of letters, of which there are enough windows for methods."""
    return tiny.write_letters(tmp_path / "text.txt", 600)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model whose rows are all 256 values."""
    tiny.widen(monkeypatch)
    return str(tiny.write(tmp_path / "src.gguf"))
