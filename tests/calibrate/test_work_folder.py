"""The folder of a run: what the disk must hold is asked for before, and what can't be written is named."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.calibrate.runner import Journal
from octavo.calibrate.runner.layerwise import StageValues
from octavo.errors import FileError, OctavoError
from tests.calibrate.resumable_runs import Start, start
from tests.runtime import tiny

__all__ = ["start"]

resource = pytest.importorskip("resource")


@pytest.fixture
def src(start: Start, tmp_path: Path) -> str:
    """A model of the shape that `start` is for."""
    return str(tiny.write(tmp_path / "src.gguf"))


@pytest.mark.usefixtures("in_files")
def test_a_disk_without_room_is_told_before(
    start: Start, src: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(tmp_path.iterdir())
    free = iter([1 << 40, 1000]) if "quantize_file" in start.__code__.co_names else iter([1000])
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=next(free)))
    with pytest.raises(FileError, match=r"out\.work: .* bytes of disk space, but only 1,000 are free"):
        start(src)
    assert set(tmp_path.iterdir()) == before


def test_a_file_in_the_place_of_the_folder(start: Start, src: str, tmp_path: Path) -> None:
    (tmp_path / "out.work").write_text("mine")
    with pytest.raises(FileError, match=r"out\.work: is not a folder \(allowed: a folder"):
        start(src)
    assert (tmp_path / "out.work").read_text() == "mine"


def test_a_limit_on_files(start: Start, src: str, tmp_path: Path) -> None:
    with largest_file(1 << 12), pytest.raises(FileError, match=r"out\.work.*: can't be written: File too large"):
        start(src)


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no system call asks for room")
def test_room_is_asked_for_before_values_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to a file that the disk has no room for kills the process."""
    found = StageValues(str(tmp_path))
    assert found.new(("changed", 1), (300, 1000), "f32").shape == (300, 1000)
    stat = os.stat(tmp_path / "changed-1.bin")
    assert stat.st_blocks * 512 >= stat.st_size == 4 * 300 * 1000

    def full(fd: int, start: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match=r"changed-2\.bin: can't be written: No space left on device"):
        found.new(("changed", 2), (3,), "f32")


def test_a_folder_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "out.work")

    monkeypatch.setattr(os, "makedirs", refused)
    with pytest.raises(OctavoError, match=r"out\.work: can't be written: Permission denied"):
        Journal(str(tmp_path / "out.work"), "run", resume=False)
