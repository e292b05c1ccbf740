from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from octavo.bench import limits
from tests.cli.conftest import octavo as octavo  # noqa: PLC0414  (the fixture)
from tests.runtime import tiny

ROOT = Path(__file__).parents[2]
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


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Gives bench/<name>.py."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return import_module


@pytest.fixture
def load_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """Gives tools/<name>.py with results of its own, and a page with a part between the marks that it is told."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))

    def load(name: str, mark: str) -> ModuleType:
        module = import_module(name)
        monkeypatch.setattr(module, "RESULTS", tmp_path)
        monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
        (tmp_path / "page.md").write_text(f"# Title\n<!-- {mark}:start -->\nold\n<!-- {mark}:end -->\nrest\n")
        return module

    return load
