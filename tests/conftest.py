"""For all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it: no test asks a hub but the one of the fixture
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # as the command has it
os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton, as transformers does

import pytest

from tests import hub_server
from tests.sampling import spread

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases that `few` leaves out as slow, and the first test of each file that runs by default as of `smoke`."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for several in cases.values():
        mark = several[0].get_closest_marker("few")
        assert mark
        for item, kept in zip(several, spread(len(several), *mark.args), strict=True):
            if not kept:
                item.add_marker("slow")
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
