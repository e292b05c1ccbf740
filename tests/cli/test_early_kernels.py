"""Kernels that are compiled while a model is downloaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.hub import early_kernels
from octavo.cli.hub.early_kernels import EarlyKernels, compile_for
from octavo.io.gguf import GGUFFile
from tests.cli.conftest import Run
from tests.hub_server import Hub
from tests.limits import HANG_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="files have no holes")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The weights of each schedule whose kernels are compiled."""
    found: list[set[str]] = []

    def compile_ahead(schedule: Any, backends: Any, limits: Any) -> None:
        found.append({node.tensor.name for node in schedule.graph.nodes if node.op == "weight"})

    monkeypatch.setattr("octavo.runtime.engine.kernels_ahead.compile_ahead", compile_ahead)
    monkeypatch.setattr("octavo.backends.concrete", lambda device: "cpu")
    monkeypatch.setattr(os, "nice", lambda more: more)
    return found


def _partial(path: str, to: Path, nbytes: int) -> list[str]:
    """A file with the first bytes of another, and the arguments that tell of it."""
    to.write_bytes(Path(path).read_bytes()[:nbytes])
    return ["", str(to), str(os.path.getsize(path)), str(to.parent)]


def test_a_header_is_enough(
    alphabet: str, tmp_path: Path, compiled: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with GGUFFile.open(alphabet) as file:
        header, names = min(info.offset for info in file.tensors.values()), set(file.tensors)
    monkeypatch.setattr(sys, "argv", _partial(alphabet, tmp_path / "partial", header))
    monkeypatch.setattr(early_kernels, "HEADER", header)
    compile_for()
    (found,) = compiled
    assert found >= names


def test_it_is_read_again_when_more_is_there(
    alphabet: str, tmp_path: Path, compiled: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size = tmp_path / "partial", os.path.getsize(alphabet)
    monkeypatch.setattr(sys, "argv", _partial(alphabet, path, 100))
    monkeypatch.setattr(early_kernels, "HEADER", 64)

    def download(seconds: float) -> None:
        assert not compiled
        path.write_bytes(Path(alphabet).read_bytes()[: 2 * path.stat().st_size])

    monkeypatch.setattr("time.sleep", download)
    compile_for()
    assert len(compiled) == 1
    assert path.stat().st_size < size


def test_nothing_for_a_card_and_for_what_has_no_header(
    alphabet: str, tmp_path: Path, compiled: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", _partial(alphabet, tmp_path / "partial", 1 << 30))
    monkeypatch.setattr("octavo.backends.concrete", lambda device: "gpu")
    compile_for()
    monkeypatch.setattr("octavo.backends.concrete", lambda device: "cpu")
    (tmp_path / "partial").write_bytes(bytes(os.path.getsize(alphabet)))
    monkeypatch.setattr(early_kernels, "MOST", 1 << 10)
    compile_for()
    assert not compiled


def test_it_ends_with_the_download(tmp_path: Path) -> None:
    (tmp_path / "partial").touch()
    with EarlyKernels() as kernels:
        kernels.begin(str(tmp_path / "partial"), early_kernels.LEAST - 1)
        assert kernels._process is None
        kernels.begin(str(tmp_path / "partial"), early_kernels.LEAST)
        process = kernels._process
        kernels.begin(str(tmp_path / "partial"), early_kernels.LEAST)
        assert process is not None
        assert process is kernels._process
        assert (folder := Path(kernels._folder)).is_dir()
    assert process.returncode == -signal.SIGKILL
    assert not folder.exists()


def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """As do the processes that help it, and its folder."""
    (folder := tmp_path / "folder").mkdir()
    program = (
        "import subprocess, time; from octavo.cli.hub import early_kernels as e; e.ended_with_its_parent();"
        "helper = subprocess.Popen(['sleep', '60'], stdin=subprocess.PIPE); print(helper.pid, flush=True);"
        "time.sleep(60)"
    )
    command = [sys.executable, "-c", program, "partial", "1", str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdin.close()
        assert process.wait(HANG_S) == -signal.SIGKILL
        assert process.stdout.read() == b""  # the helper has it open too, and is gone
    assert not folder.exists()


def test_without_room_for_it_a_download_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with EarlyKernels() as kernels:
        kernels.begin(str(tmp_path / "partial"), early_kernels.LEAST)
        assert kernels._process is None


@pytest.mark.parametrize("command", [["pull"], ["inspect"]])
def test_commands_tell_it_of_files(
    octavo: Run, hub: Hub, alphabet: str, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    begun: list[tuple[str, int]] = []
    monkeypatch.setattr(EarlyKernels, "begin", lambda kernels, partial, size: begun.append((partial, size)))
    hub.repository("org/alphabet-GGUF", {"alphabet-Q4_K_M.gguf": Path(alphabet).read_bytes()})
    for _ in range(2):
        assert octavo(*command, "org/alphabet-GGUF").status == 0
    ((partial, size),) = begun
    assert partial.endswith(".octavo.incomplete")
    assert size == os.path.getsize(alphabet)
