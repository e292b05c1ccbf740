"""Compiled functions on disk: whatever becomes of a file, the function is there, and other processes wait for it."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.io.locks import try_lock
from octavo.jit import clock, prepare, stored_code
from octavo.jit import kernel_cache as folders
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.program import KernelCall
from octavo.jit.simd import f32_pointer
from octavo.jit.task_driver import run_tasks

OUT = record("out")


def answer_kernel() -> Any:
    """Writes 42."""

    def answer(a, task):
        f32_pointer(a.out)[0] = 42

    return answer


def answers() -> bool:
    """Make the kernel as a new process would, and run it; whether it came from the disk."""
    kernel = kernels(OUT)(answer_kernel)()
    out = np.zeros(1, np.float32)
    KernelCall(kernel, 1, out=out).run()
    assert out[0] == 42
    return bool(kernel.compiled.cache_hits)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test's own, and nothing warned of yet."""
    run_tasks(0, 0, 0)  # compiled before, so that it is not kept there
    monkeypatch.setattr(stored_code, "kernel_folder", lambda: tmp_path / "kernels")
    monkeypatch.setattr(folders, "_said", set())
    (tmp_path / "kernels").mkdir()
    yield tmp_path / "kernels"
    assert not list(tmp_path.rglob("*.tmp")), "a temporary file is left"
    assert not list(tmp_path.rglob("*.lock")), "a lock is left"


@cache
def good_file() -> tuple[str, bytes]:
    """The name and the bytes of the kernel's file."""
    (path,) = stored_code.kernel_folder().glob("*.kernel")  # type: ignore[union-attr]
    return path.name, path.read_bytes()


@pytest.fixture
def entry(folder: Path) -> Path:
    """The kernel's file, as it should be."""
    if not good_file.cache_info().currsize:
        assert not answers()
    name, content = good_file()
    (folder / name).write_bytes(content)
    return folder / name


