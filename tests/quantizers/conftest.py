from __future__ import annotations

from pathlib import Path

import pytest

from tests.quantizers import small


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return small.write(tmp_path / "src.gguf")


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    return tmp_path / "dst.gguf"
