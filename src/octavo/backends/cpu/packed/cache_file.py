"""A file of packed weights: written once, part by part, under a temporary name, and mapped to be read.

    0       header, a page: magic, where the index lies and its SHA-256, a SHA-256 of samples of the data, the sum of
            the data, a SHA-256 of all that; then the boot that the data are known to be whole since
    4096    data: arrays, each at a multiple of 64 bytes, those of a weight at the start of what can be mapped
    ...     index: JSON
    -8      end mark

Nothing is flushed to the disk, for that takes longer than packing. After a crash of the system a file may so have lost
pages, which read as zeros: what was written before the last start of the system is summed up before it is used again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from bisect import bisect, insort
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from threading import Lock
from typing import Any

import numpy as np

from octavo.backends.cpu.device.memory_nodes import prefer_node_of
from octavo.formats.spec import U8, AnyArray
from octavo.io.file_identity import boot_id, samples
from octavo.io.positioned import pread, pwrite
from octavo.io.regular_file import open_if_regular

MAGIC, END = b"OCTAVOW1", b"1WOVATCO"
PAGE, LINE = 4096, 64
START = max(PAGE, mmap.ALLOCATIONGRANULARITY)
"""Weights begin at multiples of it: where a part of a file that is mapped may begin."""
HEADER = struct.Struct("<8sQQ32s32sQ")
BOOT_AT = HEADER.size + 32
MOST_INDEX = 1 << 28
BLOCK = 1 << 21
"""Bytes of a large page."""
SUMMED = 1 << 24
"""Bytes that are summed up at a time."""


class DamagedError(Exception):
    """A cache file that is not what was written."""


class Place(tuple[int, str, tuple[int, ...]]):
    """Where an array lies: offset, type and shape."""

    def __new__(cls, at: int, dtype: str, shape: tuple[int, ...]) -> Place:
        return super().__new__(cls, (at, dtype, shape))


class CacheFile:
    """A file of packed weights, mapped: `index` as it was written, `array` for a place in it.

    Raises OSError where it can't be read, DamagedError where it is not as it was written. Without `check` there is only
    the index.
    """

    def __init__(self, path: str, *, check: bool = True) -> None:
        if (file := open_if_regular(path)) is None:
            raise DamagedError("it is not a regular file")
        with file:
            fd = file.fileno()
            self.nbytes = os.fstat(fd).st_size
            at, size, of_index, of_data, total, boot = self._header(fd)
            text = pread(fd, size, at)
            if hashlib.sha256(text).digest() != of_index or pread(fd, len(END), at + size) != END:
                raise DamagedError("its index is not what was written")
            self.index: dict[str, Any] = json.loads(text)
            if not check:
                return
            if samples(fd, PAGE, at) != of_data:
                raise DamagedError("its data are not what was written")
            self._mapped = _map(fd, 0, self.nbytes)
        now = boot_id()
        if boot != now or not any(now):
            if _sum_of(self._mapped[PAGE:at]) != total:
                raise DamagedError("its data are not all that was written")
            self._write_boot(path, now)

    def _header(self, fd: int) -> tuple[int, int, bytes, bytes, int, bytes]:
        raw = pread(fd, PAGE, 0)
        if len(raw) < PAGE or hashlib.sha256(raw[: HEADER.size]).digest() != raw[HEADER.size : BOOT_AT]:
            raise DamagedError("its header is not what was written")
        magic, at, size, of_index, of_data, total = HEADER.unpack_from(raw)
        if magic != MAGIC or size > MOST_INDEX or at + size + len(END) != self.nbytes:
            raise DamagedError("it is not as long as it was")
        return at, size, of_index, of_data, total, raw[BOOT_AT : BOOT_AT + 16]

    @staticmethod
    def _write_boot(path: str, boot: bytes) -> None:
        try:
            with open(path, "r+b", buffering=0) as file:
                pwrite(file.fileno(), boot, BOOT_AT)
        except OSError:  # then the next start sums it up again
            pass

    def array(self, place: list[Any]) -> AnyArray:
        """The array that lies there, which keeps the file mapped. Raises DamagedError for a place outside."""
        return _array(self._mapped, *place)


class Region:
    """Bytes of a weight's data in a file that is written, in blocks as large as large pages.

    What a file system keeps of a write is in one large page if it is written at once; in small ones tokens take 1.5%
    longer.
    """

    def __init__(self, writer: CacheWriter, at: int, nbytes: int) -> None:
        self._writer, self._start, self._stop = writer, at, at + nbytes
        self._blocks: dict[int, tuple[U8, int]] = {}
        self._lock = Lock()

    @contextmanager
    def part(self, start: int, stop: int) -> Iterator[U8]:
        """Zeros to fill, which become bytes `start` to `stop` of the region; each byte is of one part."""
        memory = np.zeros(stop - start, np.uint8)
        prefer_node_of(start, self._stop - self._start)
        yield memory
        for at, block in self._filled(self._start + start, memory):
            first, last = max(self._start - at, 0), min(self._stop - at, BLOCK)
            self._writer.write(at + first, block[first:last])
            self._writer.spare.append(block)

    def _filled(self, at: int, data: U8) -> list[tuple[int, U8]]:
        """Add bytes; the blocks of which all is there then, or all that is the region's, and where they begin."""
        whole = []
        with self._lock:
            while len(data):
                number, inside = divmod(at, BLOCK)
                count, first = min(len(data), BLOCK - inside), max(self._start - number * BLOCK, 0)
                if number not in self._blocks:
                    block = self._writer.spare.pop() if self._writer.spare else np.empty(BLOCK, np.uint8)
                    self._blocks[number] = block, min(self._stop - number * BLOCK, BLOCK) - first
                block, missing = self._blocks.pop(number)
                block[inside : inside + count] = data[:count]
                if missing == count:
                    whole.append((number * BLOCK, block))
                else:
                    self._blocks[number] = block, missing - count
                at, data = at + count, data[count:]
        return whole

    def array(self) -> U8:
        """All of it, mapped, once it is filled."""
        assert not self._blocks
        return self._writer.map(self._start, self._stop - self._start)


