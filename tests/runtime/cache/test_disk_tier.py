"""The folder of kept prefixes: bounded, shared, private; what is damaged, foreign or in the way costs a line."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo.graph.node import PAGE_SIZE
from octavo.io import atomic
from octavo.runtime.cache.tiers import disk_tier
from octavo.runtime.cache.tiers.disk_tier import DiskTier
from octavo.runtime.cache.tiers.entry import Entry, page_entry, root_key

MODEL, ROOT = bytes(range(32)), root_key(bytes(range(32)), "")
DATA = np.arange(20_000, dtype=np.uint8)
SIZE = 5 * disk_tier.BLOCK
"""What a file of DATA takes on the disk."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX")


def entries(n: int, first: int = 0) -> list[Entry]:
    """Pages that follow each other."""
    found, parent = list[Entry](), ROOT
    for i in range(n):
        found.append(page_entry(parent, [first + i] * PAGE_SIZE, 0))
        parent = found[-1].key
    return found


def files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.rglob("*") if one.is_file())


def taken(folder: Path) -> int:
    return sum(-(-one.stat().st_size // disk_tier.BLOCK) * disk_tier.BLOCK for one in files(folder))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_written_is_found(tmp_path: Path) -> None:
    tier, (first, second) = DiskTier(tmp_path / "kept", 1 << 20, MODEL), entries(2)
    tail = Entry(second.key, (1, 2, 3))
    for i, entry in enumerate((first, second, tail, tail.of("window"))):
        assert tier.get(entry) is None
        assert tier.put(entry, DATA, i)
        found = tier.get(entry)
        assert found is not None
        assert (found.entry, found.given_back) == (entry, i)
        assert found.data.tobytes() == DATA.tobytes()
    assert set(tier.after(second.key)) == {tail, tail.of("window")}
    assert {stat.S_IMODE(one.stat().st_mode) for one in files(tmp_path)} == {0o600}
    folders = [one for one in tmp_path.rglob("*") if one.is_dir()]
    assert {stat.S_IMODE(one.stat().st_mode) for one in folders} == {0o700}
    tier.remove(tail)
    assert not tier.has(tail)
    assert DiskTier(tmp_path / "kept", 1 << 20, bytes(32)).get(first) is None


@pytest.mark.parametrize(("harm", "why"), [
    (lambda data: data[:-1], "ends before"), (lambda data: b"", "another prefix"),
    (lambda data: data[:40], "ends before"), (lambda data: data[:-9] + b"\xff" + data[-8:], "checksum"),
    (lambda data: data[:8] + b"\x02" + data[9:], "has version 2 (allowed: 1)"),
    (lambda data: data[:36] + b"\xff" + data[37:], "checksum"), (lambda data: bytes(len(data)), "not a kept prefix"),
    (lambda data: data[:16] + b"\xff\xff" + data[18:], "header is damaged"),
    (lambda data: data[:24] + b"\xff" * 8 + data[32:], "ends before"),
])
def test_a_damaged_file_is_left_out(
    tmp_path: Path, harm: Callable[[bytes], bytes], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    tier, (entry,) = DiskTier(tmp_path, 1 << 20, MODEL), entries(1)
    tier.put(entry, DATA)
    (path,) = files(tmp_path)
    path.write_bytes(harm(path.read_bytes()))
    assert tier.get(entry) is None
    assert tier.after(ROOT) == []
    (line,) = warned(caplog)
    assert line.startswith("a kept prefix is left out: ")
    assert str(path) in line
    assert why in line
    assert files(tmp_path) == []
    assert tier.put(entry, DATA), "it is kept anew"
    assert tier.get(entry) is not None


def test_a_file_under_the_name_of_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier, (one, two) = DiskTier(tmp_path, 1 << 20, MODEL), (entries(1)[0], entries(1, 9)[0])
    tier.put(one, DATA)
    (path,) = files(tmp_path)
    path.rename(path.with_name(two.name))
    assert tier.get(two) is None
    assert "another prefix" in warned(caplog)[0]


def test_the_bound_holds_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    limit = 20 * SIZE
    tier, old = DiskTier(tmp_path, limit, bytes(32)), entries(4, 100)
    for entry in old:
        tier.put(entry, DATA)
    for path in files(tmp_path):
        os.utime(path, (1, 1))
    tier, pages = DiskTier(tmp_path, limit, MODEL), entries(40)
    for i, entry in enumerate(pages):
        time.sleep(0.002)  # the clock of files
        assert tier.put(entry, DATA)
        assert taken(tmp_path) <= limit
        tier.touch(pages[0])
        if i == 19:
            assert not any(DiskTier(tmp_path, limit, bytes(32)).has(one) for one in old), "of another model, and older"
    assert tier.has(pages[0])
    assert tier.has(pages[39])
    there = [tier.has(entry) for entry in pages[1:]]
    assert there == sorted(there), "those written first are gone"
    assert not tier.put(Entry(ROOT, (5,)), np.zeros(limit, np.uint8)), "larger than all that may be kept"
    assert sum(tier.has(entry) for entry in pages) > 10


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier, pages = DiskTier(tmp_path, 1 << 20, MODEL), entries(5)
    tier.put(pages[0], DATA)

    def refuse(*args: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(disk_tier, "write_entry", refuse)
        assert not any(tier.put(entry, DATA) for entry in pages[1:])
    (line,) = warned(caplog)
    assert f"{tmp_path}: prefixes can't be kept: {os.strerror(number)}" in line
    assert tier.get(pages[0]) is not None
    assert [one.name for one in files(tmp_path)] == [pages[0].name], "nothing half written is left"
    assert not tier.put(pages[1], DATA), "not tried at once again"
    tier._paused_until = 0.0
    assert tier.put(pages[1], DATA)


def test_a_folder_to_be_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another engine's on a disk that is mounted so."""
    tier, (entry,) = DiskTier(tmp_path, 1 << 20, MODEL), entries(1)
    tier.put(entry, DATA)

    def refuse(*args: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("utime", "unlink"):
        monkeypatch.setattr(disk_tier.os, name, refuse)
    assert tier.get(entry) is not None
    assert tier.put(entry, DATA)


def test_a_folder_that_is_not_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"exists|not a folder"):
        DiskTier(tmp_path / "file", 1 << 20, MODEL)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="not a folder"):
        DiskTier(tmp_path / "link", 1 << 20, MODEL)
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    DiskTier(tmp_path / "open", 1 << 20, MODEL)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o700
    monkeypatch.setattr(disk_tier.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="another user"):
        DiskTier(tmp_path / "open", 1 << 20, MODEL)


def test_a_folder_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    tier, (first, second) = DiskTier(tmp_path / "kept", 1 << 20, MODEL), entries(2)
    assert tier.put(first, DATA)
    shutil.rmtree(tmp_path / "kept")
    assert tier.put(second, DATA)
    assert tier.get(first) is None
    assert tier.get(second) is not None
    assert {stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "kept", *(tmp_path / "kept").rglob("*"))
            if one.is_dir()} == {0o700}


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    mine = [tmp_path / "letter.txt", tmp_path / "v0-other" / "aa" / "page.bin", tmp_path / "64-00.page"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(3 * SIZE))
        os.utime(path, (1, 1))
    tier = DiskTier(tmp_path, 4 * SIZE, MODEL)
    for entry in entries(20):
        assert tier.put(entry, DATA)
    assert all(path.exists() for path in mine)


def _keep(folder: str, limit: int, first: int, n: int) -> None:
    tier = DiskTier(Path(folder), limit, MODEL)
    for entry in [*entries(n, first), *entries(n)]:
        assert tier.put(entry, DATA)
        found = tier.get(entry)
        assert found is None or found.data.tobytes() == DATA.tobytes()


def test_two_processes_write_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limit, context = 30 * SIZE, multiprocessing.get_context("fork")
    both = [context.Process(target=_keep, args=(str(tmp_path), limit, first, 40)) for first in (1000, 2000)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0]
    tier = DiskTier(tmp_path, limit, MODEL)
    kept = [found for entry in entries(40) if (found := tier.get(entry)) is not None]
    assert kept
    assert all(found.data.tobytes() == DATA.tobytes() for found in kept)
    assert taken(tmp_path) <= limit + 2 * (limit // disk_tier.ROOM + SIZE)
    assert warned(caplog) == []
    tier.put(entries(1, 5)[0], DATA)
    assert taken(tmp_path) <= limit


def _die(folder: str) -> None:
    tier, n = DiskTier(Path(folder), 1 << 20, MODEL), 0

    def write(file: object, *rest: object) -> None:
        nonlocal n
        n += 1
        if n == 3:
            file.write(b"octavoKV half")  # type: ignore[attr-defined]
            file.flush()  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)
        real(file, *rest)  # type: ignore[arg-type]

    real, disk_tier.write_entry = disk_tier.write_entry, write  # type: ignore[assignment]
    for entry in entries(3):
        tier.put(entry, DATA)


def test_a_writer_that_is_killed_leaves_whole_files_or_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = multiprocessing.get_context("fork")
    dying = context.Process(target=_die, args=(str(tmp_path),))
    dying.start()
    dying.join()
    assert dying.exitcode == -signal.SIGKILL
    tier, pages = DiskTier(tmp_path, 1 << 20, MODEL), entries(3)
    assert [tier.has(entry) for entry in pages] == [True, True, False]
    assert [len(tier.after(entry.parent)) for entry in pages] == [1, 1, 0]
    (left,) = (one for one in files(tmp_path) if atomic._TEMPORARY.fullmatch(one.name))
    assert tier.put(pages[2], DATA)
    assert not left.exists()
    assert tier.get(pages[2]) is not None
    assert warned(caplog) == []
