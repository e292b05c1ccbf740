"""A cache file that is cut or changed anywhere is never used: it is removed, and the weights are packed again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu.packed import cache_file
from octavo.backends.cpu.packed.cache_file import BOOT_AT, PAGE, CacheFile, CacheWriter, DamagedError, _sum_of
from octavo.backends.cpu.packed.store import MappedStore, WritingStore
from octavo.io import file_identity
from tests.backends.cpu.packed.cached import load, matrix, require_all_equal, write


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", [matrix("Q4_K", 40, 512, name="a"), matrix("F32", 512, name="norm")])


def flip(at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 0x10

    return change


def cut(size: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        del data[size if size >= 0 else len(data) + size :]

    return change


DAMAGE: dict[str, Callable[[bytearray], Any]] = {
    "empty": cut(0), "half a header": cut(100), "the header alone": cut(PAGE), "half of the data": cut(PAGE + 5000),
    "the end mark cut": cut(-1), "the end mark and more": cut(-40), "longer": lambda data: data.extend(bytes(4096)),
    "magic": flip(0), "where the index lies": flip(9), "the size of the index": flip(17), "its digest": flip(30),
    "the digest of the data": flip(60), "the sum": flip(90), "the header's digest": flip(100),
    "first data": flip(PAGE), "data": flip(PAGE + 6000), "last data": lambda data: flip(_end(data) - 1)(data),
    "the index": lambda data: flip(_end(data) + 3)(data), "the end of the index": flip(-10), "the end mark": flip(-1),
    "zeros": lambda data: data.__setitem__(slice(None), bytes(len(data))),
    "zeros from the middle on": lambda data: data.__setitem__(slice(PAGE + 4096, None), bytes(len(data) - PAGE - 4096)),
    "another file": lambda data: data.__setitem__(slice(None), b"GGUF" * (len(data) // 4)),
}


def _end(data: bytearray) -> int:
    """Where the data end and the index begins."""
    return int.from_bytes(data[8:16], "little")


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_anywhere_is_packed_over(weights: Path, model: Path, what: str) -> None:
    _, plain = load(model, keep=False)
    load(model)
    (path,) = weights.iterdir()
    data = bytearray(path.read_bytes())
    DAMAGE[what](data)
    path.write_bytes(data)
    with pytest.raises(DamagedError):
        CacheFile(str(path))
    store, found = load(model)
    assert isinstance(store, WritingStore)
    require_all_equal(found, plain)
    store, found = load(model)
    assert isinstance(store, MappedStore)
    require_all_equal(found, plain)


def large(tmp_path: Path, boot: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 8 MB, whose samples leave most of it out, written since a boot."""
    monkeypatch.setattr(cache_file, "boot_id", lambda: boot)
    path = tmp_path / "large.weights"
    path.touch()
    writer = CacheWriter(str(path))
    region = writer.region(8 << 20)
    for start in range(0, 8 << 20, 100_004):  # parts that end within a word
        stop = min(start + 100_004, 8 << 20)
        with region.part(start, stop) as part:
            part[...] = np.random.default_rng(start).integers(1, 256, stop - start, np.uint8)
    writer.place(np.arange(7, dtype=np.int16))
    writer.finish({"model": "", "weights": {}})
    writer.close()
    return path


def lose_a_page(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(PAGE + (5 << 20) + 20000)
        assert file.read(64) != bytes(64)
        file.seek(-64, os.SEEK_CUR)
        file.write(bytes(64))


@pytest.mark.skipif(os.name != "posix", reason="pipes have names on POSIX")
def test_a_pipe_in_its_place_is_not_waited_for(weights: Path, model: Path) -> None:
    _, plain = load(model)
    (path,) = weights.iterdir()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedError, match="not a regular file"):
        CacheFile(str(path))
    require_all_equal(load(model)[1], plain)
    assert path.is_file()


def test_after_the_system_started_again_all_is_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = large(tmp_path, b"1" * 16, monkeypatch)
    CacheFile(str(path))
    monkeypatch.setattr(cache_file, "boot_id", lambda: b"2" * 16)
    CacheFile(str(path))
    with open(path, "rb") as file:
        assert os.pread(file.fileno(), 16, BOOT_AT) == b"2" * 16  # and is not the next time
    lose_a_page(path)
    monkeypatch.setattr(cache_file, "boot_id", lambda: b"3" * 16)
    with pytest.raises(DamagedError, match="not all that was written"):
        CacheFile(str(path))


def test_where_no_boot_is_known_all_is_summed_up_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = large(tmp_path, bytes(16), monkeypatch)
    CacheFile(str(path))
    lose_a_page(path)
    with pytest.raises(DamagedError, match="not all that was written"):
        CacheFile(str(path))


def test_a_sum_is_that_of_words() -> None:
    data = np.random.default_rng(0).integers(0, 256, 100_003, np.uint8)
    words = np.concatenate([data, np.zeros(5, np.uint8)]).view(np.uint64)
    assert _sum_of(data) == sum(map(int, words)) % (1 << 64)


def test_samples_cover_a_small_file_and_the_ends_of_a_large_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size, seen in ((300_000, range(0, 300_000, 997)), (5_000_000, (0, 65_535, 65_536, 4_999_999))):
        data = bytearray(size)
        path.write_bytes(data)
        with open(path, "r+b", buffering=0) as file:
            digests = {file_identity.samples(file.fileno(), 0, size)}
            for at in seen:
                os.pwrite(file.fileno(), b"\1", at)
                digests.add(file_identity.samples(file.fileno(), 0, size))
        assert len(digests) == 1 + len(seen)
