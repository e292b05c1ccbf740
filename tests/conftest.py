"""For all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it: no test asks a hub but the one of the fixture
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # as the command has it
os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton, as transformers does

import pytest

from tests import hub_server

# A test run started in the background ignores Ctrl-C, and one under nohup a closed terminal. So would each
# command that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The commands that tests start would compile the package's sources anew, each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is imported and collected lives until the end: looking through it for garbage again and again takes a twentieth
# of a run.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the first test of each file that runs by default as one of `smoke`."""
    seen = set[Path]()
    for item in items:
        if item.path not in seen and not {"slow", "browser"} & {mark.name for mark in item.iter_markers()}:
            seen.add(item.path)
            item.add_marker("smoke")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # compiling kernels makes many objects and no garbage
    gc.enable()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A hub on this machine, which is asked instead of Hugging Face's, with an empty cache and no token."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with hub_server.Hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server
