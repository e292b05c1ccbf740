"""What macOS and Windows are asked in their own ways, with stand-ins for their libraries."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.backends.cores import cores
from octavo.io import locks, system_memory
from octavo.io.file_identity import boot_id
from octavo.io.macos import sysctl
from octavo.io.system_memory import Room, room
from octavo.jit.kernel_cache import cache_root


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The numbers that macOS tells, in 4 bytes where they fit."""
    numbers: dict[str, int] = {}

    def sysctlbyname(name: bytes, value: Any, size: Any, new: None, new_size: int) -> int:
        found = numbers.get(name.decode())
        if found is None:
            return -1
        raw = found.to_bytes(4 if found < 1 << 31 else 8, "little")
        ctypes.memmove(value, raw, len(raw))
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda *a, **k: SimpleNamespace(sysctlbyname=sysctlbyname))
    return numbers


def test_macos_tells_numbers_by_name(mac: dict[str, int]) -> None:
    mac |= {"hw.memsize": 16 << 30, "kern.memorystatus_level": 40}
    assert (sysctl("hw.memsize"), sysctl("kern.memorystatus_level"), sysctl("hw.no")) == (16 << 30, 40, None)


def test_room_on_macos(mac: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert room() is None
    mac |= {"hw.memsize": 16 << 30, "kern.memorystatus_level": 25}
    monkeypatch.setattr(system_memory.shutil, "disk_usage", lambda path: SimpleNamespace(free=100 << 30))
    assert room() == Room(4 << 30, 100 << 30)


def test_threads_on_macos_are_for_performance_cores(mac: dict[str, int]) -> None:
    everywhere = cores()
    mac["hw.perflevel0.physicalcpu"] = 6
    assert cores() == 6
    mac.clear()  # an Intel Mac
    assert cores() == everywhere


def test_macos_tells_which_start_of_the_system_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def sysctlbyname(name: bytes, value: Any, size: Any, new: None, new_size: int) -> int:
        if name != b"kern.bootsessionuuid":
            return -1
        value.value = uuid.encode()
        return failed

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda *a, **k: SimpleNamespace(sysctlbyname=sysctlbyname))
    uuid, failed = "8F1D0E8A-7F3B-4D0C-9B5E-0123456789AB", 0
    assert boot_id() == bytes.fromhex(uuid.replace("-", ""))
    failed = -1
    assert boot_id() == bytes(16)


def windows(monkeypatch: pytest.MonkeyPatch, library: str = "kernel32", **functions: Any) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **k: {library: SimpleNamespace(**functions)}[name])


def test_room_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(reference: Any) -> int:
        found = reference._obj
        assert found.dwLength == 64  # what Windows wants there
        found.ullAvailPhys, found.ullAvailPageFile = 3 << 30, 5 << 30
        return 1

    windows(monkeypatch, GlobalMemoryStatusEx=status)
    assert room() == Room(3 << 30, 2 << 30)
    windows(monkeypatch, GlobalMemoryStatusEx=lambda reference: 0)
    assert room() is None


def test_windows_tells_when_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(kind: int, reference: Any, size: int, needed: None) -> int:
        found = reference._obj
        assert (kind, size) == (3, 48)
        found.boot, found.bias = started + moved, moved
        return 0

    windows(monkeypatch, "ntdll", NtQuerySystemInformation=ask)
    started, moved = 133_000_000_000_000_000, 0
    first = boot_id()
    moved = 36_000_000_000  # the clock was set
    assert boot_id() == first
    started += 1
    assert boot_id() != first
    windows(monkeypatch, "ntdll", NtQuerySystemInformation=lambda *a: -1)
    assert boot_id() == bytes(16)


@pytest.mark.parametrize(("done", "error", "locked"), [(1, 0, True), (0, 33, False), (0, 50, OSError)])
def test_locks_on_windows(
    done: int, error: int, locked: bool | type[OSError], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lock_file(handle: Any, low: int, high: int, low_count: int, high_count: int) -> int:
        assert handle.value == 1234
        assert low + (high << 32) == locks.FAR
        assert (low_count, high_count) == (1, 0)
        return done

    windows(monkeypatch, LockFile=lock_file)
    monkeypatch.setattr(locks, "msvcrt", SimpleNamespace(get_osfhandle=lambda fd: 1234), raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: error, raising=False)
    if isinstance(locked, bool):
        assert locks.try_lock(5) is locked
    else:
        with pytest.raises(locked, match="50"):
            locks.try_lock(5)


def test_cache_folder_on_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OCTAVO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "octavo"
    monkeypatch.setattr(sys, "platform", "win32")
    assert cache_root() == tmp_path / "octavo"
