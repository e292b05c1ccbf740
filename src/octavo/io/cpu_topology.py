"""Which logical processors share a core or a memory node, and how large a core's cache is, as the system tells."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path

from octavo.io.macos import sysctl

CPUS = "sys/devices/system/cpu"
SECOND_CACHE = 1 << 18
"""Bytes of the second cache where the system does not tell."""


def processors() -> frozenset[int]:
    """The logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(allowed: Collection[int], root: Path = Path("/")) -> int:
    """Cores that the logical processors `allowed` are of; on macOS and Windows those of the machine."""
    if sys.platform == "darwin":
        return sysctl("hw.physicalcpu") or len(allowed)
    if sys.platform == "win32":
        return min(_cores_of_windows() or len(allowed), len(allowed))
    return len({_siblings(cpu, root) for cpu in allowed})


@cache
def _siblings(cpu: int, root: Path) -> str:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the latter in kernels before 5.3
        with suppress(OSError):
            return (root / CPUS / f"cpu{cpu}/topology" / name).read_text()
    return str(cpu)


def _cores_of_windows() -> int:
    """Records of RelationProcessorCore (0) of GetLogicalProcessorInformationEx: each begins with its kind and size."""
    ask, size = ctypes.CDLL("kernel32").GetLogicalProcessorInformationEx, ctypes.c_uint32(0)
    ask(0, None, ctypes.byref(size))
    records = ctypes.create_string_buffer(size.value)
    if not ask(0, records, ctypes.byref(size)):
        return 0
    found, at = 0, 0
    while at < size.value:
        found, at = found + 1, at + struct.unpack_from("<II", records, at)[1]
    return found


@cache
def second_cache(root: Path = Path("/")) -> int:
    """Bytes of a core's second cache."""
    if sys.platform == "darwin":
        return sysctl("hw.l2cachesize") or SECOND_CACHE
    with suppress(OSError, ValueError):
        return int((root / CPUS / "cpu0/cache/index2/size").read_text().strip().removesuffix("K")) << 10
    return SECOND_CACHE


@cache
def memory_nodes(allowed: frozenset[int], root: Path = Path("/")) -> dict[int, frozenset[int]]:
    """The memory nodes (NUMA) of the processors `allowed`, with those of each; one where Linux tells of none."""
    nodes = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        with suppress(OSError):
            nodes[int(folder.name[4:])] = _cpus((folder / "cpulist").read_text()) & allowed
    return {node: cpus for node, cpus in sorted(nodes.items()) if cpus} or {0: allowed}


def _cpus(text: str) -> frozenset[int]:
    """Processors of a list as Linux writes it: 0-3,8."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return frozenset(cpu for first, last in spans for cpu in range(int(first), int(last or first) + 1))
