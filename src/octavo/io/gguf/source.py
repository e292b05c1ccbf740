"""A file to read from, at any place and from any thread.

Nothing is mapped into memory: a mapped file that is cut while it is open ends the process (SIGBUS), and a read that
comes up short is an error like any other. Reading from the system's cache costs one copy.
"""

from __future__ import annotations

import os
import threading

import numpy as np

from octavo.errors import FileError, GGUFError
from octavo.formats.spec import U8
from octavo.io.regular_file import open_regular


class OpenFile:
    """A regular file, open for as long as anything holds it. `size` is its size in bytes when it was opened.

    Raises `error` where the path can't be opened or is not a regular file, saying that it was to be `wanted`.
    """

    def __init__(self, path: str, wanted: str = "a GGUF file", error: type[FileError] = GGUFError) -> None:
        self.path, self._error = path, error
        self._lock = threading.Lock()
        self._file = open_regular(path, wanted, error)
        self.size = os.fstat(self._file.fileno()).st_size

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def fill(self, out: memoryview, offset: int, field: str) -> None:
        """Fill `out`, which is bytes too, from `offset` on. Raises an error where the file was truncated."""
        done = 0
        while done < len(out):
            try:
                n = self._read(out[done:], offset + done)
            except OSError as e:
                raise self._error(f"reading failed: {e.strerror}", file=self.path, offset=offset, field=field) from e
            if not n:
                problem = f"the file was truncated while it was open: {len(out)} bytes wanted, {done} left"
                raise self._error(problem, file=self.path, offset=offset, field=field)
            done += n

    def _read(self, out: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [out], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(out) or 0

    def array(self, offset: int, n: int, field: str) -> U8:
        """Bytes [offset, offset + n), uint8. Raises an error where the file was truncated."""
        data = np.empty(n, np.uint8)
        self.fill(data.data, offset, field)
        return data

    def require_whole(self, offset: int, field: str) -> None:
        """Raise an error where the file was truncated since it was opened."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self.size:
            problem = f"the file was truncated from {self.size} to {size} bytes while it was open"
            raise self._error(problem, file=self.path, offset=offset, field=field)


class Source:
    """A file that can be closed: what was handed out before still reads from it. `size` is that of OpenFile."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fsdecode(path)
        self._file: OpenFile | None = OpenFile(self.path)
        self.size = self._file.size

    @property
    def file(self) -> OpenFile:
        """The file. Raises GGUFError once it is closed."""
        if self._file is None:
            raise GGUFError("the file is closed", file=self.path)
        return self._file

    def read(self, offset: int, n: int, field: str) -> bytes:
        """Bytes [offset, offset + n) of the file, which the caller has checked against `size`."""
        data = bytearray(n)
        self.file.fill(memoryview(data), offset, field)
        return bytes(data)

    def close(self) -> None:
        """Close the file, as soon as nothing else reads from it."""
        self._file = None
