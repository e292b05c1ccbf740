"""What a file that is kept was made of: the files of a model, wherever they lie, and the code that read them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from octavo.errors import FileError
from octavo.io.macos import sysctl_text
from octavo.io.positioned import pread
from octavo.io.regular_file import open_regular

HEAD = 1 << 16
"""Bytes at the beginning of a file that are compared: of a GGUF file or a safetensors file, the header's."""
SAMPLES, SAMPLE = 64, 4096
"""Places of the rest of a file that are compared, and how many bytes there."""


def samples(fd: int, start: int, stop: int) -> bytes:
    """A SHA-256 of bytes `start` to `stop` of a file: all of a small part, else its head, its end and places between.

    Costs reading 320 kB, however large the file is. Raises OSError.
    """
    digest = hashlib.sha256(pread(fd, min(HEAD, stop - start), start))
    for at in _places(start + HEAD, stop):
        digest.update(pread(fd, min(SAMPLE, stop - at), at))
    return digest.digest()


def _places(start: int, stop: int) -> Iterator[int]:
    if stop - start <= SAMPLES * SAMPLE:
        yield from range(start, stop, SAMPLE)
    else:
        yield from (start + (stop - SAMPLE - start) * i // (SAMPLES - 1) for i in range(SAMPLES))


def fingerprint(path: str) -> bytes:
    """Size, time of the last change and sampled content of a file. Raises OSError or FileError."""
    with open_regular(path, "a file of a model", FileError) as file:
        found = os.fstat(file.fileno())
        facts = f"{found.st_size} {found.st_mtime_ns} ".encode()
        return facts + samples(file.fileno(), 0, found.st_size)


@dataclass(frozen=True)
class Identity:
    """What weights were made of: digests of the model's files, of the code, and of whatever more they depend on."""

    files: str
    code: str
    more: str

    @classmethod
    def of(cls, files: Iterable[str], code: Iterable[bytes], more: Iterable[str]) -> Self:
        """Raises OSError or FileError where a file, of which the order counts, can't be read."""
        return cls(_digest(map(fingerprint, files)), _digest(code), _digest(text.encode() for text in more))

    @property
    def name(self) -> str:
        return _digest(part.encode() for part in (self.files, self.code, self.more))


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def boot_id() -> bytes:
    """16 bytes that are the same until the system starts again; zeros where it does not tell."""
    if sys.platform == "win32":
        return _boot_of_windows()
    try:
        text = (
            sysctl_text("kern.bootsessionuuid") if sys.platform == "darwin"
            else Path("/proc/sys/kernel/random/boot_id").read_text()
        )
        return bytes.fromhex(text.strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


class _TimeOfDay(ctypes.Structure):
    """SYSTEM_TIMEOFDAY_INFORMATION: times in 100 ns; a clock that is set moves `boot` and `bias` alike."""

    _fields_ = (("boot", ctypes.c_int64), ("now", ctypes.c_int64), ("zone", ctypes.c_int64), ("id", ctypes.c_uint64),
                ("bias", ctypes.c_int64), ("asleep", ctypes.c_int64))


TIME_OF_DAY = 3
"""SystemTimeOfDayInformation."""


def _boot_of_windows() -> bytes:
    found = _TimeOfDay()
    ask = ctypes.CDLL("ntdll").NtQuerySystemInformation
    failed = ask(TIME_OF_DAY, ctypes.byref(found), ctypes.sizeof(found), None)
    return bytes(16) if failed else (found.boot - found.bias).to_bytes(16, "little")
