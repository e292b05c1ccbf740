"""Cores by affinity and by the quotas of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.backends import cores as module
from octavo.backends.cores import cores, quota

V1 = "sys/fs/cgroup/cpu/a/cpu.cfs"


def tree(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "want"),
    [
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "400000 100000\n"}, 4),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 2),
        ("0::/a\n", {"sys/fs/cgroup/a/cpu.max": "50000 100000\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 1),
        ("0::/not/seen\n", {"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        (
            "4:cpu,cpuacct:/a\n3:memory:/m\n",
            {f"{V1}_quota_us": "250000\n", f"{V1}_period_us": "100000\n"}, 3,
        ),
        (
            "4:cpu:/a\n",
            {f"{V1}_quota_us": "-1\n", f"{V1}_period_us": "100000\n"}, 1 << 20,
        ),
        ("0::/a\n", {"sys/fs/cgroup/a/cpu.max": "odd\n"}, 1 << 20),
    ],
)
def test_quota_is_the_least_of_all_groups(tmp_path: Path, groups: str, files: dict[str, str], want: int) -> None:
    assert quota(tree(tmp_path, groups, files)) == want


def test_no_control_groups(tmp_path: Path) -> None:
    assert quota(tmp_path) == 1 << 20


def test_threads_are_no_more_than_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(module, "physical_cores", len)
    monkeypatch.setattr(module, "quota", lambda: 3)
    assert cores() == 3
    monkeypatch.setattr(module, "quota", lambda: 1 << 20)
    assert cores() == 16