def checked(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


def test_a_kernel_is_kept(entry: Path) -> None:
    assert answers()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda b: b"",
    "cut in the checksum": lambda b: b[:20],
    "cut": lambda b: b[:-100],
    "zeroed": lambda b: bytes(len(b)),
    "zeroed at the end": lambda b: b[:-4096] + bytes(4096),
    "garbage": lambda b: bytes(range(256)) * 40,
    "another byte of machine code": lambda b: b.replace(b"\x7fELF", b"\x7fELG"),
    "no pickle": lambda b: checked(b"no pickle"),
    "an empty pickle": lambda b: checked(b""),
    "pickle of another type": lambda b: checked(pickle.dumps([1, 2, 3])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_again(damage: str, entry: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = DAMAGES[damage](entry.read_bytes())
    assert damaged != entry.read_bytes()
    for _ in range(2):
        entry.write_bytes(damaged)
        assert not answers()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert entry.name in caplog.text
    assert answers(), "the file is as it should be again"


@pytest.mark.parametrize("kept", [True, False])
def test_a_kernel_of_the_wheel_is_used(
    kept: bool, entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nothing can be kept; one that is damaged is compiled."""
    shipped = tmp_path / "shipped" / entry.name
    shipped.parent.mkdir()
    entry.rename(shipped)
    monkeypatch.setattr(stored_code, "shipped_folder", lambda: shipped.parent)
    if not kept:
        monkeypatch.setattr(stored_code, "kernel_folder", lambda: None)
    assert kernels(OUT)(answer_kernel)().is_there
    assert answers()
    assert not entry.exists()
    shipped.write_bytes(b"x" * 100)
    assert not answers()
    assert entry.exists() == kept
    assert "can't be read and is compiled again" in caplog.text


def test_a_folder_in_the_place_of_a_file_is_left_alone(entry: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry.unlink()
    entry.mkdir()
    assert not answers()
    assert entry.is_dir()
    assert len(caplog.records) == 2, "one of reading, one of writing"


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_kernel_that_can_not_be_kept_is_used(
    fault: int, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert not answers()
    assert not answers()
    assert [r.getMessage() for r in caplog.records] == [
        f"compiled kernels can't be kept in {folder}: {os.strerror(fault)}"
    ]
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("writable", "said"), [(True, " (first run only)\n"), (False, "\n")])
def test_what_is_said_of_compiling(
    writable: bool, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No promise to keep what was said to be not kept."""
    monkeypatch.setattr(folders, "_said", set() if writable else {folders.NOT_KEPT})
    monkeypatch.setattr(prepare._Progress, "said", False)
    monkeypatch.setattr(clock, "NOTICE_S", -1.0)
    prepare.show_progress("kernel", 0.0)
    assert capsys.readouterr().err == f"octavo: compiling kernels for this CPU{said}"


def test_a_folder_that_vanished_is_made_again(entry: Path) -> None:
    entry.unlink()
    entry.parent.rmdir()
    assert not answers()
    assert answers()


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_FSIZE is POSIX's")
def test_a_file_that_can_not_be_written_whole_is_not_kept(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        assert not answers()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "can't be kept in" in caplog.text
    assert not list(folder.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_a_function_that_another_process_compiles_is_waited_for(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is this one with a lock of its own, and has written the file when it is first waited for."""
    content = entry.read_bytes()
    entry.unlink()
    fd = os.open(entry.with_suffix(".lock"), os.O_CREAT | os.O_RDWR)
    assert try_lock(fd)

    def compiled_by_now(seconds: float) -> None:
        entry.write_bytes(content)
        entry.with_suffix(".lock").unlink()
        os.close(fd)

    monkeypatch.setattr(time, "sleep", compiled_by_now)
    assert answers()


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_a_process_that_was_stopped_is_not_waited_for_for_ever(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry.unlink()
    lock = entry.with_suffix(".lock")
    fd = os.open(lock, os.O_CREAT | os.O_RDWR)
    assert try_lock(fd)
    monkeypatch.setattr(stored_code, "WAIT_S", 0.0)
    assert not answers()
    assert answers()
    os.close(fd)
    lock.unlink()


def test_a_compilation_that_fails_leaves_no_lock(folder: Path) -> None:
    def wrong_kernel() -> Any:
        def wrong(a, task):
            return a.no_such_thing

        return wrong

    for _ in range(2):
        with pytest.raises(Exception, match="no_such_thing"):
            _ = kernels(OUT)(wrong_kernel)().address
        assert not list(folder.iterdir())


def aged(folder: Path, days: float) -> Path:
    """A folder of kernels that was last used this many days ago."""
    folder.mkdir(parents=True)
    (folder / "x.kernel").write_bytes(b"x")
    then = time.time() - days * folders.DAY_S
    os.utime(folder, (then, then))
    return folder


def test_folders_of_other_sources_go_when_they_are_no_longer_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    kernels_of = tmp_path / "kernels"
    old = aged(kernels_of / ("0" * 16), 31)
    recent = [aged(kernels_of / f"{i:016x}", i) for i in range(1, 12)]
    foreign = aged(kernels_of / "of a person", 400)
    (kernels_of / ("f" * 16)).symlink_to(aged(tmp_path / "elsewhere", 400))
    used = folders.kernel_folder.__wrapped__()
    assert used is not None
    assert used.is_dir()
    assert not old.exists()
    assert [f.exists() for f in recent] == [True] * folders.RECENT_FOLDERS + [False] * 3
    assert foreign.exists()
    assert (tmp_path / "elsewhere" / "x.kernel").exists()


def test_a_folder_in_use_is_marked_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    used = folders.kernel_folder.__wrapped__()
    assert used is not None
    os.utime(used, (0, 0))
    assert folders.kernel_folder.__wrapped__() == used
    assert time.time() - used.stat().st_mtime < folders.DAY_S


def test_a_cache_below_a_file_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(folders, "_said", set())
    assert folders.kernel_folder.__wrapped__() is None
    assert "can't be kept in" in caplog.text
    monkeypatch.setattr(stored_code, "kernel_folder", lambda: None)
    assert not answers()
