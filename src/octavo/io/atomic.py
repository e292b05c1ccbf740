"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from octavo.errors import FileError


def require_room(path: str | os.PathLike[str], needed: int) -> None:
    """Raise FileError unless the disk of what is to be written has room for `needed` bytes."""
    free = shutil.disk_usage(os.path.dirname(os.path.realpath(path))).free
    if free < needed:
        raise FileError(f"{needed:,} bytes are to be written, but the disk has {free:,} free", file=path)


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[str]:
    """A temporary file to write instead of `path`, in the same folder; it takes the place of `path` at the end.

    Gives the path of an empty file, `.octavo-<hex>.tmp`. When the block ends its bytes are flushed to the disk, it is
    renamed onto `path` (through a link, onto what that points at), and the folder is flushed. When the block or any of
    this fails it is removed and `path` is as it was. A process that is killed leaves the temporary file and `path` as
    it was. Raises OSError.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".octavo-{secrets.token_hex(8)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell of
            os.unlink(temporary)
        raise
    if os.name == "posix":
        _flush(folder, os.O_RDONLY)


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[str]:
    """A temporary folder to fill in place of `path`, beside it; at the end it becomes `path`, which is new or empty.

    Gives the path of an empty folder, `.octavo-<hex>.tmp`. When the block ends its files are flushed to the disk, it is
    renamed, and the folder that holds it is flushed. When the block or any of this fails it is removed. A process that
    is killed leaves the temporary folder and no `path`. Raises OSError, also where `path` has something in it by then.
    """
    target = os.path.realpath(path)
    parent = os.path.dirname(target)
    temporary = os.path.join(parent, f".octavo-{secrets.token_hex(8)}.tmp")
    os.mkdir(temporary)
    try:
        yield temporary
        for name in os.listdir(temporary):
            _flush(os.path.join(temporary, name), os.O_RDWR)
        if os.name == "posix":
            _flush(temporary, os.O_RDONLY)
        elif os.path.isdir(target):
            os.rmdir(target)  # renaming onto an empty folder is POSIX's
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if os.name == "posix":
        _flush(parent, os.O_RDONLY)


def _flush(path: str, flags: int) -> None:
    """Wait until what was written to the file or folder is on the disk."""
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
