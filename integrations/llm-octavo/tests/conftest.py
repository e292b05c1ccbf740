"""For all tests: the environment and the fixtures of Octavo's own, and an llm that has no settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from llm.plugins import load_plugins, pm

import llm_octavo
from tests.conftest import hub, pytest_collection_finish

__all__ = ["hub", "pytest_collection_finish"]


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """llm's folder, and an empty cache of the hub's."""
    from huggingface_hub import constants

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    load_plugins()
    assert pm.is_registered(llm_octavo), "pip install -e integrations/llm-octavo"
    return tmp_path / "llm"