class CacheWriter:
    """Writes a file that is there, and empty. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        self._end, self._sum, self._lock = PAGE, 0, Lock()
        self._mapped: list[tuple[int, int, U8]] = []
        """Addresses of regions that are mapped, where these are in the file, and their bytes."""
        self.spare: list[U8] = []
        """Blocks to fill again: those with memory of their own would be cleared by the system each time."""

    def region(self, nbytes: int) -> Region:
        """Room for the data of a weight."""
        with self._lock:
            at = -(-self._end // START) * START
            self._end = at + nbytes
        return Region(self, at, nbytes)

    def map(self, at: int, nbytes: int) -> U8:
        """Bytes of a region that are all written."""
        found = _map(self._fd, at, nbytes)
        with self._lock:
            insort(self._mapped, (found.ctypes.data, at, found), key=itemgetter(0))
        return found

    def write(self, at: int, data: U8) -> None:
        """Write bytes of a region."""
        done, view = 0, data.data
        while done < len(data):
            done += pwrite(self._fd, view[done:], at + done)
        with self._lock:
            self._sum += _sum_of(np.concatenate([np.zeros(at % 8, np.uint8), data]) if at % 8 else data)

    def place(self, array: AnyArray) -> Place:
        """Where an array lies: there already, if it is a region's; else it is written."""
        address = array.ctypes.data
        before = bisect(self._mapped, address, key=itemgetter(0))
        start, at, region = self._mapped[before - 1] if before else (0, 0, array)
        if start <= address < start + region.nbytes:
            at += address - start
        else:
            at = -(-self._end // LINE) * LINE
            self._end = at + array.nbytes
            if array.nbytes:
                self.write(at, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return Place(at, array.dtype.str, array.shape)

    def finish(self, index: dict[str, Any]) -> None:
        """Write the index, and the header last."""
        text, at = json.dumps(index).encode(), -(-self._end // LINE) * LINE
        pwrite(self._fd, text + END, at)
        digests = hashlib.sha256(text).digest(), samples(self._fd, PAGE, at)
        header = HEADER.pack(MAGIC, at, len(text), *digests, self._sum % (1 << 64))
        header += hashlib.sha256(header).digest() + boot_id()
        pwrite(self._fd, header.ljust(PAGE, b"\0"), 0)

    def close(self) -> None:
        """Close the file; what is mapped stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _map(fd: int, at: int, nbytes: int) -> U8:
    """Bytes of a file, which other processes may share. Raises OSError."""
    return np.frombuffer(mmap.mmap(fd, nbytes, access=mmap.ACCESS_READ, offset=at) if nbytes else b"", np.uint8)


def _array(mapped: U8, at: int, dtype: str, shape: list[int]) -> AnyArray:
    kind, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
    if not 0 <= at <= at + count * kind.itemsize <= len(mapped):
        raise DamagedError("an array lies outside")
    return mapped[at : at + count * kind.itemsize].view(kind).reshape(shape)


def _sum_of(data: U8) -> int:
    """The sum of bytes as words of 8, those at the end filled up with zeros."""
    whole = len(data) // 8 * 8
    parts = [data[i : min(i + SUMMED, whole)] for i in range(0, whole, SUMMED)]
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    if len(parts) < 2:
        return (rest + sum(map(_words, parts))) % (1 << 64)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return (rest + sum(pool.map(_words, parts))) % (1 << 64)


def _words(data: U8) -> int:
    return int(np.add.reduce(data.view(np.uint64)))
