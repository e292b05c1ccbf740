"""Locks on open files and folders, which the system takes away from a process that ends, however it ends."""

from __future__ import annotations

import errno
import os
import sys

if sys.platform != "win32":
    import fcntl


def try_lock(fd: int) -> bool:
    """Lock an open file or folder until `fd` is closed; False where another has it open and locked.

    Raises OSError where the file system, or the operating system, knows no such locks.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def locked_if_any(fd: int) -> bool:
    """Whether the lock is ours, or there are no locks here, so that nobody can be kept out."""
    try:
        return try_lock(fd)
    except OSError:
        return True
