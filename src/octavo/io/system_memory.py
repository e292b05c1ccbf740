"""The system's memory: what this process may still take of it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from octavo.io.control_groups import control_groups
from octavo.io.macos import sysctl

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Room:
    """Bytes that may be taken: `free` of memory, files in the page cache not counted as taken, and `swap` beyond it."""

    free: int
    swap: int = 0


def room(root: Path = Path("/")) -> Room | None:
    """What there is: the least of the machine's, that of each control group, and the limit of this address space.

    On macOS and Windows the machine's. None where the system does not tell; Linux does so under `root`.
    """
    if sys.platform == "darwin":
        return _on_macos()
    if sys.platform == "win32":
        return _on_windows()
    machine = _numbers(root / "proc/meminfo")
    if "MemAvailable" not in machine:
        return None
    rooms = [Room(machine["MemAvailable"] * 1024, machine.get("SwapFree", 0) * 1024), *_groups(root)]
    free, swap = [r.free for r in rooms], [r.swap for r in rooms]
    memory = min(*free, addresses := _addresses(root))
    return Room(max(memory, 0), max(min(*swap, addresses - memory), 0))


def resident() -> int:
    """Bytes of memory that this process takes now, shared libraries among them; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _on_macos() -> Room | None:
    """The share of memory that macOS calls free; its swap files grow with the disk."""
    total, percent = sysctl("hw.memsize"), sysctl("kern.memorystatus_level")
    if not total or percent is None:
        return None
    return Room(total * percent // 100, shutil.disk_usage("/").free)


class _Windows(ctypes.Structure):
    """MEMORYSTATUSEX of sysinfoapi.h."""

    _fields_: ClassVar = [
        ("dwLength", ctypes.c_uint32), ("dwMemoryLoad", ctypes.c_uint32),
        *((f"ull{name}", ctypes.c_uint64) for name in (
            "TotalPhys", "AvailPhys", "TotalPageFile", "AvailPageFile", "TotalVirtual", "AvailVirtual",
            "AvailExtendedVirtual",
        )),
    ]


def _on_windows() -> Room | None:
    """Memory that is free, and what the page file lets be taken beyond it."""
    found = _Windows(dwLength=ctypes.sizeof(_Windows))
    if not ctypes.CDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(found)):
        return None
    return Room(found.ullAvailPhys, max(found.ullAvailPageFile - found.ullAvailPhys, 0))


def _groups(root: Path) -> Iterator[Room]:
    """What each control group that this process is in has left, of either version."""
    first = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"
    second = "memory.max", "memory.current", "file"
    for folder, is_second in control_groups("memory", root):
        found = _group(folder, *(second if is_second else first))
        if found is not None:
            yield found


def _group(folder: Path, most: str, used: str, files: str) -> Room | None:
    """What a control group has left; None where it has no limit, or is not seen from here."""
    try:
        limit = int((folder / most).read_text())
        taken = int((folder / used).read_text())
    except (OSError, ValueError):  # "max"
        return None
    stat = _numbers(folder / "memory.stat")
    cached = stat.get(files, 0) - stat.get("shmem" if files == "file" else "total_shmem", 0)
    return Room(limit - taken + max(cached, 0), _swap(folder))


def _swap(folder: Path) -> int:
    """Swap that a control group has left, as far as it limits it."""
    try:
        return int((folder / "memory.swap.max").read_text()) - int((folder / "memory.swap.current").read_text())
    except (OSError, ValueError):
        return UNLIMITED


def _addresses(root: Path) -> int:
    """Bytes left of the address space that `ulimit -v` sets."""
    if sys.platform == "win32":
        return UNLIMITED
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    try:
        pages = int((root / "proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return UNLIMITED
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


def _numbers(path: Path) -> dict[str, int]:
    """The numbers in a file of lines such as `MemFree: 12 kB` or `file 12`; none where it can't be read."""
    try:
        return {name: int(value) for name, value in re.findall(r"^(\S+?):?\s+(\d+)", path.read_text(), re.MULTILINE)}
    except OSError:
        return {}
