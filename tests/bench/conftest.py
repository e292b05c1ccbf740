from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bench import limits
from tests.cli.conftest import octavo as octavo  # noqa: PLC0414  (the fixture)
from tests.runtime import tiny

FAKE = Path(__file__).parent / "fake_peer"
"""A folder with a module named llama_cpp."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model of random weights, 512 tokens of context."""
    return tiny.write(tmp_path_factory.mktemp("bench") / "tiny.gguf")


@pytest.fixture
def fixed_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read limit of 40 GB/s, found in no time."""
    monkeypatch.setattr(limits, "read_limit", lambda threads: 40.0)


@pytest.fixture
def fake_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `import llama_cpp` find the fake in processes started from here."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
