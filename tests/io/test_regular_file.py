"""Files that a user names are regular files of a bounded size, or one error says so at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.errors import FileError, GGUFError
from octavo.io.regular_file import open_regular, read_bytes, read_text


def test_reads_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc\xc3\xa4")
    assert read_bytes(path, 5) == b"abc\xc3\xa4"
    assert read_text(path, 5) == "abc\u00e4"
    with pytest.raises(GGUFError, match=r"x: is too large: 5 bytes \(allowed: at most 4 bytes\)"):
        read_bytes(path, 4, GGUFError)


def test_text_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc\xff")
    with pytest.raises(FileError, match=r"x, byte 3: not UTF-8"):
        read_text(path, 9)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "link")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(tmp_path / "socket"))
        for path, problem in (("pipe", "not a regular file"), ("link", "not a regular file"), ("socket", "can't be")):
            with pytest.raises(FileError, match=rf"{path}: {problem}.*"):
                read_bytes(tmp_path / path, 10)
    for path, problem in ((tmp_path, "not a regular file"), ("a\0b", "can't be opened: embedded null")):
        with pytest.raises(FileError, match=problem):
            open_regular(path)


def test_a_file_that_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 10)
    status: Callable[[int], os.stat_result] = os.fstat

    def grows(fd: int) -> os.stat_result:
        found = status(fd)
        os.truncate(path, 100)
        return found

    monkeypatch.setattr(os, "fstat", grows)
    with pytest.raises(FileError, match="is too large"):
        read_bytes(path, 20)
