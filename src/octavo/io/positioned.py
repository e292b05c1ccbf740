"""Reading and writing at a place in an open file, whatever other threads do with it."""

from __future__ import annotations

import os
from threading import Lock

_seeking = Lock()


def pread(fd: int, count: int, at: int) -> bytes:
    """Up to `count` bytes from `at` on, fewer where the file ends. Raises OSError."""
    if hasattr(os, "pread"):
        return os.pread(fd, count, at)
    with _seeking:  # Windows
        os.lseek(fd, at, os.SEEK_SET)
        return os.read(fd, count)


def pwrite(fd: int, data: bytes | memoryview, at: int) -> int:
    """Write bytes from `at` on: how many were written. Raises OSError."""
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, at)
    with _seeking:
        os.lseek(fd, at, os.SEEK_SET)
        return os.write(fd, data)
