"""A file to read from: short reads for the header, a memory map for the tensors.

Header bytes come through reads, never through the map, so that a file which is cut while it is open gives an error
and not SIGBUS. Tensors are views of the map, because copying them would double the memory that a model takes.
"""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np

from octavo.errors import GGUFError
from octavo.formats.spec import U8
from octavo.io.regular import open_regular


class Source:
    """A regular file, opened for reading. `size` is its size in bytes when it was opened.

    Raises GGUFError where the path can't be opened or is not a regular file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fsdecode(path)
        self._map: mmap.mmap | None = None
        self._lock = threading.Lock()
        self._file = open_regular(self.path, "a GGUF file", GGUFError)
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, n: int, field: str) -> bytes:
        """Bytes [offset, offset + n) of the file, which the caller has checked against `size`."""
        self._check_open()
        try:
            data = self._read_at(offset, n)
        except OSError as e:
            raise GGUFError(f"reading failed: {e.strerror}", file=self.path, offset=offset, field=field) from e
        if len(data) < n:
            raise GGUFError(
                f"the file was cut while it was open: {n} bytes wanted, {len(data)} left",
                file=self.path,
                offset=offset,
                field=field,
            )
        return data

    def _read_at(self, offset: int, n: int) -> bytes:
        parts: list[bytes] = []
        while n:
            if hasattr(os, "pread"):
                part = os.pread(self._file.fileno(), n, offset)
            else:
                with self._lock:
                    self._file.seek(offset)
                    part = self._file.read(n)
            if not part:
                break
            parts.append(part)
            offset, n = offset + len(part), n - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view(self, offset: int, n: int, field: str) -> U8:
        """Bytes [offset, offset + n) as a read-only uint8 view of the mapped file, nothing copied.

        The file's size is checked first. A file that is cut after that check still kills the process when the view is
        touched (SIGBUS): the operating system offers no other answer for mapped memory.
        """
        self._check_open()
        size = os.fstat(self._file.fileno()).st_size
        if size < self.size:
            raise GGUFError(
                f"the file was cut from {self.size} to {size} bytes while it was open",
                file=self.path,
                offset=offset,
                field=field,
            )
        if self._map is None:
            try:
                self._map = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as e:
                raise GGUFError(f"can't be mapped: {e}", file=self.path, offset=offset, field=field) from e
        return np.frombuffer(self._map, np.uint8, count=n, offset=offset)

    def copy(self, offset: int, n: int, field: str) -> U8:
        """Bytes [offset, offset + n) as a uint8 array of its own, which no later change of the file can reach."""
        return np.frombuffer(self.read(offset, n, field), np.uint8)

    def _check_open(self) -> None:
        if self._file.closed:
            raise GGUFError("the file is closed", file=self.path)

    def close(self) -> None:
        """Close the file. Views that were handed out stay valid; the map goes with the last of them."""
        self._file.close()
        self._map = None
