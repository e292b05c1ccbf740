"""Files and folders that appear whole or not at all: only where files belong, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from octavo.errors import FileError
from octavo.io.atomic import new_folder, replace_file, require_new_folder, require_target

posix = pytest.mark.skipif(os.name != "posix", reason="FIFOs, sockets and locks are POSIX's")
Writer = Callable[[Path], AbstractContextManager[str]]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def identity(path: Path) -> tuple[int, ...]:
    """All of what stands there but when it was read: following a link reads it."""
    found = os.lstat(path)
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@posix
@pytest.mark.parametrize(
    "make", [os.mkfifo, make_socket, lambda p: p.symlink_to(os.devnull), lambda p: p.symlink_to(p)]
)
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "target"
    make(path)
    before = identity(path)
    for check in (require_target, lambda p: replace_file(p).__enter__()):
        with pytest.raises(FileError, match=r"target: (is not a regular file|can't be written)"):
            check(path)
    assert identity(path) == before
    assert os.listdir(tmp_path) == ["target"]


def test_no_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        require_target(tmp_path)
    with pytest.raises(FileError, match="is the name of a folder"), replace_file(f"{tmp_path}/new/"):
        pass
    with pytest.raises(FileError, match="is a folder"), replace_file(tmp_path):
        pass


def test_a_file_has_a_name() -> None:
    for check in (require_target, lambda p: replace_file(p).__enter__()):
        with pytest.raises(FileError, match="the file to write has no name"):
            check("")


@posix
def test_no_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "target")
    with pytest.raises(FileError, match="is not a folder"), new_folder(tmp_path / "target"):
        pass
    assert os.listdir(tmp_path) == ["target"]


def test_files_new_and_old_are_targets(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "link").symlink_to("new through a link")
    for name in ("old", "new", "link"):
        require_target(tmp_path / name)
        with replace_file(tmp_path / name) as temporary:
            Path(temporary).write_text(name)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new through a link").read_text() == "link"


_WRITE = """
import os, signal, sys
from octavo.io.atomic import new_folder, replace_file
with replace_file(sys.argv[1]), new_folder(sys.argv[2]) as folder:
    open(os.path.join(folder, "part"), "w").close()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes a file and a folder, and does not come to an end."""
    command = [sys.executable, "-c", _WRITE, str(tmp_path / "a file"), str(tmp_path / "a folder")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@posix
def test_a_folder_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is written beside the current folder, which is what the system takes it for."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="the folder to write has no name"):
        require_new_folder("")


@pytest.mark.parametrize("write", [replace_file, new_folder])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, writer: subprocess.Popen[str], write: Writer) -> None:
    ours = [".octavo-notes.tmp", "octavo-0123456789abcdef.tmp"]
    for name in ours:
        (tmp_path / name).touch()
    left = set(os.listdir(tmp_path)) - set(ours)
    assert len(left) == 2
    with write(tmp_path / "b"):
        assert left < set(os.listdir(tmp_path)), "they are in work"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    with write(tmp_path / "c") as temporary:
        assert sorted(os.listdir(tmp_path)) == sorted([*ours, "b", os.path.basename(temporary)])


@posix
def test_a_temporary_file_that_is_taken_for_one_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes it between its making and its lock: there is another."""
    from octavo.io import atomic

    create, made = atomic._create, []

    def create_and_lose(mode: int, path: str) -> None:
        create(mode, path)
        made.append(path)
        if len(made) == 1:
            os.unlink(path)

    monkeypatch.setattr(atomic, "_create", create_and_lose)
    with replace_file(tmp_path / "target") as temporary:
        Path(temporary).write_text("all of it")
    assert (tmp_path / "target").read_text() == "all of it"
    assert len(made) == 2


@posix
@pytest.mark.parametrize("write", [replace_file, new_folder])
def test_interrupted_at_any_call_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Writer
) -> None:
    """Ctrl-C is heard where a call ends: what that made is removed, or has taken its place."""
    calls = {name: getattr(os, name) for name in ("open", "close", "mkdir", "listdir", "fsync", "replace", "rename")}
    heard, left = set(), 0

    def interrupted(name: str) -> Callable[..., object]:
        def call(*given: object, **more: object) -> object:
            nonlocal left
            found, left = calls[name](*given, **more), left - 1
            if left == 0:
                heard.add(name)
                raise KeyboardInterrupt
            return found

        return call

    for name in calls:
        monkeypatch.setattr(os, name, interrupted(name))
    for at in range(1, 20):
        left = at
        with suppress(KeyboardInterrupt), write(tmp_path / str(at)):
            pass
        assert set(calls["listdir"](tmp_path)) <= set(map(str, range(at + 1))), at
    assert heard == set(calls) - ({"mkdir", "rename"} if write is replace_file else {"replace"})


def test_where_there_are_no_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError

    monkeypatch.setattr("octavo.io.locks.fcntl.flock", refuse)
    (tmp_path / ".octavo-0123456789abcdef.tmp").touch()
    with replace_file(tmp_path / "target"):
        pass
    assert sorted(os.listdir(tmp_path)) == [".octavo-0123456789abcdef.tmp", "target"]
