"""Files and folders that appear whole or not at all.

They are written under a temporary name, `.octavo-<hex>.tmp`, in the folder of their own. Whoever writes one holds its
lock, which the system gives up for a process that is killed: so the next that writes into that folder can tell what is
left behind from what is in work, and removes it. Not on Windows, and not on file systems without locks.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from octavo.errors import FileError
from octavo.io.locks import locked_if_any, try_lock

_TEMPORARY = re.compile(r"\.octavo-[0-9a-f]{16}\.tmp")


def require_target(path: str | os.PathLike[str]) -> None:
    """Raise FileError unless a file can be written at `path`: a new name in a folder that exists, or a regular file."""
    _require_regular(path)
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileError(f"there is no folder {folder}", file=path)


def _require_regular(path: str | os.PathLike[str]) -> None:
    """Raise FileError for what is there and no regular file: renaming onto it would put a file in its place.

    And for a path without a name, which would be found out in the end only, or with a folder's.
    """
    if not os.fspath(path):
        raise FileError("the file to write has no name")
    if os.fsdecode(path).endswith("/"):
        raise FileError("is the name of a folder, not of a file", file=path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"can't be written: {error.strerror}", file=path) from None
    if stat.S_ISDIR(mode):
        raise FileError("is a folder, not a file", file=path)
    if not stat.S_ISREG(mode):
        raise FileError("is not a regular file", file=path, allowed="a regular file, or a new name")


def require_new_folder(path: str | os.PathLike[str]) -> None:
    """Raise FileError unless `new_folder` can make `path`: a new name in a folder that exists, or an empty folder."""
    if not os.fspath(path):  # of the current folder, as the system has it, whatever is in there
        raise FileError("the folder to write has no name")
    parent = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(parent):
        raise FileError(f"there is no folder {parent}", file=path)
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        problem = "has files in it" if os.path.isdir(path) else "is a file"
        raise FileError(problem, file=path, allowed="a folder that is new or empty")


def require_room(path: str | os.PathLike[str], needed: int) -> None:
    """Raise FileError unless the disk of what is to be written has room for `needed` bytes."""
    free = shutil.disk_usage(os.path.dirname(os.path.realpath(path))).free
    if free < needed:
        raise FileError(f"needs {needed:,} bytes of disk space, but only {free:,} are free", file=path)


@contextmanager
def failures_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the system refuses in the block becomes a FileError that names `path`."""
    try:
        yield
    except OSError as error:
        raise FileError(f"can't be written: {reason(error)}", file=path) from None


def reason(error: OSError) -> str:
    """Why something can't be written. NumPy's errors lack the system's reason, and count the values written."""
    return error.strerror or f"the disk is full, or a limit reached ({error})"


@contextmanager
def replace_file(path: str | os.PathLike[str], *, flush: bool = True, mode: int = 0o666) -> Iterator[str]:
    """A temporary file to write instead of `path`, in the same folder; it takes the place of `path` at the end.

    Gives the path of an empty file. When the block ends its bytes are flushed to the disk, it is renamed onto `path`
    (through a link, onto what that points at), and the folder is flushed. When the block or any of this fails it is
    removed and `path` is as it was. A process that is killed leaves the temporary file and `path` as it was. `mode` has
    the file's permissions, before the process's mask: 0o600 for what nobody else may read. Without
    `flush` that is not so of a system that stops: what its file has lost then is for the reader to find out. Raises
    FileError where `path` is there and no regular file, OSError, and FileErrors of the temporary file as `path`'s.
    """
    _require_regular(path)
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    with _temporary(folder, partial(_create, mode), os.unlink) as temporary:
        try:
            yield temporary
        except FileError as error:
            if error.file == temporary:
                raise error.of(path) from None
            raise
        if flush:
            _flush(temporary, os.O_RDWR)
        os.replace(temporary, target)
    if flush and os.name == "posix":
        _flush(folder, os.O_RDONLY)


@contextmanager
def written_file(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[str]:
    """A temporary file as of `replace_file`. Raises FileError naming `path` where anything of it fails."""
    with failures_of(path), replace_file(path, mode=mode) as temporary:
        yield temporary


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[str]:
    """A temporary folder to fill in place of `path`, beside it; at the end it becomes `path`, which is new or empty.

    Gives the path of an empty folder. When the block ends its files, and those of folders in it, are flushed to the
    disk, it is renamed, and the folder that holds it is flushed. When the block or any of this fails it is removed. A
    process that is killed leaves the temporary folder and no `path`. Raises FileError where `path` is there and no
    folder, OSError, also where it has something in it by the end, and of a FileError of a file in the temporary folder
    one of that file in `path`.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        raise FileError("is not a folder", file=path)
    target = os.path.realpath(path)
    parent = os.path.dirname(target)
    with _temporary(parent, os.mkdir, partial(shutil.rmtree, ignore_errors=True)) as temporary:
        try:
            yield temporary
        except FileError as error:
            if (error.file or "").startswith(temporary + os.sep):
                raise error.of(os.path.join(path, os.path.relpath(error.file or "", temporary))) from None
            raise
        for inner, _, names in os.walk(temporary, topdown=False):
            for name in names:
                _flush(os.path.join(inner, name), os.O_RDWR)
            if os.name == "posix":
                _flush(inner, os.O_RDONLY)
        if os.name != "posix" and os.path.isdir(target):
            os.rmdir(target)  # renaming onto an empty folder is POSIX's
        os.rename(temporary, target)
    if os.name == "posix":
        _flush(parent, os.O_RDONLY)


@contextmanager
def _temporary(folder: str, make: Callable[[str], None], remove: Callable[[str], None]) -> Iterator[str]:
    """A new temporary file or folder in `folder`, made by `make`, locked; what others left there goes first.

    Unless the block gave it another name it is removed in the end, also where a signal raises before the block begins.
    """
    _remove_left_behind(folder)
    path, lock = "", None
    try:
        while lock is None:
            path = os.path.join(folder, f".octavo-{secrets.token_hex(8)}.tmp")
            make(path)
            lock = _locked(path)
        yield path
    finally:
        with suppress(OSError):  # the first error is the one to tell of
            remove(path)
        if lock is not None and lock >= 0:
            os.close(lock)


def _create(mode: int, path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def _locked(path: str) -> int | None:
    """The descriptor that holds the lock of a new file or folder; -1 where there are no locks, None if it was removed.

    Between its making and its lock it looks like one left behind.
    """
    if sys.platform == "win32":
        return -1
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError:
        return -1
    if locked_if_any(fd) and os.path.lexists(path):
        return fd
    os.close(fd)
    return None


def _remove_left_behind(folder: str) -> None:
    """Remove the temporary files and folders that nobody has locked. What can't be removed stays."""
    if sys.platform == "win32":
        return
    with suppress(OSError):
        for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
            with suppress(OSError):
                _remove_unlocked(os.path.join(folder, name))


def _remove_unlocked(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if not try_lock(fd):
            return
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        elif stat.S_ISREG(mode):
            os.unlink(path)
    finally:
        os.close(fd)


def _flush(path: str, flags: int) -> None:
    """Wait until what was written to the file or folder is on the disk."""
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
