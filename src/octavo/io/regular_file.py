"""Files that a user names, or that lie beside a model: opened so that nothing else in their place can do harm.

A pipe that nobody writes to would be waited for, and a device such as /dev/zero read for ever; a file of any size would
be taken into memory whole. So only regular files are opened, and read up to a limit.
"""

from __future__ import annotations

import io
import os
import stat

from octavo.errors import FileError

_CHUNK = 1 << 20


def open_regular(path: str | os.PathLike[str], what: str | None = None, kind: type[FileError] = FileError) -> io.FileIO:
    """The regular file at `path`, open for reading without a buffer; never waits.

    Raises an error of `kind` where it can't be opened or is something else; `what` says what should be there.
    """
    name = os.fsdecode(path)
    try:
        file = open_if_regular(name)
    except IsADirectoryError:
        raise kind("not a regular file", file=name, allowed=what) from None
    except (OSError, ValueError) as error:
        raise kind(f"can't be opened: {getattr(error, 'strerror', None) or error}", file=name) from None
    if file is None:
        raise kind("not a regular file", file=name, allowed=what)
    return file


def open_if_regular(path: str) -> io.FileIO | None:
    """The same; None for what is not a regular file. Raises OSError."""
    file = io.FileIO(path, "r", opener=_open_at_once)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    return None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_bytes(path: str | os.PathLike[str], limit: int, kind: type[FileError] = FileError) -> bytes:
    """All of a regular file of at most `limit` bytes. Raises an error of `kind`, also for one that is larger."""
    name = os.fsdecode(path)
    with open_regular(path, kind=kind) as file:
        size, data = os.fstat(file.fileno()).st_size, bytearray()
        try:
            while size <= limit and (part := file.read(min(_CHUNK, limit + 1 - len(data)))):
                data += part
                size = max(size, len(data))
        except OSError as error:
            raise kind(f"reading failed: {error.strerror}", file=name, offset=len(data)) from None
    if size > limit:
        raise kind(f"is too large: {size:,} bytes", file=name, allowed=f"at most {limit:,} bytes")
    return bytes(data)


def read_text(path: str | os.PathLike[str], limit: int, kind: type[FileError] = FileError) -> str:
    """The text in a regular file of at most `limit` bytes of UTF-8. Raises an error of `kind`."""
    data = read_bytes(path, limit, kind)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise kind("not UTF-8", file=path, offset=error.start) from None
