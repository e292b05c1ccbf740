"""Numbers and texts that macOS tells by name."""

from __future__ import annotations

import ctypes


def sysctl(name: str) -> int | None:
    """A number of up to 8 bytes, as `sysctl NAME` prints it; None where this system has none of that name."""
    value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return None if failed else value.value


def sysctl_text(name: str) -> str:
    """A text of up to 63 bytes, "" where this system has none of that name."""
    text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), text, ctypes.byref(size), None, 0)
    return "" if failed else text.value.decode()
