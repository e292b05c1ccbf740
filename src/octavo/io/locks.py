"""Locks on open files and folders, which the system takes away from a process that ends, however it ends."""

from __future__ import annotations

import ctypes
import errno
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FAR = 1 << 40
"""Where Windows, which locks bytes and lets nobody read them, locks one: no file is as long."""
LOCK_VIOLATION = 33


def try_lock(fd: int) -> bool:
    """Lock an open file or folder until `fd` is closed; False where another has it open and locked.

    Raises OSError where the file system, or the operating system, knows no such locks.
    """
    if sys.platform == "win32":
        return _try_lock_byte(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_lock_byte(fd: int) -> bool:
    kernel32 = ctypes.CDLL("kernel32", use_last_error=True)
    handle = ctypes.c_void_p(msvcrt.get_osfhandle(fd))  # type: ignore[attr-defined, name-defined, unused-ignore]
    if kernel32.LockFile(handle, FAR & 0xFFFFFFFF, FAR >> 32, 1, 0):
        return True
    error = ctypes.get_last_error()  # type: ignore[attr-defined, unused-ignore]
    if error != LOCK_VIOLATION:
        raise OSError(errno.ENOLCK, f"LockFile failed with {error}")
    return False


def locked_if_any(fd: int) -> bool:
    """Whether the lock is ours, or there are no locks here, so that nobody can be kept out."""
    try:
        return try_lock(fd)
    except OSError:
        return True
