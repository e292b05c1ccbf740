"""What the system's memory has left, as /proc and the control groups tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.io.system_memory import Room, room

resource = pytest.importorskip("resource")
GIB = 1 << 30
MEMINFO = f"MemFree: 12 kB\nMemAvailable: {8 * GIB // 1024} kB\nSwapFree: {2 * GIB // 1024} kB\n"
HALF = Room(4 * GIB, 2 * GIB)
V1, V2 = "4:memory:/a/b\n0::/\n", "0::/a/b\n"


@pytest.fixture(autouse=True)
def no_address_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v2(group: str, most: object, used: int, file: int = 0, **more: object) -> dict[str, str]:
    names = {"max": most, "current": used, "stat": f"anon 5\nfile {file}\nshmem 0\n", **more}
    return {f"sys/fs/cgroup{group}/memory.{name}": str(value) for name, value in names.items()}


def v1(group: str, most: int, used: int, file: int = 0) -> dict[str, str]:
    names = {"limit_in_bytes": most, "usage_in_bytes": used, "stat": f"total_cache {file}\ntotal_shmem 0\n"}
    return {f"sys/fs/cgroup/memory{group}/memory.{name}": str(value) for name, value in names.items()}


CASES: dict[str, tuple[dict[str, str], Room]] = {
    "no groups": ({}, Room(8 * GIB, 2 * GIB)),
    "no limit": ({"proc/self/cgroup": V2, **v2("/a/b", "max", GIB)}, Room(8 * GIB, 2 * GIB)),
    "version 2": ({"proc/self/cgroup": V2, **v2("/a/b", 4 * GIB, GIB)}, Room(3 * GIB, 2 * GIB)),
    "cached files are free": ({"proc/self/cgroup": V2, **v2("/a/b", 5 * GIB, 4 * GIB, 3 * GIB)}, HALF),
    "a group above": ({"proc/self/cgroup": V2, **v2("/a", 5 * GIB, GIB), **v2("/a/b", "max", 0)}, HALF),
    "a container's own tree": ({"proc/self/cgroup": V2, **v2("", 4 * GIB, GIB)}, Room(3 * GIB, 2 * GIB)),
    "no swap in the group": (
        {"proc/self/cgroup": V2, **v2("/a/b", 4 * GIB, GIB, **{"swap.max": 0, "swap.current": 0})}, Room(3 * GIB),
    ),
    "version 1": ({"proc/self/cgroup": V1, **v1("/a/b", 4 * GIB, 3 * GIB, GIB)}, Room(2 * GIB, 2 * GIB)),
    "version 1, no limit": ({"proc/self/cgroup": V1, **v1("/a/b", (1 << 63) - 4096, GIB)}, Room(8 * GIB, 2 * GIB)),
    "more than allowed is taken": ({"proc/self/cgroup": V2, **v2("/a/b", GIB, 2 * GIB)}, Room(0, 2 * GIB)),
    "a limit that is not a number": ({"proc/self/cgroup": V2, **v2("/a/b", "?", GIB)}, Room(8 * GIB, 2 * GIB)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_of_all_limits_counts(tmp_path: Path, case: str) -> None:
    files, expected = CASES[case]
    assert room(system(tmp_path, files)) == expected


@pytest.mark.parametrize(("limit", "expected"), [(5, Room(4 * GIB)), (10, Room(8 * GIB, GIB)), (0.5, Room(0))])
def test_an_address_space_with_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float, expected: Room
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (int(limit * GIB), resource.RLIM_INFINITY))
    monkeypatch.setattr("os.sysconf", lambda name: 4096)
    assert room(system(tmp_path, {"proc/self/statm": f"{GIB // 4096} 1 1"})) == expected


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert room(tmp_path) is None
    assert room(system(tmp_path, {"proc/meminfo": "nonsense"})) is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="Linux tells")
def test_this_machine_has_some() -> None:
    found = room()
    assert found is not None
    assert found.free > 0
