"""Digests of files: of all their bytes and their order, whoever hashes them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from octavo.errors import FileError
from octavo.io import digest
from octavo.io.digest import files_digest


def test_digest_of_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "SLAB", 4)
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"0123456789")
    b.write_bytes(b"")
    parts = b"".join(sha256(part).digest() for part in (b"0123", b"4567", b"89"))
    want = sha256(b"10\n0\n" + parts).hexdigest()
    assert [files_digest([a, b], threads) for threads in (1, 2, 16)] == [want] * 3
    assert files_digest([b, a], 1) != want


def test_each_byte_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a file's end is moved to the next one."""
    monkeypatch.setattr(digest, "SLAB", 4)
    path, data = tmp_path / "a", bytes(range(11))
    found = set()
    for i in range(len(data)):
        path.write_bytes(data[:i] + b"x" + data[i + 1 :])
        found.add(files_digest([path], 2))
    path.write_bytes(data)
    found.add(files_digest([path], 2))
    for cut in (3, 4, 8):
        path.write_bytes(data[:cut])
        (tmp_path / "b").write_bytes(data[cut:])
        found.add(files_digest([path, tmp_path / "b"], 2))
    assert len(found) == len(data) + 4


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        files_digest([tmp_path / "a"], 1)
