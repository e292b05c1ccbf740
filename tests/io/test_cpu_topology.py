"""Cores, caches and memory nodes as systems tell of them: files of Linux, records of Windows, names of macOS."""

from __future__ import annotations

import ctypes
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.backends.cpu.device import memory_nodes as placing
from octavo.io import cpu_topology
from octavo.io.cpu_topology import memory_nodes, physical_cores, second_cache


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "sys/devices/system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_logical_processors_of_a_core_count_once(tmp_path: Path, name: str) -> None:
    pairs = {f"cpu/cpu{i}/topology/{name}": f"{i % 4},{i % 4 + 4}" for i in range(8)}
    root = machine(tmp_path, pairs)
    assert physical_cores(range(8), root) == 4
    assert physical_cores((1, 5), root) == 1, "only those that may be used"
    assert physical_cores((0, 1, 5), root) == 2


def test_without_topology_each_processor_is_a_core(tmp_path: Path) -> None:
    assert physical_cores(range(6), tmp_path) == 6
    assert second_cache(tmp_path) == 1 << 18
    assert memory_nodes(frozenset({0, 3}), tmp_path) == {0: {0, 3}}


def test_cache_and_nodes(tmp_path: Path) -> None:
    root = machine(tmp_path, {
        "cpu/cpu0/cache/index2/size": "2048K", "node/node0/cpulist": "0-3,8-11", "node/node1/cpulist": "4-7,12-15",
        "node/node2/cpulist": "", "node/possible": "0-2",
    })
    assert second_cache(root) == 2 << 20
    assert memory_nodes(frozenset(range(16)), root) == {0: {0, 1, 2, 3, 8, 9, 10, 11}, 1: {4, 5, 6, 7, 12, 13, 14, 15}}
    assert memory_nodes(frozenset({4, 5}), root) == {1: {4, 5}}


def test_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"hw.physicalcpu": 6, "hw.l2cachesize": 4 << 20}
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(cpu_topology, "sysctl", told.get)
    assert physical_cores(range(12)) == 6
    second_cache.cache_clear()
    assert second_cache() == 4 << 20
    second_cache.cache_clear()


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of different sizes, as of cores whose processors are in one group or in two."""
    records = b"".join(struct.pack("<II", 0, size).ljust(size, b"\1") for size in (48, 64, 48))

    def ask(kind: int, buffer: Any, size: Any) -> bool:
        assert kind == 0
        if buffer is not None:
            ctypes.memmove(buffer, records, len(records))
        size._obj.value = len(records)
        return buffer is not None

    kernel32 = SimpleNamespace(GetLogicalProcessorInformationEx=ask)
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("ctypes.CDLL", lambda name: kernel32)
    assert physical_cores(range(6)) == 3
    assert physical_cores(range(2)) == 2, "no more than this process may use"


def test_parts_of_a_weight_prefer_the_node_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Libc:
        @staticmethod
        def syscall(number: int, policy: int, mask: Any, bits: ctypes.c_ulong) -> int:
            asked.append((policy, list(mask), bits.value))
            return 0

    assert placing.prefer_node_of(0, 100) is None or len(memory_nodes(cpu_topology.processors())) > 1
    monkeypatch.setattr(placing, "memory_nodes", lambda allowed: {0: {0}, 65: {1}})
    monkeypatch.setattr("ctypes.CDLL", lambda name: Libc)
    assert [placing.prefer_node_of(start, 100) for start in (0, 49, 50, 99)] == [0, 0, 65, 65]
    assert asked[0] == (1, [1], 65)
    assert asked[2] == (1, [0, 2], 129)


def test_the_system_takes_the_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is there is taken, unless a container forbids it; one that is not is refused."""
    monkeypatch.setattr(placing, "memory_nodes", lambda allowed: {0: {0}, 900: {1}})
    with ThreadPoolExecutor(1) as pool:  # a thread's wish ends with it
        assert pool.submit(placing.prefer_node_of, 0, 100).result() in (0, None)
        assert pool.submit(placing.prefer_node_of, 99, 100).result() is None
