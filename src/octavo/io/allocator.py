"""The C library's allocator: memory that was freed goes back to the system. Of glibc; elsewhere nothing is done."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Numbers of mallopt's parameters in <malloc.h>."""
LARGE = 8 << 20
"""Bytes of arrays that have memory of their own. glibc raises that to the largest array that was freed, up to 32 MiB,
and arrays below it leave holes."""


@cache
def keep_apart() -> None:
    """Give arrays of LARGE bytes or more memory of their own, which goes back to the system when they are freed."""
    library = _glibc()
    if library is not None:
        library.mallopt(MMAP_THRESHOLD, LARGE)
        library.mallopt(TRIM_THRESHOLD, 2 * LARGE)  # what smaller ones leave is used again


def trim() -> None:
    """Give freed memory back to the system, also where it lies between memory in use."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
