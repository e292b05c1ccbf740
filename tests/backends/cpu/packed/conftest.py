"""A cache of packed weights of the test's own, which keeps the smallest model too."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.backends.cpu.packed import cache_folder, store


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, which is not there yet."""
    folder = tmp_path / "weights"
    monkeypatch.setattr(cache_folder, "folder", lambda: folder)
    monkeypatch.setattr(store, "LEAST", 0)
    return folder
