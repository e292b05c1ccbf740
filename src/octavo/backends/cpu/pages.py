"""Advice to the system about the pages of a mapped file: fetch them at once, and let them go again."""

from __future__ import annotations

import ctypes
import mmap
import sys

from octavo.formats.spec import AnyArray

POPULATE_READ = 22  # Linux 5.14 and later; older ones say no, and pages come one fault at a time
DONT_NEED = 4


def fetch(array: AnyArray) -> None:
    """Have the pages of `array` mapped now: one call instead of a fault for each few pages."""
    _advise(array, POPULATE_READ)


def release(array: AnyArray) -> None:
    """Let the pages of `array`, a view of a file, go; a later access maps them again."""
    _advise(array, DONT_NEED)


def _advise(array: AnyArray, advice: int) -> None:
    if sys.platform != "linux" or array.flags.writeable:  # only mapped files are read-only here
        return
    page = mmap.PAGESIZE
    start = -(-array.ctypes.data // page) * page
    stop = (array.ctypes.data + array.nbytes) // page * page
    if stop > start:
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)
